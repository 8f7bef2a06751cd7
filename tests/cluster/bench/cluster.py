"""The whole cluster: up, down, and commands inside it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.cluster.bench import images, network, tools
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import CACHE, CONTROL_PLANE_IP, BenchError, Cluster
from tests.cluster.bench.node import Node, remove_cgroups
from tests.cluster.bench.process import attempt, daemon, kill, wait_for

CORE = """\
cluster.local in-addr.arpa {{
  bind {address}
  errors
  kubernetes {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
. {{
  bind {address}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def plane_of(cluster: Cluster, fast: bool = False) -> ControlPlane:
    """Return the control plane of a cluster."""
    return ControlPlane(cluster.state, CONTROL_PLANE_IP, inside=network.inside(cluster.netns), fast=fast)


def up(cluster: Cluster, nodes: int = 3, fast: bool = False) -> None:
    """Bring a cluster up: control plane, name service, nodes, all ready.

    Raises:
        BenchError: it is up already, or a part did not come up; what was begun is removed.

    """
    if os.geteuid() != 0:
        raise BenchError("the test cluster makes namespaces and needs root")
    if cluster.state.exists():
        raise BenchError(f"the cluster '{cluster.name}' exists already: {cluster.state}; take it down first")
    tools.ensure_packages()
    images.check()
    store, torch = images.store(), images.torch()
    start = time.monotonic()
    try:
        _up(cluster, nodes, fast, store, torch)
    except BaseException:
        down(cluster)
        raise
    print(f"{nodes} nodes ready after {time.monotonic() - start:.1f} s; KUBECONFIG={cluster.kubeconfig}", flush=True)


def _up(cluster: Cluster, nodes: int, fast: bool, store: Path, torch: Path) -> None:
    cluster.state.mkdir(parents=True)
    network.up(cluster)
    plane = plane_of(cluster, fast)
    plane.certify()
    plane.start_api()
    plane.start_controllers()
    _start_dns(cluster, plane)
    plane.kubectl(
        "create", "clusterrolebinding", "bench-proxy", "--clusterrole=system:node-proxier", "--user=system:kube-proxy"
    )
    members = [Node(cluster, f"node{index + 1}") for index in range(nodes)]
    for member in members:
        member.create(plane, store, torch, fast)
    daemons = {**plane.daemons, **{k: v for member in members for k, v in member.logs.items()}}
    wait_for(lambda: _ready_nodes(plane) == nodes, 120, f"{nodes} nodes to be ready", daemons)
    wait_for(lambda: _has_account(plane), 30, "the default service account", daemons)


def _start_dns(cluster: Cluster, plane: ControlPlane) -> None:
    folder = cluster.state / "dns"
    folder.mkdir()
    (folder / "Corefile").write_text(CORE.format(address=CONTROL_PLANE_IP, kubeconfig=cluster.kubeconfig))
    argv = [*network.inside(cluster.netns), plane.binaries / "coredns", "-conf", folder / "Corefile"]
    daemon(argv, folder / "log", folder / "pid")


def _ready_nodes(plane: ControlPlane) -> int:
    lines = plane.kubectl("get", "nodes", "--no-headers").splitlines()
    return sum(line.split()[1] == "Ready" for line in lines if len(line.split()) > 1)


def _has_account(plane: ControlPlane) -> bool:
    return "default" in plane.kubectl("get", "serviceaccounts", "--no-headers", "-o", "name")


def down(cluster: Cluster) -> None:
    """Remove a cluster, whole or half made: processes, namespaces, cgroups, mounts, files."""
    for name in cluster.nodes():
        Node(cluster, name).remove()
    kill(cluster.state / "dns/pid")
    if cluster.state.exists():
        plane_of(cluster).stop()
    network.down(cluster)
    remove_cgroups(cluster)
    attempt("rm", "-rf", "--one-file-system", cluster.state)


def environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment in which kubectl and helm speak to the cluster."""
    path = f"{tools.folder()}:{os.environ['PATH']}"
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path, "ELASTRAIN_CLUSTER": cluster.name}


def shell(cluster: Cluster, argv: list[str]) -> int:
    """Run a command in the cluster's network and return its exit code."""
    if not network.exists(cluster.netns):
        raise BenchError(f"the cluster '{cluster.name}' is not up")
    return subprocess.call([*network.inside(cluster.netns), *argv], env=environment(cluster))


def cache_size() -> str:
    """Return how much the caches of the bench take, for people."""
    done = subprocess.run(["du", "-sh", CACHE], capture_output=True, text=True, check=False)
    return done.stdout.split("\t")[0]
