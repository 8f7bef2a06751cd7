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


def node_up(cluster: Cluster, node: str, index: int, indices: dict[str, int]) -> None:
    """Make a node's namespace, put it on the bridge, and make routes between it and its peers' pods."""
    ns, hub, link = cluster.node_netns(node), cluster.netns, f"v{index}"
    run("ip", "netns", "add", ns)
    run("ip", "-n", hub, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", ns)
    run("ip", "-n", hub, "link", "set", link, "master", BRIDGE, "up")
    run("ip", "-n", ns, "link", "set", "lo", "up")
    run("ip", "-n", ns, "addr", "add", f"{node_ip(index)}/24", "dev", "eth0")
    run("ip", "-n", ns, "link", "set", "eth0", "up")
    # kube-proxy needs a route for the addresses of Services before it rewrites them.
    run("ip", "-n", ns, "route", "replace", f"{SERVICE_NET}.0/24", "via", CONTROL_PLANE_IP)
    run("ip", "-n", hub, "route", "replace", f"{POD_NET}.{index}.0/24", "via", node_ip(index))
    for other, number in indices.items():
        if other != node:
            there = cluster.node_netns(other)
            run("ip", "-n", ns, "route", "replace", f"{POD_NET}.{number}.0/24", "via", node_ip(number))
            run("ip", "-n", there, "route", "replace", f"{POD_NET}.{index}.0/24", "via", node_ip(index))


def link(cluster: Cluster, index: int, state: str) -> None:
    """Set the link of a node `up` or `down`."""
    run("ip", "-n", cluster.netns, "link", "set", f"v{index}", state)


def down(cluster: Cluster) -> None:
    """Remove every namespace of the cluster; links and routes go with them."""
    for path in sorted(Path("/run/netns").glob(f"{cluster.netns}*")) if Path("/run/netns").exists() else ():
        if path.name == cluster.netns or path.name.startswith(f"{cluster.netns}-"):
            attempt("ip", "netns", "del", path.name)
