"""What went wrong in a worker, in words that a person can use and reasons that the operator knows."""

from __future__ import annotations

import re
import signal
import traceback
from types import TracebackType

MESSAGE_LIMIT = 1024
"""The most characters of a message in a report (docs/protocol.md)."""

WORD = "elastrain.json"
"""The file in which a worker says how it failed, beside the error file that torchrun gave it."""

PEER_LOST = "PeerLost"
ABORTED = -signal.SIGABRT
"""How a process ends whose error was raised in a thread of gloo or NCCL, where Python cannot catch it."""

_CONNECTION_LOST = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|connectFullMesh failed"  # gloo, sockets
    r"|connection was closed|Connection was likely closed|failed to (recv|send)|client socket has (failed|timed out)"
    r"|recvBytes|sendBytes|recvValue failed|sendValue failed"  # the c10d store
    r"|ncclRemoteError|ncclSystemError|remote process exited|socketPollConnect|socketProgress",  # NCCL
    re.IGNORECASE,
)
"""What gloo, NCCL and the store say of a connection to another rank that broke.

A collective that only takes too long is not among them: that may be the script's own fault.
"""

_COMMUNICATION = re.compile(r"gloo|nccl|TCPStore|c10d|ProcessGroup|Dist(Backend|Network|Store)Error", re.IGNORECASE)


def is_connection_lost(text: str) -> bool:
    """Return whether a text tells that a connection to another rank broke."""
    return bool(_CONNECTION_LOST.search(text) and _COMMUNICATION.search(text))


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error, or one that it came from, is the consequence of another rank's end."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, RuntimeError | ValueError) and is_connection_lost(f"{type(cause).__name__}: {cause}"):
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def describe(error: BaseException, trace: TracebackType | None) -> str:
    """Return the error in one line and the end of its traceback.

    Args:
        error: what was raised.
        trace: where, from the user's first frame on.

    """
    first = "\n".join([f"{type(error).__qualname__}: {error}".rstrip(": "), *getattr(error, "__notes__", ())])
    where = "".join(traceback.format_list(traceback.extract_tb(trace)[-3:])).rstrip()
    return f"{first}\n{where}".strip()


def describe_exit(code: int) -> str:
    """Return what an exit code means: a signal's name, or the number."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def cut(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return a message of at most so many characters: its beginning, which says what, and its end."""
    if len(message) <= limit:
        return message
    first = message[: limit // 2].split("\n", 1)[0]
    return f"{first}\n...{message[-(limit - len(first) - 4) :]}"
