"""Keys and certificates of a cluster of tests, made by openssl, and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from tests.cluster.bench.process import run


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the authority and the key that signs service account tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
            self.folder / "ca.key", "-out", self.folder / "ca.crt", "-subj", "/CN=bench", "-days", "3650")  # fmt: skip
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.folder / "sa.key")

    def issue(self, name: str, subject: str, names: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Issue a certificate for a subject and its alternative names (`DNS:x`, `IP:y`); return it and its key."""
        cert, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        usage = "extendedKeyUsage=clientAuth,serverAuth\n"
        extensions.write_text(usage + (f"subjectAltName={','.join(names)}\n" if names else ""))
        run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
            key, "-subj", subject, "-out", request)  # fmt: skip
        run("openssl", "x509", "-req", "-in", request, "-CA", self.folder / "ca.crt", "-CAkey", self.folder / "ca.key",
            "-set_serial", f"0x{secrets.token_hex(8)}", "-days", "365", "-out", cert,
            "-extfile", extensions)  # fmt: skip
        return cert, key

    def kubeconfig(self, path: Path, server: str, cert: Path, key: Path) -> None:
        """Write a kubeconfig for a server and a client certificate."""

        def encoded(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "bench",
                    "cluster": {"server": server, "certificate-authority-data": encoded(self.folder / "ca.crt")},
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {"client-certificate-data": encoded(cert), "client-key-data": encoded(key)},
                }
            ],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "user"}}],
            "current-context": "bench",
        }
        path.write_text(json.dumps(config, indent=1))
        path.chmod(0o600)
