"""A run on this machine, in a thread of its own, and what tests and benchmarks do with it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.learning import REPOSITORY, SCRIPT, check, lines, worlds

from elastrain.api import TrainJob, TrainJobStatus
from elastrain.local import Run
from elastrain.planning import Agent, EmitEvent

T = TypeVar("T")
STEP = re.compile(r"\bstep (\d+) ")
Rows = dict[int, tuple[float, int, float]]


class Local:
    """A run and what a test does with it."""

    def __init__(self, folder: Path, *arguments: str, script: str = SCRIPT, **spec: Any) -> None:
        (folder / "script.py").write_text(script)
        self.folder = folder
        self.events: list[EmitEvent] = []
        container = {"name": "trainer", "image": "none", "args": [str(folder / "script.py"), *arguments]}
        body = {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "job", "namespace": "default"},
            "spec": {"minNodes": 1, "template": {"spec": {"containers": [container]}}, **spec},
        }
        variables = {
            "PYTHONPATH": str(REPOSITORY / "trainer_image"),
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
        }
        self._loop = asyncio.new_event_loop()

        async def made() -> Run:
            job = TrainJob.model_validate(body)
            return Run(job, folder / "run", variables=variables, tell=self.events.append)

        self.run = self._loop.run_until_complete(made())
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self.run.main(),))
        self._thread.start()

    def __call__(self, action: Callable[[], T]) -> T:
        """Do something in the run's own thread."""

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(30)

    @property
    def status(self) -> TrainJobStatus:
        return self.run.job.status

    def scale(self, nodes: int) -> None:
        self(lambda: self.run.edit(nodes=nodes))

    def delete(self, pod: str, *, grace: float | None = None) -> None:
        self(lambda: self.run.delete_pod(pod, grace=grace))

    def agents(self) -> dict[str, Agent]:
        return {
            node.pod.name: agent
            for node in self.run.nodes
            if (agent := self.run.coordinator.agents(self.run._key).get(node.pod.uid))
        }

    def trains(self, nodes: int, *, after: int = 0, seconds: float = 120) -> int:
        """Wait until a round of so many nodes trains that is newer than `after`; return its number."""

        def look() -> int | None:
            found, current = self.status, self.status.round
            there = current and current.number > after and not current.previous and len(current.members) == nodes
            return current.number if there and current and found.phase == "Running" else None

        number = self.eventually(look, f"{nodes} nodes to train after round {after}", seconds)
        step = self.step
        self.eventually(lambda: self.step > step + 2, "more steps")
        return number

    def eventually(self, look: Callable[[], T | None], what: str, seconds: float = 120) -> T:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {what}; {self.status}\n{self.logs[-2000:]}")

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("run/*/log")))

    @property
    def step(self) -> int:
        """The newest step that anybody told of."""
        return max(map(int, STEP.findall(self.logs)), default=0)

    @property
    def rows(self) -> Rows:
        return lines(self.logs)

    def completes(self, expected: Rows, sizes: list[int] | None = None) -> None:
        (self.folder / "fast").touch()
        self.eventually(lambda: self.status.phase == "Complete", "the end")
        check(self.rows, expected)
        done = worlds(self.rows)
        assert sizes is None or done == sizes, done

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self.run.stop)
        self._thread.join()
        self._loop.close()
