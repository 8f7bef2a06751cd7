"""Agents as real processes, with real torchrun and gloo, against the operator's own coordinator on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme

from elastrain.coordination import Caller, Coordinator, JobKey, serve, server_context
from elastrain.planning import Agent, Directive, Endpoint, Member, Outcome, Round

REPOSITORY = Path(__file__).parents[2]
JOB = JobKey("default", "job")
DEADLINE = 60.0
T = TypeVar("T")


@dataclass
class Pod:
    """An agent's process and what it left."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def exits(self) -> int:
        return self.process.wait(DEADLINE)

    @property
    def last_word(self) -> dict[str, Any]:
        return json.loads((self.folder / "termination").read_text())  # type: ignore[no-any-return]


@dataclass
class Job:
    """A coordinator in a thread of its own, and the pods that ask it."""

    folder: Path
    script: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    pods: dict[str, Pod] = field(default_factory=dict)
    port: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        certificate = self.authority.issue_cert("localhost")
        certificate.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")
        certificate.private_key_pem.write_to_path(self.folder / "tls.key")
        self.directive = Directive()
        self.restart("operator-1")

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def restart(self, identity: str) -> None:
        """Serve by another process, as the agents see it: all that was reported is forgotten."""

        async def begin() -> None:
            self.coordinator = Coordinator(
                identity=identity, authenticate=self._authenticate, membership=lambda _: JOB, wake=lambda _: None
            )
            application = self.coordinator.application(healthy=lambda: None, serving=lambda: True)
            self.runner = await serve(
                application, host="127.0.0.1", port=self.port, context=server_context(self.folder)
            )
            self.port = self.runner.addresses[0][1]
            self.coordinator.publish(JOB, self.directive)

        if self.port:
            self._call(self.runner.cleanup())
        self._call(begin())

    async def _authenticate(self, token: str) -> Caller | None:
        return Caller("default", token, f"uid-{token}")

    def start(self, index: int, *arguments: str, **environment: str) -> Pod:
        """Start an agent whose pod has an address of its own."""
        name, address = f"job-{index}-0", f"127.0.0.{9 - index}"  # the order of addresses is not that of members
        folder = self.folder / name
        folder.mkdir()
        (folder / "token").write_text(name)
        self.authority.cert_pem.write_to_path(folder / "ca.crt")
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ELASTRAIN_", "ACCELERATE_", "OMP_"))},
            "PYTHONPATH": str(REPOSITORY / "trainer_image"),
            "ELASTRAIN_COORDINATOR_URL": f"https://localhost:{self.port}",
            "ELASTRAIN_CREDENTIALS": str(folder),
            "ELASTRAIN_NAMESPACE": "default",
            "ELASTRAIN_JOB": "job",
            "ELASTRAIN_JOB_UID": "job-uid",
            "ELASTRAIN_POD": name,
            "ELASTRAIN_POD_IP": address,
            "ELASTRAIN_LEAVE_SECONDS": "10",
            "ELASTRAIN_TERMINATION_LOG": str(folder / "termination"),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        argv = [sys.executable, "-m", "elastrain_trainer.agent", *(arguments or (str(self.script),))]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, env=variables, cwd=self.folder)
        self.pods[name] = Pod(name, address, process, folder)
        return self.pods[name]

    def publish(self, directive: Directive) -> None:
        self.directive = directive
        self.loop.call_soon_threadsafe(self.coordinator.publish, JOB, directive)

    def round(
        self, *names: str, processes: int = 1, continuing: tuple[str, ...] = (), leavers: tuple[str, ...] = ()
    ) -> int:
        """Publish the next round of these pods once all of them are ready; return its number."""
        agents = {name: self.waits_for(name, {"ready", "failed", "finished", "running"}) for name in names}
        self.number += 1
        host, first = names[0], next((name for name in names if name not in continuing), names[0])
        members = tuple(Member(name, self.pods[name].address, joining=name not in continuing) for name in names)
        self.publish(
            Directive(
                round=Round(
                    self.number,
                    "Start",
                    f"job-uid-{self.number}",
                    processes,
                    members,
                    Endpoint(self.pods[first].address, agents[first].ports.rendezvous),
                    Endpoint(self.pods[host].address, agents[host].ports.store),
                    leavers,
                )
            )
        )
        return self.number

    def end(self, *, complete: bool) -> None:
        self.publish(Directive(outcome=Outcome(complete, "the end")))

    def agent(self, name: str) -> Agent | None:
        return self.coordinator.agents(JOB).get(f"uid-{name}")

    def waits_for(self, name: str, states: set[str], number: int = 0) -> Agent:
        """Return the report of an agent once it is in one of these states, in this round or a later one."""

        def look() -> Agent | None:
            found = self.agent(name)
            return found if found and str(found.state) in states and found.round >= number else None

        return self.eventually(look, f"{name} to be {'/'.join(states)} in round {number}")

    def eventually(self, look: Callable[[], T | None], what: str) -> T:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.02)
        logs = "\n".join(f"--- {pod.name}\n{pod.log[-3000:]}" for pod in self.pods.values())
        raise AssertionError(f"waited in vain for {what}; agents: {self.coordinator.agents(JOB)}\n{logs}")

    def close(self) -> None:
        for pod in self.pods.values():
            if pod.process.poll() is None:
                pod.process.send_signal(signal.SIGTERM)
                pod.process.send_signal(signal.SIGTERM)
                try:
                    pod.process.wait(15)
                except subprocess.TimeoutExpired:
                    pod.process.kill()
                    pod.process.wait()
        self._call(self.runner.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    made = Job(tmp_path, script)
    yield made
    made.close()


SCRIPT = '''
"""What the tests tell it to do, by files; says who it is, and meets its peers in one collective."""
import os, pathlib, sys, time
import torch, torch.distributed as dist

here = pathlib.Path(__file__).parent
rank, world, number = os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["ELASTRAIN_ROUND"]
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
(here / f"met-{number}-{rank}").write_text(f"{os.environ['ELASTRAIN_POD']} {world} {int(total)}")
end = time.monotonic() + 60
while time.monotonic() < end:
    for name in ("all", rank):
        order = here / f"do-{number}-{name}"
        if order.exists():
            exec(order.read_text())
    if (here / f"loop-{number}").exists():
        dist.all_reduce(total)
    time.sleep(0.02)
'''
