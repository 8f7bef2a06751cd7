"""Sessions in real workers under real agents: what is learned across changes of size is what a static run learns."""

from __future__ import annotations

import os
import signal

import pytest
from tests.agent.conftest import Job
from tests.agent.test_agent import children
from tests.learning import LINE, SCRIPT, check, lines, static, worlds

from elastrain.planning import Directive

pytestmark = pytest.mark.timeout(240)

STEPS = 400
PODS = tuple(f"job-{index}-0" for index in range(4))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[float, int, float]]:
    """What one process without any agent learns."""
    return static(tmp_path_factory.mktemp("static"), STEPS)


def start(job: Job, *indices: int, pause: float = 0.2, steps: int = STEPS) -> None:
    job.script.write_text(SCRIPT)
    for index in indices:
        job.start(index, str(job.script), str(steps), str(pause))


def formed(job: Job, number: int, *names: str) -> None:
    for name in names:
        job.eventually(
            lambda name=name: (agent := job.agent(name)) and agent.in_place and agent.formed >= number,
            f"{name} to have formed round {number}",
        )


def ends(job: Job, number: int, *names: str) -> None:
    (job.folder / "fast").touch()
    for name in names:
        job.waits_for(name, {"finished"}, number)


def reaches(job: Job, step: int) -> None:
    job.eventually(lambda: any(int(s) >= step for s, *_ in LINE.findall(logs(job))), f"step {step}")


def logs(job: Job) -> str:
    return "\n".join(pod.log for pod in job.pods.values())


def learned_the_same(job: Job, expected: dict[int, tuple[float, int, float]], *, sizes: list[int]) -> None:
    """All steps were done, with the static run's losses and rates, at these world sizes one after the other."""
    found = lines(*(pod.log for pod in job.pods.values()))
    check(found, expected)
    assert worlds(found) == sizes


def test_a_member_that_stands_still_is_cut_off(job: Job, expected: dict[int, tuple[float, int, float]]) -> None:
    """No connection breaks, so that only the word of the round ends the waiting."""
    start(job, 0, 1, 2)
    number = job.round(*PODS[:3])
    formed(job, number, *PODS[:3])
    reaches(job, 5)
    still = [job.pods[PODS[2]].process.pid, *children(job.pods[PODS[2]].process.pid)]
    for pid in still:
        os.kill(pid, signal.SIGSTOP)
    try:
        number = job.round(*PODS[:2], continuing=PODS[:2])
        formed(job, number, *PODS[:2])
        ends(job, number, *PODS[:2])
    finally:
        for pid in still:
            os.kill(pid, signal.SIGCONT)
    learned_the_same(job, expected, sizes=[3, 2])


def test_all_save_when_they_are_told_to_leave(job: Job) -> None:
    start(job, 0, 1, steps=10_000)
    number = job.round(*PODS[:2])
    formed(job, number, *PODS[:2])
    reaches(job, 3)
    job.publish(Directive(leaving=dict.fromkeys(PODS[:2], "the job is suspended")))
    for name in PODS[:2]:
        assert job.pods[name].exits() == 0
        assert job.pods[name].last_word["outcome"] == "left"
    assert int((job.folder / "saved").read_text()) >= 3


def test_another_model_is_refused_and_disturbs_nobody(job: Job) -> None:
    start(job, 0, steps=10_000)
    number = job.round(PODS[0])
    formed(job, number, PODS[0])
    other = job.folder / "other.py"
    other.write_text(SCRIPT.replace("Linear(8, 16)", "Linear(8, 17)").replace("Norm1d(16", "Norm1d(17").replace(
        "Linear(16, 1)", "Linear(17, 1)"))  # fmt: skip
    job.start(1, str(other), "10000", "0.2")
    number = job.round(*PODS[:2], continuing=PODS[:1])
    failure = job.waits_for(PODS[1], {"failed"}, number).failure
    assert failure is not None
    assert "every node needs the same image and a script that builds the same model" in failure.message
    at = max(lines(job.pods[PODS[0]].log))
    reaches(job, at + 5)
