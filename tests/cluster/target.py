"""The cluster that tests and the demo run on: the one that KUBECONFIG names, or one of the bench's."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.bench import cluster as clusters
from tests.cluster.bench import network
from tests.cluster.bench.layout import OPERATOR_IMAGE, REPOSITORY, TRAINER_IMAGE, BenchError, Cluster
from tests.cluster.bench.node import Node
from tests.cluster.bench.process import interruptible, run

T = TypeVar("T")
RELEASE, NAMESPACE = "elastrain", "elastrain-system"


@dataclass(frozen=True)
class Target:
    """A cluster, and how to speak to it.

    `bench` is None for a cluster that is not ours: its nodes cannot be made to fail.
    """

    bench: Cluster | None
    operator_image: str
    trainer_image: str

    def _run(self, *argv: str, input_text: str | None = None) -> str:
        inside = network.inside(self.bench.netns) if self.bench else ()
        environment = clusters.environment(self.bench) if self.bench else dict(os.environ)
        program = next(
            (str(Path(p, argv[0])) for p in environment["PATH"].split(":") if Path(p, argv[0]).exists()), argv[0]
        )
        return run(*inside, program, *argv[1:], input_text=input_text, env=environment)

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        """Run kubectl and return what it prints; a BenchError has what it said."""
        return self._run("kubectl", *arguments, input_text=input_text)

    def helm(self, *arguments: str) -> str:
        """Run helm and return what it prints."""
        return self._run("helm", *arguments)

    def get(self, *arguments: str) -> Any:
        """Return objects as JSON; None if the one that was named does not exist."""
        try:
            return json.loads(self.kubectl("get", *arguments, "-o", "json"))
        except BenchError as error:
            if "NotFound" in str(error):
                return None
            raise

    def apply(self, namespace: str, *bodies: dict[str, Any]) -> None:
        """Apply objects in a namespace."""
        body = {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
        self.kubectl("apply", "-n", namespace, "-f", "-", input_text=json.dumps(body))

    def eventually(self, look: Callable[[], T | None], what: str, seconds: float = 90) -> T:
        """Return what `look` finds once it finds something; a BenchError after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > end:
                raise BenchError(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.25)

    def node(self, name: str) -> Node:
        """Return a node that may be made to fail."""
        if self.bench is None:
            raise BenchError("the nodes of this cluster are not ours")
        return Node(self.bench, name)

    def install(self, *values: str) -> str:
        """Install the chart, or upgrade it, and wait until it is ready."""
        repository, tag = self.operator_image.rsplit(":", 1)
        settings = [f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=IfNotPresent", *values]
        return self.helm(
            "upgrade", "--install", RELEASE, str(REPOSITORY / "charts/elastrain"), "--namespace", NAMESPACE,
            "--create-namespace", "--wait", "--timeout", "120s",
            *(word for setting in settings for word in ("--set", setting)),
        )  # fmt: skip

    def process(self, *argv: str, stderr: int | None = None) -> subprocess.Popen[str]:
        """Start kubectl or another program in the cluster's network, its output on a pipe."""
        inside = network.inside(self.bench.netns) if self.bench else ()
        environment = clusters.environment(self.bench) if self.bench else dict(os.environ)
        return subprocess.Popen([*inside, *argv], env=environment, text=True, stdout=subprocess.PIPE, stderr=stderr)


@contextmanager
def target(*, fast: bool = False, nodes: int = 3, name: str = "default") -> Iterator[Target]:
    """Give the cluster to work on; one that was started for it is removed afterwards.

    Args:
        fast: whether lost nodes are noticed in seconds.
        nodes: how many nodes a cluster of the bench has.
        name: of a cluster of the bench; a running one of this name is used and left running.

    """
    if os.environ.get("KUBECONFIG"):
        operator = os.environ.get("ELASTRAIN_OPERATOR_IMAGE")
        trainer = os.environ.get("ELASTRAIN_TRAINER_IMAGE")
        if not operator or not trainer:
            raise BenchError(
                "KUBECONFIG names a cluster: set ELASTRAIN_OPERATOR_IMAGE and ELASTRAIN_TRAINER_IMAGE to images that "
                "it can pull, built from operator/Dockerfile and trainer_image/Dockerfile, or unset KUBECONFIG"
            )
        yield Target(None, operator, trainer)
        return
    bench = Cluster(name)
    if network.exists(bench.netns):
        yield Target(bench, OPERATOR_IMAGE, TRAINER_IMAGE)
        return
    with interruptible():
        try:
            clusters.up(bench, nodes, fast, owner=os.getpid())
            yield Target(bench, OPERATOR_IMAGE, TRAINER_IMAGE)
        finally:
            clusters.down(bench)
