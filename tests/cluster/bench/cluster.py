"""The whole cluster: up, down, and commands inside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.bench import images, network, tools
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import CACHE, CONTROL_PLANE_IP, BenchError, Cluster
from tests.cluster.bench.node import Node, cgroups, check_machine, remove_cgroups
from tests.cluster.bench.process import (
    alive,
    attempt,
    daemon,
    interruptible,
    kill_all,
    locked,
    record,
    wait_for,
)

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


def up(cluster: Cluster, nodes: int = 3, fast: bool = False, owner: int | None = None) -> None:
    """Bring a cluster up: control plane, name service, nodes, all ready.

    Args:
        cluster: its name and places.
        nodes: how many.
        fast: whether lost nodes are noticed in seconds.
        owner: the process that the cluster is for; if that dies and leaves it, the next `up` of any cluster
            removes it.

    Raises:
        BenchError: it is up already, or a part did not come up; what was begun is removed.

    """
    check_machine()
    _refuse_second(cluster)
    tools.ensure_packages()
    images.check()
    store, torch = images.store(), images.torch()
    remove_abandoned()
    start = time.monotonic()
    with interruptible():
        try:
            cluster.state.mkdir(parents=True)
        except FileExistsError:
            _refuse_second(cluster)
        try:
            if owner is not None:
                record(cluster.owner, owner)
            _up(cluster, nodes, fast, store, torch)
        except BaseException as error:
            if isinstance(error, BenchError):
                error.add_note(f"all logs are kept in {_keep_logs(cluster)}")
            down(cluster)
            raise
    print(f"{nodes} nodes ready after {time.monotonic() - start:.1f} s; KUBECONFIG={cluster.kubeconfig}", flush=True)


def _keep_logs(cluster: Cluster) -> Path:
    """Copy the logs of a cluster that did not come up to where the next such one puts its own."""
    target = CACHE / "last-failure"
    shutil.rmtree(target, ignore_errors=True)
    for log in (*cluster.state.rglob("*.log"), cluster.state / "dns/log"):
        if log.exists() and "disk" not in log.relative_to(cluster.state).parts:
            copy = target / log.relative_to(cluster.state)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, copy)
    return target


def _refuse_second(cluster: Cluster) -> None:
    if cluster.state.exists():
        raise BenchError(
            f"the cluster '{cluster.name}' exists already ({cluster.state}); `down` removes it, --name starts another"
        )


def remove_abandoned() -> None:
    """Remove the clusters whose owners died without doing so."""
    with locked(CACHE / "abandoned.lock"):
        for state in sorted((CACHE / "clusters").glob("*")):
            cluster = Cluster(state.name)
            if cluster.owner.exists() and not alive(cluster.owner):
                print(f"removing the cluster '{cluster.name}', whose owner is gone", flush=True)
                down(cluster)


def _up(cluster: Cluster, nodes: int, fast: bool, store: Path, torch: Path) -> None:
    network.up(cluster)
    plane = plane_of(cluster, fast)
    plane.certify()
    members = [Node(cluster, f"node{index + 1}") for index in range(nodes)]
    with ThreadPoolExecutor(2) as pool:
        disks = [pool.submit(member.create, plane, store, torch, fast) for member in members]
        plane.start_api()
        for disk in disks:
            disk.result()
    plane.start_controllers()
    _start_dns(cluster, plane)
    network.connect(cluster, {member.name: member.index for member in members})
    for member in members:
        member.boot(plane.binaries)
    daemons = {**plane.daemons, "coredns": _dns_files(cluster)}
    daemons |= {name: files for member in members for name, files in member.daemons.items()}

    def ready() -> bool:
        for member in members:
            member.check()
        return _ready_nodes(plane) == nodes

    plane.kubectl(
        "create", "clusterrolebinding", "bench-proxy", "--clusterrole=system:node-proxier", "--user=system:kube-proxy"
    )
    wait_for(ready, 120, f"{nodes} nodes to be ready", daemons)
    wait_for(lambda: _has_account(plane), 30, "the default service account", daemons)


def _start_dns(cluster: Cluster, plane: ControlPlane) -> None:
    folder = cluster.state / "dns"
    folder.mkdir()
    (folder / "Corefile").write_text(CORE.format(address=CONTROL_PLANE_IP, kubeconfig=cluster.kubeconfig))
    pidfile, log = _dns_files(cluster)
    inside = network.inside(cluster.netns)
    daemon([*inside, plane.binaries / "coredns", "-conf", folder / "Corefile"], log, pidfile)


def _dns_files(cluster: Cluster) -> tuple[Path, Path]:
    return cluster.state / "dns/pid", cluster.state / "dns/log"


def _ready_nodes(plane: ControlPlane) -> int:
    lines = plane.kubectl("get", "nodes", "--no-headers").splitlines()
    return sum(line.split()[1] == "Ready" for line in lines if len(line.split()) > 1)


def _has_account(plane: ControlPlane) -> bool:
    return "default" in plane.kubectl("get", "serviceaccounts", "--no-headers", "-o", "name")


def down(cluster: Cluster) -> None:
    """Remove a cluster, whole or half made: processes, namespaces, cgroups, mounts, files.

    What runs is found by the namespaces and cgroups that it is in, so that nothing on record is needed.

    Raises:
        BenchError: something could not be removed.

    """
    for name in cluster.nodes():
        Node(cluster, name).kill()
    kill_all(lambda: network.processes(cluster))
    remove_cgroups(cluster)
    network.down(cluster)
    attempt("rm", "-rf", "--one-file-system", cluster.state)
    left = [path for path in leftovers(cluster) if path.startswith("/")]
    if left:
        raise BenchError(f"these could not be removed: {' '.join(left)}")


def leftovers(cluster: Cluster) -> list[str]:
    """Return everything of a cluster that is on the machine: namespaces, cgroups, folders, processes, mounts."""
    state = str(cluster.state)
    found = [f"/run/netns/{name}" for name in cluster.namespaces]
    found += [str(path) for path in (*cgroups(cluster), cluster.state) if path.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            mounts = (process / "mountinfo").read_text()
        except OSError:
            continue
        if any(f"{state}/".encode() in word for word in words) or f" {state}/" in mounts:
            found.append(f"process {process.name}")
    return found


def environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment in which kubectl and helm speak to the cluster."""
    path = f"{tools.folder()}:{os.environ['PATH']}"
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path, "ELASTRAIN_CLUSTER": cluster.name}


def shell(cluster: Cluster, argv: list[str]) -> int:
    """Run a command in the cluster's network and return its exit code."""
    if not network.exists(cluster.netns):
        raise BenchError(f"the cluster '{cluster.name}' is not up; `python3 -m tests.cluster.bench up` starts one")
    return subprocess.call([*network.inside(cluster.netns), *argv], env=environment(cluster))
