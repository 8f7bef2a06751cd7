"""How long training stands still for changes of size and for losses: sessions under elastrain, and stock torchrun.

Both train the same model in processes of this machine, with steps of about 50 ms. The gap of a change is the time from
the last step before it to the first step after it, without the time of a step. Stock torchrun runs its own elastic
agents with `--nnodes=1:4`; its script saves after every step to memory, and loads that when it is started again.

    python -m benchmarks.live_changes [--repeats 5] [--only elastic|stock|steady]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.local.running import Local

COMMON = """
import os, pathlib, sys, time
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

here = pathlib.Path(__file__).parent
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                            torch.nn.Linear(1024, 1))

def train(model, optimizer, step, rank, world):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(24, 128, generator=generator)[rank::world]
    loss = F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(PAUSE)
    print(f"at {time.monotonic():.4f} step {step} world {world}", flush=True)
"""
ELASTIC = (
    COMMON
    + """
from elastrain_trainer import Session
dist.init_process_group("gloo")
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
session = Session(model, optimizer)
for step in session.steps(STEPS):
    with session.attempt():
        train(model, optimizer, step, session.rank, session.world_size)
"""
)
STOCK = (
    COMMON
    + """
dist.init_process_group("gloo")
snapshot = here / "snapshot.pt"
first = 0
optimizer = torch.optim.AdamW(model.parameters())
if snapshot.exists():
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
model = DistributedDataParallel(model)
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(first + 1, STEPS + 1):
    train(model, optimizer, step, rank, world)
    if rank == 0 and SAVE:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, here / "snapshot.part")
        os.replace(here / "snapshot.part", snapshot)
"""
)
LINE = re.compile(r"at ([\d.]+) step (\d+) world (\d+)")
Steps = list[tuple[float, int, int]]  # when a step was done, its number, the world size; in order of time
PAUSE = 0.045


def script(text: str, steps: int, *, save: bool = True) -> str:
    return f"STEPS, PAUSE, SAVE = {steps}, {PAUSE}, {save}\n" + text


def steps_of(logs: str) -> Steps:
    """Return the steps in the order of time, each by the first rank that had done it."""
    found: dict[int, tuple[float, int, int]] = {}
    for at, step, world in LINE.findall(logs):
        row = (float(at), int(step), int(world))
        if int(step) not in found or row < found[int(step)]:
            found[int(step)] = row
    return sorted(found.values())


def step_time(steps: Steps) -> float:
    """Return the median time of a step, seconds."""
    return statistics.median(after[0] - before[0] for before, after in itertools.pairwise(steps))


def gap(steps: Steps, at: float, world: int) -> float:
    """Return how long training stood still for the change to this world size that began at `at`, seconds."""
    for before, after in itertools.pairwise(steps):
        if after[0] > at and after[2] == world != before[2]:
            return after[0] - before[0] - step_time(steps)
    raise LookupError(f"no change to {world} after {at}")


def resumed(steps: Steps, at: float, world: int) -> float:
    """Return how long after `at` the first step was done in a world of this size, seconds."""
    return next(when for when, _, size in steps if when > at and size == world) - at


def elastic(repeats: int) -> dict[str, Any]:
    """Measure changes of a job whose script has a session."""
    found: dict[str, list[float]] = {}
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        job = Local(Path(folder), script=script(ELASTIC, 10**6), nodes=2, failurePolicy={"backoffSeconds": 0})
        try:
            number = job.trains(2)
            for repeat in range(repeats):
                print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr)
                for nodes in (3, 4, 2):
                    at, before = time.monotonic(), job.status.round
                    assert before is not None
                    job.scale(nodes)
                    number = job.trains(nodes, after=number)
                    name = f"{len(before.members)}->{nodes}"
                    found.setdefault(name, []).append(gap(steps_of(job.logs), at, nodes))
                number = _losses(job, number, found)
            numbers = [step for _, step, _ in steps_of(job.logs)]
            lost = numbers[-1] - len(numbers)
            duration = step_time(steps_of(job.logs))
        finally:
            job.close()
    rows = {name: summary(values) for name, values in found.items()}
    return {"stepSeconds": round(duration, 4), "stepsMissing": lost, **rows}


def _losses(job: Local, number: int, found: dict[str, list[float]]) -> int:
    """Lose a worker, and the first pod, of three; return the number of the last round."""
    job.scale(3)
    number = job.trains(3, after=number)
    for name in ("worker killed", "first pod deleted, grace 0"):
        assert job.status.round is not None
        first, *_, last = job.status.round.members
        at = time.monotonic()
        if name == "worker killed":
            os.kill(_workers(job.run.nodes[last].process.pid)[0], signal.SIGKILL)
        else:
            job.delete(first, grace=0)
        number = job.trains(3, after=number + 1)
        found.setdefault(name, []).append(resumed(steps_of(job.logs), at, 2))
    job.scale(2)
    return job.trains(2, after=number)


def _workers(pid: int) -> list[int]:
    return [p.pid for p in psutil.Process(pid).children(recursive=True) if "LOCAL_RANK" in p.environ()]


def summary(values: list[float]) -> dict[str, Any]:
    """Return median and 95th percentile, and all values."""
    ordered = sorted(values)
    place = min(round(0.95 * (len(ordered) - 1)), len(ordered) - 1)
    return {
        "median": round(statistics.median(ordered), 3),
        "p95": round(ordered[place], 3),
        "all": [round(v, 3) for v in values],
    }


class Stock:
    """Elastic agents of torchrun on this machine."""

    def __init__(self, folder: Path, text: str) -> None:
        (folder / "script.py").write_text(text)
        self.folder = folder
        self.agents: list[subprocess.Popen[bytes]] = []
        self.port = 29400 + os.getpid() % 1000

    def start(self) -> None:
        """Add a node."""
        name = f"agent-{len(self.agents)}"
        address = f"127.0.0.{2 + len(self.agents)}"
        argv = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=1", "--max-restarts=100",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.2:{self.port}", "--rdzv-id=job",
            f"--rdzv-conf=is_host={'true' if not self.agents else 'false'},last_call_timeout=5",
            f"--local-addr={address}", str(self.folder / "script.py"),
        ]  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.agents.append(subprocess.Popen(argv, stdout=log, stderr=log, env=environment))

    @property
    def steps(self) -> Steps:
        """What was done so far."""
        return steps_of("\n".join(p.read_text(errors="replace") for p in self.folder.glob("agent-*.log")))

    def reaches(self, world: int, after: float, seconds: float = 120) -> bool:
        """Wait until a step is done in a world of this size; whether one was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(at > after and size == world for at, _, size in self.steps):
                return True
            time.sleep(0.2)
        return False

    def close(self) -> None:
        """End everything."""
        for agent in self.agents:
            with suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            agent.wait()


def stock() -> dict[str, Any]:
    """Measure the same of torchrun: each event on a job of its own, since some end it."""

    def grow(job: Stock) -> int:
        job.start()
        return 3

    def shrink(job: Stock) -> int:
        job.agents[-1].send_signal(signal.SIGTERM)
        return 1

    def kill(job: Stock) -> int:
        os.kill(_workers(job.agents[-1].pid)[0], signal.SIGKILL)
        return 2

    def lose_first(job: Stock) -> int:
        for process in [*psutil.Process(job.agents[0].pid).children(recursive=True), psutil.Process(job.agents[0].pid)]:
            process.kill()
        return 1

    events: dict[str, Callable[[Stock], int]] = {
        "2->3": grow,
        "2->1": shrink,
        "worker killed": kill,
        "first node killed": lose_first,
    }
    found: dict[str, Any] = {}
    for name, event in events.items():
        with tempfile.TemporaryDirectory() as folder:
            job = Stock(Path(folder), script(STOCK, 10**6))
            try:
                job.start()
                job.start()
                if not job.reaches(2, 0):
                    found[name] = "did not start"
                    continue
                time.sleep(3)
                at = time.monotonic()
                world = event(job)
                there = job.reaches(world, at + 1.0)
                found[name] = round(resumed(job.steps, at + 1.0, world) + 1.0, 2) if there else "no step within 120 s"
            finally:
                job.close()
        print(f"stock, {name}: {found[name]}", file=sys.stderr)
    return found


def steady(repeats: int) -> dict[str, Any]:
    """Compare the time of a step in a session with that under plain torchrun, two processes each, by turns."""
    times: dict[str, list[float]] = {"session": [], "torchrun": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            job = Local(Path(folder), script=script(ELASTIC, 300), nodes=2)
            try:
                job.eventually(lambda job=job: job.status.phase == "Complete", "the end")
                times["session"].append(step_time(steps_of(job.logs)[20:]))
            finally:
                job.close()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.py"
            path.write_text(script(STOCK, 300, save=False))
            argv = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node=2",
                "--master-port=29777",
                str(path),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
            times["torchrun"].append(step_time(steps_of(done.stdout)[20:]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **{f"{name}Seconds": round(value, 5) for name, value in medians.items()},
        "ratio": round(medians["session"] / medians["torchrun"], 4),
    }


def main() -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["elastic", "stock", "steady"])
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "elastic": lambda: elastic(arguments.repeats),
        "stock": stock,
        "steady": lambda: steady(arguments.repeats),
    }
    print(json.dumps({name: measure() for name, measure in parts.items() if arguments.only in (None, name)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
