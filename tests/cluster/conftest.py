"""One cluster for all tests, with the chart installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from tests.cluster.bench.node import Node
from tests.cluster.target import NAMESPACE, RELEASE, Target, target


@pytest.fixture(scope="session")
def bare() -> Iterator[Target]:
    """A cluster with nothing of ours on it."""
    with target(fast=True, name=os.environ.get("ELASTRAIN_CLUSTER", f"test-{os.getpid()}")) as found:
        yield found


@pytest.fixture(scope="session")
def cluster(bare: Target) -> Iterator[Target]:
    """A cluster on which the operator runs."""
    bare.install()
    yield bare
    bare.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")


@pytest.fixture
def namespace(bare: Target) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t{os.urandom(4).hex()}"
    bare.kubectl("create", "namespace", name)
    yield name
    bare.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def nodes(bare: Target) -> Iterator[Callable[[str], Node]]:
    """The nodes by name, to be made to fail; all of them are ready again when the test is over."""
    if bare.bench is None:
        pytest.skip("this test makes nodes fail, and KUBECONFIG names a cluster whose nodes are not ours")
    touched: dict[str, Node] = {}

    def by_name(name: str) -> Node:
        return touched.setdefault(name, bare.node(name))

    yield by_name
    for node in touched.values():
        node.restore()
    bare.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=90s")
