"""Jobs that change while they train: every step is done, and what is learned is what one process learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.followed import Followed, Rows, followed
from tests.cluster.target import Target
from tests.learning import static

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS = 1500


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What one process learns."""
    return static(tmp_path_factory.mktemp("static"), STEPS)


@pytest.fixture
def job(cluster: Target, namespace: str) -> Iterator[Followed]:
    """A job that is yet to be submitted."""
    with followed(cluster, namespace) as found:
        yield found


def test_a_job_changes_its_size_without_a_stop(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=1)
    first = job.trains(1)["round"]["number"]
    job.scale(2)
    job.trains(2, after=first)
    job.scale(4)
    found = job.trains(4, after=first + 1)
    assert found["round"]["members"] == ["job-0-0", "job-1-0", "job-2-0", "job-3-0"]
    job.scale(3)
    found = job.trains(3, after=first + 2)
    assert found["round"]["reason"] == "NodesRemoved"
    job.cluster.eventually(lambda: len(job.pods) == 3, "the surplus pod to be gone")
    last = job.completes(expected, sizes=[1, 2, 4, 3])
    assert last["round"]["number"] == first + 3
    assert last["failures"]["counted"] == 0
    assert job.events("Recovering") == 0
    assert last["goodput"]["lostSeconds"]["scaling"] == 0
    assert last["goodput"]["lostSeconds"]["recovering"] == 0
