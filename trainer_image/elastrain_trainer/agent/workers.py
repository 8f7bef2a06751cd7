"""The launcher and its workers as processes: starting, stopping, reaping, and what their end means.

The agent is PID 1, so orphans become its children; outside a container it asks the kernel for the same. torchrun
gives each worker a session of its own, so killing a process group would miss them: all descendants are killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastrain_trainer.agent import cgroup
from elastrain_trainer.agent.environment import Environment
from elastrain_trainer.agent.protocol import Failure, Round
from elastrain_trainer.failures import describe_exit

_PR_SET_CHILD_SUBREAPER = 36
JOIN_SECONDS = 120
"""How long the members of a round wait for each other."""

KILL_SECONDS = 10
"""How long processes that were sent SIGKILL are waited for: some hang in the kernel."""

SOCKET, SESSIONS = "socket", "sessions"
"""The sockets in the agent's folder: that workers report to, and that sessions learn of rounds by."""

LOGS, FAILURE = "workers", "failure.json"
"""What a round's folder has: a folder for each worker, and word of how the first one failed."""

ACCELERATOR_DEVICES = ("nvidia[0-9]*", "kfd", "dxg", "accel/accel*", "accel[0-9]*", "vfio/[0-9]*", "neuron[0-9]*",
                       "davinci[0-9]*", "dri/renderD*")  # fmt: skip


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends (a no-op for PID 1)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the process ids of all living descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


class Workers:
    """The workers of one round after the other."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._environment, self._root = environment, folder
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._oom_kills = 0
        self._deadline: float | None = None

    def start(self, told: Round) -> None:
        """Start the launcher for a round, and with it the workers."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._root / f"round-{told.number}"
        (self._folder / LOGS).mkdir(parents=True)
        self._oom_kills, self._deadline = cgroup.oom_kills(), None
        argv = command(told, self._environment, self._folder)
        self._process = subprocess.Popen(argv, env=variables(told, self._root), start_new_session=True)

    def stop(self) -> None:
        """Ask the workers to end; they have leaveSeconds."""
        if self._process:
            self._deadline = time.monotonic() + self._environment.leave_seconds + 5
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        try:
            if self._process:
                os.kill(self._process.pid, number)
        except ProcessLookupError:
            pass

    @property
    def overdue(self) -> bool:
        """Whether the workers were asked to end and their time is over."""
        return self._deadline is not None and time.monotonic() > self._deadline

    @property
    def deadline(self) -> float | None:
        """When the time of the stopping workers is over, on the monotonic clock."""
        return self._deadline

    def kill(self) -> None:
        """Kill every descendant of the agent."""
        self._deadline = None
        end = time.monotonic() + KILL_SECONDS
        while (alive := descendants()) and time.monotonic() < end:
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)

    def reap(self) -> int | None:
        """Collect every child that has ended; return the launcher's exit code if it is among them."""
        code = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == 0:
                return code
            if self._process and pid == self._process.pid:
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code
                self._process, self._deadline = None, None

    def failure(self, code: int) -> Failure | None:
        """Return how the workers failed, once the launcher has ended with this code; None if they did not."""
        if code == 0:
            return None
        said = self._said()
        reason = said.get("reason", "WorkerFailed")
        message = said.get("message", f"the workers' launcher ended: {describe_exit(code)}")
        if cgroup.oom_kills() > self._oom_kills:
            reason, message = "OOMKilled", f"a worker exceeded the container's memory limit and was killed; {message}"
        return Failure(reason, message, said.get("time") or now(), said.get("rank"), said.get("exitCode"))

    def _said(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder or Path()).joinpath(FAILURE).read_text()))
        except (OSError, ValueError):
            return {}  # the launcher was killed before it could say anything


def command(told: Round, environment: Environment, folder: Path) -> list[str]:
    """Return the command line of the launcher for a round: exact numbers, and where the members meet."""
    return [
        sys.executable, "-m", "elastrain_trainer.agent.launch",
        f"--nnodes={len(told.joining)}",
        f"--node-rank={told.joining.index(told.pod)}",
        f"--group-nodes={told.nodes}",
        f"--group-rank={told.node_rank}",
        f"--nproc-per-node={told.processes_per_node}",
        f"--rdzv-id={told.rendezvous_id}",
        f"--rdzv-endpoint={told.rendezvous}",
        f"--master-endpoint={told.store}",
        f"--join-timeout={JOIN_SECONDS}",
        f"--shutdown-timeout={environment.leave_seconds}",
        f"--local-addr={environment.pod_ip}",
        f"--log-dir={folder / LOGS}",
        f"--failure-file={folder / FAILURE}",
        "--", *environment.arguments,
    ]  # fmt: skip


def variables(told: Round, folder: Path) -> dict[str, str]:
    """Return the environment of the launcher and its workers; what the template sets is kept."""
    ours = {
        "ELASTRAIN_ROUND": str(told.number),
        "ELASTRAIN_AGENT_SOCKET": str(folder / SOCKET),
        "ELASTRAIN_SESSION_SOCKET": str(folder / SESSIONS),
        "ELASTRAIN_ALONE": "1" if told.in_place else "",  # the others train; their group takes these in later
        "TORCH_ELASTIC_WORKER_IDENTICAL": "1",  # every node has as many workers, so ranks need no exchange
    }
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(cgroup.processors() // told.processes_per_node, 1)),
    }
    if not has_accelerator():
        # Without it Accelerate takes each worker for a job of its own where there is no accelerator.
        defaults["ACCELERATE_USE_CPU"] = "true"
    return {**defaults, **os.environ, **ours}


def has_accelerator(devices: Path = Path("/dev")) -> bool:
    """Return whether this container has been given any accelerator, as far as device files tell."""
    return any(next(devices.glob(pattern), None) for pattern in ACCELERATOR_DEVICES)


def now() -> str:
    """Return the present time as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
