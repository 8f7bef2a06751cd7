"""What workers print, line by line with their rank, to the container's own output.

Workers write into named pipes, not into files: a job that prints for weeks fills no disk. The last lines of each
are kept for the report on a failure.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

LINES = 12
"""How many of the last lines of a worker's output are kept."""

LONGEST_LINE = 65536
"""A line longer than this, in bytes, is broken: a progress bar may never end its line."""


@dataclass
class _Stream:
    rank: int
    to: int  # the file descriptor that lines go to
    kept: deque[bytes]
    begun: bytearray = field(default_factory=bytearray)


class WorkerOutput:
    """The output of the workers of one pod; `begin` before they start, `end` after they ended."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._last: dict[tuple[int, int], deque[bytes]] = {}
        self._wake, self._stop = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._copy, name="output", daemon=True)

    def pipe(self, path: Path, rank: int, to: int) -> None:
        """Make a named pipe for what a worker prints.

        Args:
            path: where to make it.
            rank: the worker's global rank.
            to: 1 for its standard output, 2 for its standard error.

        """
        os.mkfifo(path, 0o600)
        # Open for reading and writing: there is a reader before the worker opens it, and no end before ours.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        kept = self._last.setdefault((rank, to), deque(maxlen=LINES))
        self._selector.register(descriptor, selectors.EVENT_READ, _Stream(rank, to, kept))

    def begin(self) -> None:
        """Copy what comes, until told to end."""
        sys.stdout.flush()
        self._thread.start()

    def end(self) -> None:
        """Copy what is there still, then close the pipes."""
        os.close(self._stop)
        if self._thread.is_alive():
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()

    def last_lines(self, rank: int) -> str:
        """Return the last lines that a worker printed: of its standard error, if there are any."""
        for to in (2, 1):
            lines = self._last.get((rank, to))
            if lines:
                return b"\n".join(lines).decode(errors="replace")
        return ""

    def _copy(self) -> None:
        ended = False
        while True:
            ready = [key for key, _ in self._selector.select(0 if ended else None)]
            ended = ended or any(key.data is None for key in ready)
            streams = [key for key in ready if key.data is not None]
            if ended and not streams:
                break
            for key in streams:
                self._take(key.data, os.read(key.fd, LONGEST_LINE))
        for key in self._selector.get_map().values():
            if key.data and key.data.begun:
                self._put(key.data, bytes(key.data.begun))

    def _take(self, stream: _Stream, read: bytes) -> None:
        *whole, rest = (bytes(stream.begun) + read).split(b"\n")
        if len(rest) >= LONGEST_LINE:
            whole, rest = [*whole, rest], b""
        stream.begun = bytearray(rest)
        if whole:
            self._put(stream, *whole)

    def _put(self, stream: _Stream, *lines: bytes) -> None:
        stream.kept.extend(lines)
        prefix = b"[rank %d] " % stream.rank
        text = b"".join(prefix + line + b"\n" for line in lines)
        while text:
            try:
                text = text[os.write(stream.to, text) :]
            except OSError:  # nobody reads the container's output any more
                return
