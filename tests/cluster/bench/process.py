"""Running programs: to their end, or as daemons that are known by their process id."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tests.cluster.bench.layout import BenchError

_started: dict[int, subprocess.Popen[bytes]] = {}
"""Daemons that this process started itself, so that their ends are seen."""


def run(
    *argv: str | Path, input_text: str | None = None, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a program and return its standard output.

    Raises:
        BenchError: it ended with another code than 0; the text has its last lines.

    """
    done = subprocess.run(
        [str(a) for a in argv],
        input=input_text,
        text=True,
        capture_output=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise BenchError(f"{' '.join(str(a) for a in argv)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def attempt(*argv: str | Path) -> None:
    """Run a program whose failure does not matter: what it removes may not be there."""
    subprocess.run([str(a) for a in argv], capture_output=True, check=False)


def daemon(argv: Sequence[str | Path], log: Path, pidfile: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a program that outlives us; its output goes to `log`, its process id to `pidfile`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pidfile.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(a) for a in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    _started[process.pid] = process
    record(pidfile, process.pid)
    return process.pid


def record(pidfile: Path, pid: int) -> None:
    """Keep a process id, with the time of its start: numbers are used again, after a reboot at the latest."""
    pidfile.write_text(f"{pid} {_stat(pid)[1]}")


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and the time of its start; `Z` and nothing if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "Z", ""
    return fields[0], fields[19]


def alive(pidfile: Path) -> bool:
    """Return whether the daemon of this file runs (a zombie does not)."""
    try:
        words = pidfile.read_text().split()
    except OSError:
        return False
    if not words or (int(words[0]) in _started and _started[int(words[0])].poll() is not None):
        return False
    state, start = _stat(int(words[0]))
    return state != "Z" and words[1:] in ([], [start])


def pid_of(pidfile: Path) -> int | None:
    """Return the process id on record, if that process still runs."""
    return int(pidfile.read_text().split()[0]) if alive(pidfile) else None


def kill(pidfile: Path) -> None:
    """End a daemon at once and wait until it is gone."""
    pid = pid_of(pidfile)
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_for(lambda: not alive(pidfile), 10, f"process {pid} to end")


def kill_all(find: Callable[[], Iterable[int]], seconds: float = 10) -> None:
    """End what `find` finds until it finds nothing more, but never ourselves or one that we were started by."""
    spared = _ancestry()
    end = time.monotonic() + seconds
    while (pids := set(find()) - spared) and time.monotonic() < end:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for started in _started.values():
            started.poll()
        time.sleep(0.02)


def _ancestry() -> set[int]:
    chain, pid = {os.getpid()}, os.getppid()
    while pid > 1 and pid not in chain:
        chain.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            break
    return chain


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock among all processes of this machine; the system gives it back when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the work inside as Ctrl-C does, so that what was begun is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(
    condition: Callable[[], bool], seconds: float, what: str, daemons: Mapping[str, tuple[Path, Path]] | None = None
) -> None:
    """Wait until something is so.

    Args:
        condition: what is waited for.
        seconds: how long.
        what: its name, for the error.
        daemons: process id files and logs of daemons that must not die meanwhile.

    Raises:
        BenchError: the time is over, or a daemon died; the text has the last lines of its log.

    """
    end = time.monotonic() + seconds
    while not condition():
        for name, (pidfile, log) in (daemons or {}).items():
            if not alive(pidfile):
                raise BenchError(f"{name} died while the bench waited for {what}:\n{last_lines(log)}")
        if time.monotonic() > end:
            raise BenchError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


def last_lines(log: Path) -> str:
    """Return what a log ends with."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(no log)"
