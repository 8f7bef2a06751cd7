"""The operator as a process of its own, against a real API server."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trustme
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import REPOSITORY, BenchError

Json = dict[str, Any]
T = TypeVar("T")
SOURCE = REPOSITORY / "operator"
DEADLINE = 60.0  # seconds; only a hang reaches it


@dataclass
class Operators:
    """The replicas that look after one namespace."""

    plane: ControlPlane
    namespace: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(self.folder / "tls.key")
        issued.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")
        authority.cert_pem.write_to_path(self.folder / "ca.crt")
        self.trust = ssl.create_default_context()
        authority.configure_trust(self.trust)

    def start(self, name: str = "first", *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.ports[name] = free.getsockname()[1]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable, "-m", "elastrain", "operator", "--coordinator-url", "https://localhost:1",
                    "--tls-dir", self.folder, "--port", str(self.ports[name]), "--lease-name", "elastrain",
                    "--lease-namespace", self.namespace, "--namespaces", self.namespace, *flags,
                ],
                env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig), "PYTHONPATH": str(SOURCE)},
                stdout=log,
                stderr=log,
            )  # fmt: skip

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and return the exit code."""
        self.processes[name].send_signal(number)
        return self.processes[name].wait(DEADLINE)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def holder(self) -> str:
        """Return who holds the Lease."""
        found = self.find("lease", "elastrain")
        return str((found or {}).get("spec", {}).get("holderIdentity") or "")

    def apply(self, obj: Json) -> None:
        self.plane.kubectl("-n", self.namespace, "apply", "-f", "-", input_text=json.dumps(obj))

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object, or None if there is none."""
        try:
            found: Json = json.loads(self.plane.kubectl("-n", self.namespace, "get", kind, name, "-o", "json"))
        except BenchError:
            return None
        return found

    def list(self, kind: str) -> list[Json]:
        found: list[Json] = json.loads(self.plane.kubectl("-n", self.namespace, "get", kind, "-o", "json"))["items"]
        return found

    def condition(self, kind: str = "Running", job: str = "sft") -> tuple[str, str]:
        """Return reason and message of a condition."""
        found = self.find("trainjob", job) or {}
        for condition in found.get("status", {}).get("conditions", ()):
            if condition["type"] == kind:
                return condition["reason"], condition["message"]
        return "", ""

    def until(self, what: Callable[[], T], seconds: float = DEADLINE) -> T:
        """Wait until something is true, and return it."""
        ends = time.monotonic() + seconds
        while not (found := what()):
            for name, process in self.processes.items():
                assert process.poll() in (None, 0, -signal.SIGKILL), self.log(name)
            assert time.monotonic() < ends, "\n".join(self.log(name) for name in self.processes)
            time.sleep(0.1)
        return found

    def log(self, name: str) -> str:
        return f"--- {name}\n" + (self.folder / f"{name}.log").read_text()[-5000:]
