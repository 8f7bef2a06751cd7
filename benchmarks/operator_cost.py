"""What the operator costs: CPU for N and 4N pods, memory, and writes to the API server.

A real API server and etcd, no kubelets: pods stay Pending, which is all that creation and replacement need.
Ratios count, seconds depend on the machine: cost must be linear, so 4N pods may cost about 4 times as much.

    python -m benchmarks.operator_cost [--pods 500]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from tests.apiserver.conftest import _free_ports
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import REPOSITORY

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Operator:
    """A running operator and the server it works on."""

    plane: ControlPlane
    process: subprocess.Popen[bytes]

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def writes(self) -> int:
        """Writes that the API server has answered for what the operator writes."""
        total = 0
        for line in self.plane.kubectl("get", "--raw", "/metrics").splitlines():
            if line.startswith("apiserver_request_total") and re.search(r'verb="(POST|PATCH|PUT|DELETE|APPLY)"', line):
                resource = re.search(r'resource="([^"]*)"', line)
                subresource = re.search(r'subresource="([^"]*)"', line)
                name = (resource[1] if resource else "", subresource[1] if subresource else "")
                if name in (("pods", ""), ("services", ""), ("events", ""), ("trainjobs", "status")):
                    total += int(float(line.rsplit(" ", 1)[1]))
        return total


@contextmanager
def operator() -> Iterator[Operator]:
    """Start a server and an operator."""
    state = Path(tempfile.mkdtemp(prefix="elastrain-benchmark-"))
    api, etcd, port = _free_ports(3)
    plane = ControlPlane(state, "127.0.0.1", port=api, etcd_port=etcd)
    process = None
    try:
        plane.certify()
        plane.start_api()
        plane.start_controllers()
        plane.kubectl("apply", "-f", str(REPOSITORY / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd/trainjobs.elastrain.dev", "--timeout=30s")
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        certificate.cert_chain_pems[0].write_to_path(state / "tls.crt")
        certificate.private_key_pem.write_to_path(state / "tls.key")
        authority.cert_pem.write_to_path(state / "ca.crt")
        argv = [sys.executable, "-m", "elastrain", "operator", "--coordinator-url", f"https://localhost:{port}",
                "--tls-dir", str(state), "--port", str(port), "--lease-namespace", "default"]  # fmt: skip
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PYTHONPATH": str(REPOSITORY / "operator")}
        with (state / "operator.log").open("wb") as log:
            process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        eventually(lambda: "leads now" in (state / "operator.log").read_text(), "the operator to lead")
        time.sleep(2)  # let its start-up be over, it is measured apart
        yield Operator(plane, process)
    finally:
        if process:
            process.terminate()
            process.wait(30)
        plane.stop()
        shutil.rmtree(state, ignore_errors=True)


def eventually(look: Callable[[], bool], what: str, seconds: float = 600) -> float:
    """Wait; return the seconds that it took."""
    start = time.monotonic()
    while not look():
        if time.monotonic() > start + seconds:
            raise TimeoutError(what)
        time.sleep(0.2)
    return time.monotonic() - start


def submit(plane: ControlPlane, jobs: int, nodes: int) -> None:
    """Create jobs of so many nodes each."""
    template = {"spec": {"containers": [{"name": "trainer", "image": "none:1"}]}}
    items = [
        {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": f"job{number}"},
            "spec": {"nodes": nodes, "template": template},
        }
        for number in range(jobs)
    ]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("create", "-n", "default", "-f", "-", input_text=body)


def names(plane: ControlPlane) -> set[str]:
    """Return the uids of the pods that are not being deleted."""
    path = "{range .items[*]}{.metadata.uid}{'|'}{.metadata.deletionTimestamp}{'\\n'}{end}"
    rows = plane.kubectl("get", "pods", "-n", "default", "-o", f"jsonpath={path}").splitlines()
    return {row.split("|")[0] for row in rows if row.endswith("|")}


def course(jobs: int, nodes: int) -> dict[str, float]:
    """Start jobs and replace all their pods once; return what that cost."""
    pods = jobs * nodes
    with operator() as running:
        idle, cpu, writes = running.memory, running.cpu, running.writes()
        submit(running.plane, jobs, nodes)
        seconds = eventually(lambda: len(names(running.plane)) == pods, "all pods to be created")
        started, written = running.cpu - cpu, running.writes() - writes
        old, cpu = names(running.plane), running.cpu
        running.plane.kubectl("delete", "pods", "-n", "default", "--all", "--grace-period=0", "--force", "--wait=false")
        eventually(lambda: len(names(running.plane) - old) == pods, "all pods to be replaced")
        return {
            "pods": pods,
            "jobs": jobs,
            "startSeconds": round(seconds, 1),
            "startCpuSeconds": round(started, 2),
            "churnCpuSeconds": round(running.cpu - cpu, 2),
            "writesPerJob": round(written / jobs, 2),
            "idleMiB": round(idle, 1),
            "loadedMiB": round(running.memory, 1),
        }


def main() -> None:
    """Measure N and 4N and print both with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=5, help="nodes of each job")
    arguments = parser.parse_args()
    few = course(arguments.pods // arguments.nodes, arguments.nodes)
    many = course(4 * arguments.pods // arguments.nodes, arguments.nodes)
    ratios = {name: round(many[name] / few[name], 2) for name in ("startCpuSeconds", "churnCpuSeconds")}
    print(json.dumps({"N": few, "4N": many, "ratio": ratios}, indent=1))


if __name__ == "__main__":
    main()
