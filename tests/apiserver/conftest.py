"""A real API server with etcd on loopback, for what needs no node."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.process import interruptible


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ControlPlane]:
    """etcd, API server and controllers; KUBEBUILDER_ASSETS may name a folder with their programs."""
    state = Path(tempfile.mkdtemp(prefix="elastrain-apiserver-"))
    api, etcd = _free_ports(2)
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    more = {"binaries": Path(assets)} if assets else {}
    plane = ControlPlane(state, "127.0.0.1", port=api, etcd_port=etcd, **more)
    with interruptible():
        try:
            plane.certify()
            plane.start_api()
            if (plane.binaries / "kube-controller-manager").exists():
                plane.start_controllers()
            crds = Path(__file__).parents[2] / "crds"
            plane.kubectl("apply", "-f", str(crds))
            plane.kubectl("wait", "--for=condition=Established", "crd/trainjobs.elastrain.dev", "--timeout=30s")
            yield plane
        finally:
            plane.remove()


@pytest.fixture
def namespace(apiserver: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t{os.urandom(4).hex()}"
    apiserver.kubectl("create", "namespace", name)
    yield name
    apiserver.kubectl("delete", "namespace", name, "--wait=false")
