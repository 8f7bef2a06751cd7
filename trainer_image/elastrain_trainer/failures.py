"""What went wrong in a worker, in words that a person can use and reasons that the operator knows."""

from __future__ import annotations

import re
import signal
import traceback
from pathlib import Path

LINES = 12
"""How many of the last lines of a worker's output are kept."""

PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|connectFullMesh failed|Connection refused"
    r"|remote process exited|socketPollConnect|Socket Timeout|recvBytes|sendBytes|connection was closed"
    r"|failed to recv|failed to send|ncclRemoteError|ncclSystemError|Application timeout caused pair closure"
    r"|Timed out waiting \d+ms for (send|recv) operation",
    re.IGNORECASE,
)
"""Texts of gloo, NCCL and the store for a connection to another rank that broke: somebody else failed first."""

_COMMUNICATION = re.compile(r"gloo|nccl|TCPStore|c10d|ProcessGroup|Distributed|DistBackendError|DistNetworkError")


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error is the consequence of another rank's end."""
    text = f"{type(error).__name__}: {error}"
    return bool(PEER_LOST.search(text) and _COMMUNICATION.search(text))


def describe(error: BaseException) -> str:
    """Return the error in one line and the end of its traceback, the user's own frames only."""
    first = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "elastrain_trainer" not in f.filename and not f.filename.startswith("<frozen")]
    where = "".join(traceback.format_list(own[-3:])).rstrip()
    return f"{first}\n{where}".strip()


def describe_exit(code: int) -> str:
    """Return what an exit code means: a signal's name, or the number."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 16384, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])
