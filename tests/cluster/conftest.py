"""One cluster for all tests, with the chart installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
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
