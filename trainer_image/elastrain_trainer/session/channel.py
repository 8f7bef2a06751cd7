"""A worker's connection to the agent of its pod: rounds come in, how far this worker is in them goes out."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable

from elastrain_trainer.agent.protocol import Round, parse_round

log = logging.getLogger("elastrain.session")


class Channel:
    """Keeps every round that it was told of; a thread of its own reads them."""

    def __init__(self, path: str, on_round: Callable[[Round], None]) -> None:
        """Connect to the agent's socket at `path`; `on_round` is called in the reading thread, before `wait` returns.

        Raises:
            OSError: nobody listens there.

        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._on_round = on_round
        self._changed = threading.Condition()
        self._rounds: dict[int, Round] = {}
        self._newest = 0
        self._said: dict[str, int] = {}
        self.report(formed=0, stalled=0)
        threading.Thread(target=self._read, name="elastrain-session", daemon=True).start()

    def report(self, **changes: int) -> None:
        """Tell the agent what changed: `formed`, the newest round that trains; `stalled`, the round that is broken."""
        self._said = {**self._said, **changes}
        try:
            self._socket.sendall(json.dumps(self._said).encode() + b"\n")
        except OSError:
            return  # without its agent this worker will be told to end

    def newest(self) -> int:
        """Return the number of the newest round that it was told of; 0: of none."""
        return self._newest

    def wait(self, *, newer_than: int, seconds: float) -> Round | None:
        """Return the newest round as soon as it is newer than that; None if it is not in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest > newer_than, timeout=seconds)
            return self._rounds[self._newest] if self._newest > newer_than else None

    def round(self, number: int, seconds: float) -> Round | None:
        """Return the round of this number, waiting for the word of it; None if it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._rounds, timeout=seconds)
            return self._rounds.get(number)

    def forget(self, before: int) -> None:
        """Drop the rounds before this one."""
        with self._changed:
            self._rounds = {number: told for number, told in self._rounds.items() if number >= before}

    def close(self) -> None:
        """Tell the agent that this worker goes into no further round."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        try:
            with self._socket.makefile("r") as lines:
                for line in lines:
                    body = json.loads(line)
                    self._take(parse_round(body["round"], body["pod"]))
        except (OSError, ValueError):
            return

    def _take(self, told: Round) -> None:
        if told.number <= self._newest:
            return
        with self._changed:
            self._rounds[told.number] = told
            self._newest = told.number
        self._on_round(told)
        with self._changed:
            self._changed.notify_all()
