"""A job of `tests.learning` on the cluster, with the logs of all its pods kept, also of those that are gone."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bench.layout import BenchError
from tests.cluster.jobs import phase, pods, status, submit
from tests.cluster.target import Target
from tests.learning import LINE, SCRIPT, check, lines, worlds

Rows = dict[int, tuple[float, int, float]]
CONTAINER: dict[str, Any] = {
    "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "HERE", "value": "/dev/shm"}],
    "resources": {"requests": {"cpu": "50m"}},
}


class Followed:
    """One job and what its pods have said so far."""

    def __init__(self, cluster: Target, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.said: dict[str, list[str]] = {}  # lines by pod uid: a name may be given again
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def submit(
        self,
        steps: int,
        *,
        pause: float = 0.1,
        container: dict[str, Any] | None = None,
        before: str = "",
        **spec: Any,
    ) -> None:
        """Apply the job and follow it; `before` is run by the script before anything else."""
        container = {**CONTAINER, "args": ["/scripts/script.py", str(steps), str(pause)], **(container or {})}
        submit(self.cluster, self.namespace, before + SCRIPT, container=container, **{"minNodes": 1, **spec})
        self._begin(self._follow_pods)

    def patch(self, **spec: Any) -> None:
        """Change the spec."""
        body = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "-n", self.namespace, "trainjob/job", "--type=merge", "-p", body)

    def scale(self, nodes: int) -> None:
        """Want another number of nodes."""
        self.cluster.kubectl("scale", "-n", self.namespace, "trainjob/job", f"--replicas={nodes}")

    @property
    def status(self) -> dict[str, Any]:
        """The status as it is now."""
        return status(self.cluster, self.namespace)

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The pods as they are now, by name."""
        return pods(self.cluster, self.namespace)

    def trains(self, nodes: int, *, after: int = 0, seconds: float = 240) -> dict[str, Any]:
        """Wait until a round of so many nodes trains, newer than `after`, and has done steps; return the status."""

        def look() -> dict[str, Any] | None:
            found = self.status
            current = found.get("round") or {}
            there = found.get("phase") == "Running" and current.get("number", 0) > after and not current.get("previous")
            return found if there and len(current["members"]) == nodes else None

        try:
            found = self.cluster.eventually(look, f"{nodes} nodes to train after round {after}", seconds)
        except Exception as error:
            raise AssertionError(f"{error}; {self.tell()}") from error
        self.reaches(self.step + 3)
        return found

    @property
    def rows(self) -> Rows:
        """What was learned: loss, world size and learning rate by step."""
        return lines(*("\n".join(said) for said in self.said.values()))

    @property
    def step(self) -> int:
        """The newest step that anybody told of."""
        return max(self.rows, default=0)

    def reaches(self, step: int, seconds: float = 90) -> None:
        """Wait for a step."""
        try:
            self.cluster.eventually(lambda: self.step >= step, f"step {step}, at {self.step}", seconds)
        except Exception as error:
            raise AssertionError(f"{error}; {self.tell()}") from error

    def events(self, reason: str) -> int:
        """Return how often an event of this reason was told."""
        found = self.cluster.get("events", "-n", self.namespace, "--field-selector=involvedObject.kind=TrainJob")
        return sum(item.get("count", 1) for item in found["items"] if item["reason"] == reason)

    def execute(self, pod: str, *argv: str) -> str:
        """Run a command in the trainer container."""
        return self.cluster.kubectl("exec", "-n", self.namespace, pod, "-c", "trainer", "--", *argv)

    def completes(self, expected: Rows, sizes: list[int] | None = None) -> dict[str, Any]:
        """Let the job do its last steps fast; all that it learned must be as `expected`. Return the last status."""
        for name in self.status["round"]["members"]:
            self.execute(name, "touch", "/dev/shm/fast")
        found = phase(self.cluster, self.namespace, "Complete")
        self.reaches(len(expected))
        check(self.rows, expected)
        done = worlds(self.rows)
        assert sizes is None or done == sizes, done
        return found

    def tell(self) -> str:
        """Return what one has to read when something is not as it should be."""
        tails = {name: said[-30:] for name, said in self.said.items()}
        return json.dumps({"status": self.status, "logs": tails}, indent=1)

    def close(self) -> None:
        """Follow nothing any more."""
        self._over.set()
        for process in self._processes:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()

    def _begin(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow_pods(self) -> None:
        while not self._over.wait(0.5):
            try:
                found = self.pods
            except BenchError:  # the API server is away
                continue
            for pod in found:
                name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                if uid not in self.said and pod["status"]["phase"] != "Pending":
                    self.said[uid] = []
                    self._begin(self._follow, name, uid)

    def _follow(self, name: str, uid: str) -> None:
        """Keep what a pod says; a stream that breaks is begun again, from the first line."""
        while not self._over.is_set():
            argv = ("kubectl", "logs", "-f", "-n", self.namespace, name, "-c", "trainer")
            process = self.cluster.process(*argv, stderr=subprocess.DEVNULL)
            self._processes.append(process)
            assert process.stdout is not None
            with process.stdout as stream:
                for line in stream:
                    self.said[uid].append(line.rstrip())
            if process.wait() == 0:
                return
            if self._over.wait(0.5) or not self._is_there(uid):
                return

    def _is_there(self, uid: str) -> bool:
        try:
            return any(pod["metadata"]["uid"] == uid for pod in self.pods)
        except BenchError:  # the API server is away
            return True


@contextmanager
def followed(cluster: Target, namespace: str) -> Iterator[Followed]:
    """Give a job that is followed until the test is over."""
    job = Followed(cluster, namespace)
    try:
        yield job
    finally:
        job.close()


__all__ = ["LINE", "Followed", "Rows", "followed"]
