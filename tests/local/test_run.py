"""Jobs as local processes under the real planner and coordinator: every step is done, as one process would."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from tests.learning import static
from tests.local.running import Local, Rows

pytestmark = pytest.mark.timeout(300)

STEPS = 600
Start = Callable[..., Local]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What one process learns."""
    return static(tmp_path_factory.mktemp("static"), STEPS)


def workers(job: Local, pod: str) -> list[int]:
    """Return the process ids of a pod's workers."""
    found = []
    for process in psutil.Process(job.run.nodes[pod].process.pid).children(recursive=True):
        if "LOCAL_RANK" in process.environ():
            found.append(process.pid)
    return found


def test_a_run_changes_its_size_and_completes(local: Start, expected: Rows) -> None:
    job = local(str(STEPS), "0.1", nodes=1)
    number = job.trains(1)
    job.scale(2)
    number = job.trains(2, after=number)
    job.scale(3)
    number = job.trains(3, after=number)
    job.scale(2)
    job.trains(2, after=number)
    job.completes(expected, sizes=[1, 2, 3, 2])
    assert (job.folder / "run/status.json").exists()
    assert "Recovering" not in {event.reason for event in job.events}


def test_losses_of_every_kind_one_after_the_other(local: Start, expected: Rows) -> None:
    job = local(str(STEPS), "0.1", nodes=3, failurePolicy={"backoffSeconds": 0})
    number = job.trains(3)
    (worker,) = workers(job, "job-1-0")
    os.kill(worker, signal.SIGKILL)
    number = job.trains(3, after=number + 1)
    job.delete("job-0-0", grace=0)
    number = job.trains(3, after=number + 1)
    assert job.status.round is not None
    job.delete(job.status.round.members[0])
    number = job.trains(3, after=number + 1)
    job.completes(expected)
    assert job.status.failures.counted == 1


def test_a_silent_node_is_left_out_and_its_return_refused(local: Start, expected: Rows) -> None:
    job = local(str(STEPS), "0.1", nodes=2, failurePolicy={"nodeLossSeconds": 5})
    number = job.trains(2)
    root = psutil.Process(job.run.nodes["job-0-0"].process.pid)
    still = [root, *root.children(recursive=True)]
    for process in still:
        process.suspend()
    number = job.trains(1, after=number)
    for process in still:
        if process.is_running():
            process.resume()
    job.trains(2, after=number)
    assert job.status.round is not None
    assert job.status.round.members == ("job-1-0", "job-0-1")
    job.completes(expected, sizes=[2, 1, 2])
