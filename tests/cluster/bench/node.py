"""One node: its namespaces, its disk and its three daemons, and the ways in which it can fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.cluster.bench import network, tools
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.images import clone
from tests.cluster.bench.layout import CONTROL_PLANE_IP, HERE, POD_NET, BenchError, Cluster, node_ip
from tests.cluster.bench.process import (
    alive,
    attempt,
    daemon,
    kill,
    kill_all,
    last_lines,
    pid_of,
    record,
    run,
    wait_for,
)

CGROUPS = Path("/sys/fs/cgroup")


class Node:
    """A node of a cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.index = int(name.removeprefix("node"))
        self.state = cluster.node_state(name)

    @property
    def pidfile(self) -> Path:
        """Holds the process id of the node's PID 1, as the machine sees it."""
        return self.state / "init.pid"

    def create(self, plane: ControlPlane, images: Path, torch: Path, fast: bool) -> None:
        """Give the node a disk and credentials."""
        self.state.mkdir(parents=True, exist_ok=True)
        clone(images, self.state / "disk/var/lib/containerd")
        names = (f"DNS:{self.name}", f"IP:{node_ip(self.index)}")
        cert, key = plane.authority.issue(self.name, f"/O=system:nodes/CN=system:node:{self.name}", names)
        plane.authority.kubeconfig(self.state / "kubelet.kubeconfig", plane.server, cert, key)
        (self.state / "kubelet.json").write_text(json.dumps(_kubelet(self, plane, cert, key, fast)))
        (self.state / "proxy.json").write_text(json.dumps(_proxy(plane)))
        (self.state / "torch").write_text(str(torch))

    def boot(self, binaries: Path) -> None:
        """Start the node on the disk that it has, as after a power cut."""
        if alive(self.pidfile):
            raise BenchError(f"{self.name} runs already")
        for hierarchy in _hierarchies():
            folder = CGROUPS / hierarchy / self.cluster.cgroup / self.name
            _remove_cgroup(folder)
            folder.mkdir(parents=True, exist_ok=True)
        cpuset = CGROUPS / "cpuset"
        for folder in (cpuset / self.cluster.cgroup, cpuset / self.cluster.cgroup / self.name):
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((cpuset / name).read_text())
        shutil.rmtree(self.state / "disk/run", ignore_errors=True)
        (self.state / "ended").unlink(missing_ok=True)
        environment = {
            "STATE": str(self.state),
            "TOOLS": str(binaries),
            "CGROUP": self.cluster.cgroup,
            "TORCH": (self.state / "torch").read_text(),
            "ADDRESS": node_ip(self.index),
            "POD_CIDR": f"{POD_NET}.{self.index}.0/24",
            "DNS": CONTROL_PLANE_IP,
        }
        argv: list[str | Path] = [*network.inside(self.cluster.node_netns(self.name)), "unshare", "--mount", "--uts"]
        argv += ["--pid", "--fork", "--kill-child", "--mount-proc", HERE / "node-init.sh", self.name, str(self.index)]
        outer = daemon(argv, self.state / "init.log", self.state / "unshare.pid", environment)
        wait_for(lambda: bool(_children(outer)), 10, f"{self.name}'s first process")
        record(self.pidfile, _children(outer)[0])

    @property
    def daemons(self) -> dict[str, tuple[Path, Path]]:
        """The files of the node's first process, which starts the others."""
        return {f"{self.name}'s first process": (self.pidfile, self.state / "init.log")}

    def check(self) -> None:
        """Raise a BenchError if one of the node's daemons ended since its boot."""
        ended = self.state / "ended"
        for line in ended.read_text().splitlines() if ended.exists() else ():
            name, code = line.split()
            raise BenchError(f"{name} of {self.name} ended with {code}:\n{last_lines(self.state / f'{name}.log')}")

    def daemon_pid(self, name: str) -> int:
        """Return the machine's process id of one of the node's daemons, waiting a while for a node that boots."""
        found: list[int] = []

        def look() -> bool:
            init = pid_of(self.pidfile)
            if init is None:
                raise BenchError(f"{self.name} does not run")
            found[:] = [pid for pid in _children(init) if _program(pid) == name[:15]]
            return bool(found)

        wait_for(look, 20, f"{name} on {self.name}")
        return found[0]

    def stop(self) -> None:
        """Freeze the kubelet: the node hangs, its containers run on."""
        os.kill(self.daemon_pid("kubelet"), signal.SIGSTOP)

    def resume(self) -> None:
        """Let the kubelet go on."""
        os.kill(self.daemon_pid("kubelet"), signal.SIGCONT)

    def crash(self) -> None:
        """Cut the power: everything on the node dies at once."""
        kill(self.pidfile)

    def cut(self) -> None:
        """Take the node off the network."""
        network.link(self.cluster, self.index, "down")

    def join(self) -> None:
        """Put the node back on the network."""
        network.link(self.cluster, self.index, "up")

    def restore(self) -> None:
        """Bring the node back, whatever was done to it."""
        if not alive(self.pidfile):
            self.boot(tools.folder())
        self.resume()
        self.join()

    def execute(self, *argv: str) -> str:
        """Run a command on the node and return what it prints."""
        return run(*self.inside, *argv)

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs it on the node."""
        init = pid_of(self.pidfile)
        if init is None:
            raise BenchError(f"{self.name} does not run; `node boot {self.name}` starts it")
        return ("nsenter", "-t", str(init), "-m", "-u", "-p", "-n", "-C")

    def kill(self) -> None:
        """End everything on the node, also if it was only half started."""
        kill(self.pidfile)
        kill(self.state / "unshare.pid")


def check_machine() -> None:
    """Raise a BenchError if nodes cannot be made on this machine."""
    if os.geteuid() != 0:
        raise BenchError("the test cluster makes namespaces and needs root")
    if not (CGROUPS / "memory/cgroup.procs").exists():
        raise BenchError(
            f"the test cluster's nodes need the hierarchies of cgroup v1 below {CGROUPS}, which this machine does not "
            "have (boot it with systemd.unified_cgroup_hierarchy=0, or set KUBECONFIG to run the tests on a cluster)"
        )


def _hierarchies() -> list[str]:
    return sorted(path.name for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())


def cgroups(cluster: Cluster) -> list[Path]:
    """Return the cluster's folder in every hierarchy, there or not."""
    return [CGROUPS / hierarchy / cluster.cgroup for hierarchy in _hierarchies()]


def _members(folder: Path) -> Iterator[int]:
    for procs in folder.rglob("cgroup.procs"):
        try:
            yield from (int(pid) for pid in procs.read_text().split())
        except OSError:
            continue


def _remove_cgroup(folder: Path) -> bool:
    if folder.exists():
        attempt("find", folder, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
    return not folder.exists()


def remove_cgroups(cluster: Cluster) -> None:
    """End what still runs in the cluster's cgroups and remove them; the kernel lets go of the dead step by step."""
    end = time.monotonic() + 20
    folders = cgroups(cluster)
    while folders and time.monotonic() < end:
        for folder in folders:
            kill_all(partial(_members, folder), 5)
        folders = [folder for folder in folders if not _remove_cgroup(folder)]
        if folders:
            time.sleep(0.1)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _kubelet(node: Node, plane: ControlPlane, cert: Path, key: Path, fast: bool) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node_ip(node.index),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.state / "pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(cert),
        "tlsPrivateKeyFile": str(key),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDNS": [CONTROL_PLANE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.state / "resolv.conf"),
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": False,
        "registerWithTaints": [],
        **({"nodeStatusUpdateFrequency": "4s", "nodeLeaseDurationSeconds": 8} if fast else {}),
    }


def _proxy(plane: ControlPlane) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(plane.state / "proxy.kubeconfig")},
        "clusterCIDR": f"{POD_NET}.0.0/16",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # These sysctls are read-only outside the first network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    }
