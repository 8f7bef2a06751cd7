"""torchrun and its workers as processes: starting, stopping, reaping, and what their end means.

The agent is PID 1, so orphans become its children; outside a container it asks the kernel for the same. torchrun
gives each worker a session of its own, so a group kill would miss them: all descendants are killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastrain_trainer.agent.environment import Environment
from elastrain_trainer.agent.protocol import Failure, Round

_PR_SET_CHILD_SUBREAPER = 36
JOIN_SECONDS = 120
"""How long torchrun waits for all members of a round to meet."""

ACCELERATOR_DEVICES = ("/dev/nvidia0", "/dev/kfd", "/dev/accel", "/dev/habanalabs0", "/dev/neuron0", "/dev/davinci0")


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


def oom_kills() -> int:
    """Return how many processes of this container the memory limit has killed; 0 where that is not told."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class Workers:
    """The workers of one round."""

    def __init__(self, environment: Environment, arguments: list[str], socket_path: Path) -> None:
        self._environment, self._arguments, self._socket = environment, arguments, socket_path
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._oom_kills = 0
        self._deadline: float | None = None

    def start(self, told: Round) -> None:
        """Start torchrun for a round."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"elastrain-round-{told.number}-"))
        self._oom_kills, self._deadline = oom_kills(), None
        argv = command(told, self._environment, self._folder, self._arguments)
        self._process = subprocess.Popen(argv, env=variables(told, self._folder, self._socket), start_new_session=True)

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
        end = time.monotonic() + 10
        while (alive := descendants()) and time.monotonic() < end:
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)

    def reap(self) -> int | None:
        """Collect every child that has ended; return torchrun's exit code if it is among them."""
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
        """Return how the workers failed, once torchrun has ended with this code; None if they did not."""
        if code == 0:
            return None
        said = self._said()
        exit_code = said.get("exitCode", code)
        reason, message = (
            said.get("reason", "WorkerFailed"),
            said.get("message", f"torchrun ended with exit code {code}"),
        )
        if oom_kills() > self._oom_kills:
            reason, message = "OOMKilled", f"a worker exceeded the container's memory limit and was killed; {message}"
        return Failure(reason, message, said.get("time") or now(), said.get("rank"), exit_code)

    def _said(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder or Path()).joinpath("failure.json").read_text()))
        except (OSError, ValueError):
            return {}  # torchrun was killed before it could say anything


def command(told: Round, environment: Environment, folder: Path, arguments: list[str]) -> list[str]:
    """Return the command line of torchrun for a round: exact numbers, c10d on the first member's name."""
    host = f"[{told.host}]" if ":" in told.host else told.host
    conf = f"is_host={int(told.node_rank == 0)},join_timeout={JOIN_SECONDS},read_timeout=60,keep_alive_interval=1"
    return [
        sys.executable, "-m", "elastrain_trainer.agent.launch",
        f"--nnodes={told.nodes}",
        f"--nproc-per-node={told.processes_per_node}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-id={told.rendezvous_id}",
        f"--rdzv-endpoint={host}:{told.port}",
        f"--rdzv-conf={conf},keep_alive_max_attempt=5",
        f"--local-addr={environment.pod_ip}",
        f"--log-dir={folder / 'logs'}",
        "--tee=3",
        "--log-line-prefix-template=[rank ${rank}] ",
        f"--shutdown-timeout={environment.leave_seconds}",
        "-m", "elastrain_trainer.run", *arguments,
    ]  # fmt: skip


def variables(told: Round, folder: Path, socket_path: Path) -> dict[str, str]:
    """Return the environment of torchrun and its workers."""
    ours = {
        "ELASTRAIN_ROUND": str(told.number),
        "ELASTRAIN_NODE_RANK": str(told.node_rank),
        "ELASTRAIN_AGENT_SOCKET": str(socket_path),
        "ELASTRAIN_FAILURE_FILE": str(folder / "failure.json"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
        "PYTHONUNBUFFERED": "1",
    }
    defaults = {"OMP_NUM_THREADS": str(max(_processors() // told.processes_per_node, 1))}
    if not any(Path(device).exists() for device in ACCELERATOR_DEVICES):
        # Without it Accelerate takes each worker for a job of its own where there is no accelerator.
        defaults["ACCELERATE_USE_CPU"] = "true"
    return {**defaults, **os.environ, **ours}


def _processors() -> int:
    """Return how many processors this container may use."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limit = float(quota) / float(period) if quota != "max" else allowed
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            micro = int((folder / "cpu.cfs_quota_us").read_text())
            limit = micro / int((folder / "cpu.cfs_period_us").read_text()) if micro > 0 else allowed
        except (OSError, ValueError):
            limit = allowed
    return max(min(allowed, int(limit)), 1)


def now() -> str:
    """Return the present time as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
