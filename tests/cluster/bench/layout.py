"""Where things are: folders, addresses and names of one cluster."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastrain"

VERSION = "v1.36.3"
"""The Kubernetes version of the bench."""

NODE_NET, POD_NET, SERVICE_NET = "10.66.0", "10.68", "10.67.0"
CONTROL_PLANE_IP = f"{NODE_NET}.1"

OPERATOR_IMAGE = "localhost/elastrain-operator:test"
TRAINER_IMAGE = "localhost/elastrain-trainer:test"


class BenchError(Exception):
    """The bench cannot do what was asked; the text says why and what to do."""


@dataclass(frozen=True)
class Cluster:
    """The paths and names of one cluster on this machine."""

    name: str = "default"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", self.name) or re.search(r"-node\d+$", self.name):
            raise BenchError(
                f"'{self.name}' cannot name a cluster: use at most 32 of a-z, 0-9 and -, with no -node and number last"
            )

    @property
    def state(self) -> Path:
        """The folder of everything that is gone after `down`."""
        return CACHE / "clusters" / self.name

    @property
    def owner(self) -> Path:
        """Names the process that the cluster is for, if there is one."""
        return self.state / "owner.pid"

    @property
    def netns(self) -> str:
        """The network namespace of the control plane and the bridge."""
        return f"elastrain-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the administrator."""
        return self.state / "admin.kubeconfig"

    @property
    def cgroup(self) -> str:
        """The folder of the cluster in every cgroup hierarchy."""
        return f"elastrain-{self.name}"

    @property
    def namespaces(self) -> list[str]:
        """The network namespaces that exist."""
        found = Path("/run/netns").glob(f"{self.netns}*")
        return sorted(p.name for p in found if re.fullmatch(rf"{self.netns}(-node\d+)?", p.name))

    def node_netns(self, node: str) -> str:
        """The network namespace of a node."""
        return f"{self.netns}-{node}"

    def node_state(self, node: str) -> Path:
        """The disk of a node."""
        return self.state / "nodes" / node

    def nodes(self) -> list[str]:
        """Names of the nodes that exist."""
        root = self.state / "nodes"
        return sorted(p.name for p in root.iterdir()) if root.is_dir() else []


def node_ip(index: int) -> str:
    """Return the address of the node with this index, from 1."""
    return f"{NODE_NET}.{10 + index}"
