"""Running programs: to their end, or as daemons that are known by their process id."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    pidfile.write_text(str(process.pid))
    return process.pid


def alive(pidfile: Path) -> bool:
    """Return whether the daemon of this file runs (a zombie does not)."""
    pid = pid_of(pidfile)
    if pid is None:
        return False
    if pid in _started and _started[pid].poll() is not None:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pid_of(pidfile: Path) -> int | None:
    """Return the process id on record."""
    try:
        return int(pidfile.read_text())
    except (OSError, ValueError):
        return None


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
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise BenchError(f"{name} died while the bench waited for {what}:\n{tail}")
        if time.monotonic() > end:
            raise BenchError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)
