"""The course of rounds, as agents and workers live it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import JOB, REPOSITORY, Job

from elastrain.planning import Directive

pytestmark = pytest.mark.timeout(180)

PODS = ("job-0-0", "job-1-0")


def order(job: Job, number: int, who: str, code: str) -> None:
    part = job.folder / ".part"
    part.write_text(code)
    part.rename(job.folder / f"do-{number}-{who}")


def begin(job: Job) -> int:
    job.start(0)
    job.start(1)
    number = job.round(*PODS)
    met(job, number)
    return number


def met(job: Job, number: int, names: tuple[str, ...] = PODS) -> None:
    """The workers have met in one group, and node ranks are the order of members."""
    for rank, name in enumerate(names):
        path = job.folder / f"met-{number}-{rank}"
        text = job.eventually(lambda path=path: path.exists() and path.read_text(), f"rank {rank} to meet its peers")
        assert text == f"{name} {len(names)} {len(names)}"


def test_a_round_is_trained_to_its_end(job: Job) -> None:
    number = begin(job)
    assert job.waits_for("job-0-0", {"running"}, number)
    order(job, number, "all", "sys.exit(0)")
    for name in PODS:
        job.waits_for(name, {"finished"}, number)
    job.end(complete=True)
    for pod in job.pods.values():
        assert pod.exits() == 0
        assert pod.last_word == {"version": 1, "outcome": "finished", "round": number}


def test_a_failure_is_reported_with_its_cause_and_the_next_round_trains(job: Job) -> None:
    number = begin(job)
    (job.folder / f"loop-{number}").touch()
    order(job, number, "1", "raise ValueError('the data are bad')")
    failed = job.waits_for("job-1-0", {"failed"}, number).failure
    assert failed is not None
    assert (failed.reason, failed.rank, failed.exit_code) == ("WorkerFailed", 1, 1)
    assert failed.message.startswith("ValueError: the data are bad\n")
    assert "script.py" in failed.message
    peer = job.waits_for("job-0-0", {"failed"}, number).failure
    assert peer is not None
    assert (peer.reason, peer.rank) == ("PeerLost", 0)
    again = job.round(*PODS)
    met(job, again)
    job.end(complete=False)
    # The workers of the new round had not failed when the job did.
    assert [pod.exits() for pod in job.pods.values()] == [0, 0]


def test_the_agent_of_a_failed_job_says_why(job: Job) -> None:
    number = begin(job)
    order(job, number, "1", "sys.exit(7)")
    job.waits_for("job-1-0", {"failed"}, number)
    job.end(complete=False)
    assert job.pods["job-1-0"].exits() == 81
    word = job.pods["job-1-0"].last_word
    assert (word["outcome"], word["reason"], word["rank"], word["exitCode"]) == ("userError", "WorkerFailed", 1, 7)


def test_a_killed_worker_is_told_by_its_signal(job: Job) -> None:
    number = begin(job)
    order(job, number, "0", "import signal; os.kill(os.getpid(), signal.SIGKILL)")
    failure = job.waits_for("job-0-0", {"failed"}, number).failure
    assert failure is not None
    assert failure.exit_code == -9
    assert failure.message.startswith("killed by SIGKILL")


def test_a_new_round_stops_the_workers_of_the_old_one(job: Job) -> None:
    begin(job)
    job.start(2)
    names = (*PODS, "job-2-0")
    number = job.round(*names)
    met(job, number, names)
    assert not [pod for pod in job.pods.values() if pod.process.poll() is not None]


def test_a_rank_that_ends_early_is_finished_before_its_peers_end(job: Job) -> None:
    number = begin(job)
    order(job, number, "1", "os._exit(0)")
    job.waits_for("job-1-0", {"finished"}, number)
    (job.folder / f"loop-{number}").touch()
    failure = job.waits_for("job-0-0", {"failed"}, number).failure
    assert failure is not None
    assert failure.reason == "PeerLost"
    met(job, job.round(*PODS))


def test_sigterm_before_a_round(job: Job) -> None:
    pod = job.start(0)
    job.waits_for("job-0-0", {"ready"})
    pod.process.send_signal(signal.SIGTERM)
    assert pod.exits() == 0
    assert pod.last_word["outcome"] == "left"


def test_sigterm_reaches_the_workers_which_may_save(job: Job) -> None:
    number = begin(job)
    save = """
import signal
def save(*_):
    (here / 'saved').touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
order.unlink()
(here / 'armed').touch()
"""
    order(job, number, "1", save)
    job.eventually(lambda: (job.folder / "armed").exists(), "the handler to be set")
    pod = job.pods["job-1-0"]
    pod.process.send_signal(signal.SIGTERM)
    assert pod.exits() == 0
    assert (job.folder / "saved").exists()
    assert pod.last_word["outcome"] == "left"


def test_workers_that_do_not_stop_are_killed(job: Job) -> None:
    job.start(0, ELASTRAIN_LEAVE_SECONDS="1")
    number = job.round("job-0-0")
    met(job, number, ("job-0-0",))
    order(
        job,
        number,
        "0",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\norder.unlink()\n(here / 'deaf').touch()",
    )
    job.eventually(lambda: (job.folder / "deaf").exists(), "the worker to be deaf")
    pod = job.pods["job-0-0"]
    workers = children(pod.process.pid)
    assert workers
    pod.process.send_signal(signal.SIGTERM)
    assert pod.exits() == 0
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


def test_a_new_coordinator_is_told_the_state_again(job: Job) -> None:
    number = begin(job)
    job.waits_for("job-0-0", {"running"}, number)
    before = children(job.pods["job-0-0"].process.pid)
    job.restart("operator-2")
    assert job.waits_for("job-0-0", {"running"}, number).ports.rendezvous > 0
    assert job.waits_for("job-1-0", {"running"}, number)
    assert set(before) <= set(children(job.pods["job-0-0"].process.pid))  # training went on


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("broken.py",), 1, "SyntaxError"),
        (("parser.py", "--stepz", "3"), 2, "the script refused its arguments, --stepz 3: "),
    ],
)
def test_what_cannot_be_run_is_told_apart(job: Job, arguments: tuple[str, ...], code: int, text: str) -> None:
    (job.folder / "broken.py").write_text("def f(:\n")
    (job.folder / "parser.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    job.start(0, *arguments)
    number = job.round("job-0-0")
    failure = job.waits_for("job-0-0", {"failed"}, number).failure
    assert failure is not None
    assert (failure.reason, failure.exit_code) == ("InvalidArguments", code)
    assert text in failure.message
    assert "[rank 0]" in job.pods["job-0-0"].log


def test_told_to_leave(job: Job) -> None:
    number = begin(job)
    job.publish(Directive(round=job.directive.round, leaving={"job-1-0": "the job wants fewer nodes"}))
    assert job.pods["job-1-0"].exits() == 0
    assert job.pods["job-1-0"].last_word == {"version": 1, "outcome": "left", "round": number}


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text)}


@pytest.mark.timeout(300)
def test_the_example_learns_the_same_as_under_torchrun_and_resumes_at_another_size(job: Job) -> None:
    script = str(REPOSITORY / "examples/language_model/train.py")
    size = ("--max_steps", "30", "--width", "32", "--layers", "1", "--length", "32", "--log_steps", "5")
    ours = {"PYTHONPATH": str(REPOSITORY / "trainer_image"), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script, *size],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        check=True,
        cwd=job.folder,
    )
    expected = losses(plain.stdout)
    assert expected[30] < expected[1] - 1
    # First ten steps on one node, then the rest on two.
    checkpoints = str(job.folder / "checkpoints")
    shared = ("--checkpoints", checkpoints, "--save_steps", "10")
    job.start(0, script, *size, *shared)
    number = job.round("job-0-0")
    job.eventually(lambda: Path(checkpoints, "step-10", "elastrain.json").exists(), "the first checkpoint")
    job.start(1, script, *size, *shared)
    number = job.round(*PODS)
    for name in PODS:
        job.waits_for(name, {"finished"}, number)
    log = job.pods["job-0-0"].log
    assert "resumed after step" in log
    got = losses(log)
    assert got.keys() == expected.keys()
    assert all(abs(got[step] - expected[step]) < 1e-5 for step in expected), (got, expected)
    progress = job.coordinator.progress(JOB)
    assert progress is not None
    assert (progress.step, progress.total_steps) == (30, 30)
    checkpoint = job.coordinator.checkpoint(JOB)
    assert checkpoint is not None
    assert checkpoint.step == 30
