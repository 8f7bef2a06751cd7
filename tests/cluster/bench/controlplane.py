"""etcd and the Kubernetes control plane: alone on loopback for tests of the API, or as the head of a cluster."""

from __future__ import annotations

import shutil
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.bench import tools
from tests.cluster.bench.certificates import Authority
from tests.cluster.bench.layout import SERVICE_NET
from tests.cluster.bench.process import attempt, daemon, kill, run, wait_for

FAST_MANAGER = ("--node-monitor-grace-period=8s", "--node-monitor-period=1s")
FAST_API = ("--default-not-ready-toleration-seconds=3", "--default-unreachable-toleration-seconds=3")


@dataclass
class ControlPlane:
    """One control plane.

    `address` is where it listens; `inside` is the prefix of commands that enters its network namespace.
    """

    state: Path
    address: str
    port: int = 6443
    etcd_port: int = 2379
    inside: tuple[str, ...] = ()
    fast: bool = False
    binaries: Path = field(default_factory=tools.folder)

    @property
    def authority(self) -> Authority:
        """Who signs the certificates of this cluster."""
        return Authority(self.state / "pki")

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the administrator."""
        return self.state / "admin.kubeconfig"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address}:{self.port}"

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.state / "control-plane" / f"{name}.pid", self.state / "control-plane" / f"{name}.log"

    def _start(self, name: str, *flags: str) -> None:
        pidfile, log = self._files(name)
        daemon([*self.inside, self.binaries / name, *flags], log, pidfile)

    @property
    def daemons(self) -> dict[str, tuple[Path, Path]]:
        """The files of every program that was started."""
        names = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
        return {name: self._files(name) for name in names if self._files(name)[0].exists()}

    def certify(self) -> None:
        """Make all certificates and kubeconfigs."""
        authority = self.authority
        authority.create()
        names = tuple(f"DNS:kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local"))
        authority.issue(
            "apiserver",
            "/CN=kube-apiserver",
            (f"IP:{self.address}", "IP:127.0.0.1", f"IP:{SERVICE_NET}.1", "DNS:localhost", *names),
        )
        subjects = {
            "admin": "/O=system:masters/CN=admin",
            "manager": "/CN=system:kube-controller-manager",
            "scheduler": "/CN=system:kube-scheduler",
            "proxy": "/CN=system:kube-proxy",
        }
        for name, subject in subjects.items():
            cert, key = authority.issue(name, subject)
            authority.kubeconfig(self.state / f"{name}.kubeconfig", self.server, cert, key)

    def start_api(self) -> None:
        """Start etcd and the API server and wait until it answers."""
        pki = self.state / "pki"
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = "http://127.0.0.1:0"  # there is no peer
        self._start("etcd", "--data-dir", str(self.state / "etcd"), "--listen-client-urls", etcd,
                    "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "warn")  # fmt: skip
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--service-cluster-ip-range={SERVICE_NET}.0/24",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'sa.key'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--kubelet-client-certificate={pki / 'admin.crt'}",
            f"--kubelet-client-key={pki / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            "--allow-privileged=true",
            "--shutdown-delay-duration=0s",
            # The control plane's namespace has no kube-proxy: webhooks are reached at their pods.
            "--enable-aggregator-routing=true",
            # Loopback cannot be advertised as an endpoint.
            *(("--endpoint-reconciler-type=none",) if self.address.startswith("127.") else ()),
            *(FAST_API if self.fast else ()),
        )
        wait_for(self.ready, 90, "the API server", self.daemons)

    def start_controllers(self) -> None:
        """Start the controller manager and the scheduler."""
        pki = self.state / "pki"
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.state / 'manager.kubeconfig'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            "--use-service-account-credentials",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0" if not self.inside else "--secure-port=10257",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
            *(FAST_MANAGER if self.fast else ()),
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self.state / 'scheduler.kubeconfig'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0" if not self.inside else "--secure-port=10259",
        )

    def ready(self) -> bool:
        """Return whether the API server says that it is ready."""
        if self.inside:
            try:
                return self.kubectl("get", "--raw", "/readyz") == "ok"
            except Exception:
                return False
        context = ssl.create_default_context(cafile=str(self.state / "pki/ca.crt"))
        context.load_cert_chain(self.state / "pki/admin.crt", self.state / "pki/admin.key")
        try:
            with urllib.request.urlopen(f"{self.server}/readyz", context=context, timeout=2) as answer:  # noqa: S310
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints.

        Raises:
            BenchError: it failed; the text has what it said.

        """
        argv = (self.binaries / "kubectl", "--kubeconfig", self.kubeconfig)
        return run(*self.inside, *argv, *arguments, input_text=input_text)

    def stop(self) -> None:
        """End all programs at once: the data are a test's, nothing needs a graceful end."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            kill(self._files(name)[0])
        attempt("rm", "-rf", "--one-file-system", self.state / "control-plane", self.state / "etcd")

    def remove(self) -> None:
        """End all programs and remove the state."""
        self.stop()
        shutil.rmtree(self.state, ignore_errors=True)
