"""The cluster's network: a namespace with the bridge, and one namespace for each node on it.

Nothing of it touches the machine's own namespace, and nothing in it has a route to the outside.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.bench.layout import CONTROL_PLANE_IP, POD_NET, SERVICE_NET, Cluster, node_ip
from tests.cluster.bench.process import attempt, run

BRIDGE = "bench0"


def inside(netns: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it in a network namespace.

    `ip netns exec` would mount /sys anew and hide the cgroups.
    """
    return ("nsenter", f"--net=/run/netns/{netns}")


def exists(netns: str) -> bool:
    """Return whether there is a network namespace of this name."""
    return Path(f"/run/netns/{netns}").exists()


def up(cluster: Cluster) -> None:
    """Make the cluster's namespace with its bridge."""
    ns = cluster.netns
    run("ip", "netns", "add", ns)
    run("ip", "-n", ns, "link", "set", "lo", "up")
    run("ip", "-n", ns, "link", "add", BRIDGE, "type", "bridge")
    run("ip", "-n", ns, "addr", "add", f"{CONTROL_PLANE_IP}/24", "dev", BRIDGE)
    run("ip", "-n", ns, "link", "set", BRIDGE, "up")


def connect(cluster: Cluster, indices: dict[str, int]) -> None:
    """Put nodes on the bridge, each in a namespace of its own, with routes to the pods of all others."""
    for node, index in indices.items():
        _plug(cluster, node, index)
    for node, index in indices.items():
        routes = [(f"{POD_NET}.{other}.0/24", node_ip(other)) for other in indices.values() if other != index]
        # kube-proxy needs a route for the addresses of Services before it rewrites them.
        for target, via in (*routes, (f"{SERVICE_NET}.0/24", CONTROL_PLANE_IP)):
            run("ip", "-n", cluster.node_netns(node), "route", "replace", target, "via", via)


def _plug(cluster: Cluster, node: str, index: int) -> None:
    ns, hub, link = cluster.node_netns(node), cluster.netns, f"v{index}"
    run("ip", "netns", "add", ns)
    run("ip", "-n", hub, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", ns)
    run("ip", "-n", hub, "link", "set", link, "master", BRIDGE, "up")
    run("ip", "-n", ns, "link", "set", "lo", "up")
    run("ip", "-n", ns, "addr", "add", f"{node_ip(index)}/24", "dev", "eth0")
    run("ip", "-n", ns, "link", "set", "eth0", "up")
    run("ip", "-n", hub, "route", "replace", f"{POD_NET}.{index}.0/24", "via", node_ip(index))


def link(cluster: Cluster, index: int, state: str) -> None:
    """Set the link of a node `up` or `down`."""
    run("ip", "-n", cluster.netns, "link", "set", f"v{index}", state)


def down(cluster: Cluster) -> None:
    """Remove every namespace of the cluster; links and routes go with them."""
    for name in cluster.namespaces:
        attempt("ip", "netns", "del", name)


def processes(cluster: Cluster) -> set[int]:
    """Return the processes that live in the cluster's namespaces, as far as they are on record or not."""
    return {int(pid) for name in cluster.namespaces for pid in run("ip", "netns", "pids", name).split()}
