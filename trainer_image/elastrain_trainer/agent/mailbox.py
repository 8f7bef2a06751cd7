"""The socket by which workers tell the agent of their progress."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRESS_SECONDS = 1.0
"""Progress is passed on at most this often; the last step always is."""

KINDS = ("progress", "checkpoint", "phase")


class Mailbox:
    """Receives datagrams; none of them can block, or harm more than itself."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = str(path)
        self._socket.bind(self._path)
        self._settled = threading.Event()
        self._clock = clock
        self._passed_on = -math.inf
        self._ranks: dict[int, int] = {}  # the rank of this node in each round whose reports count

    def of_round(self, number: int, node_rank: int) -> None:
        """Take reports for this round's from now on; those that name another round are dropped."""
        self._ranks = {number: node_rank}

    def also_of_round(self, number: int, node_rank: int) -> None:
        """Take reports for a next round's, too: the workers go on into it by themselves."""
        self._ranks = {**self._ranks, number: node_rank}

    def receive(self) -> dict[str, Any] | None:
        """Wait for one datagram; return the report to send on, None if it is not to be."""
        try:
            datagram = self._socket.recv(65536)
        except OSError:
            return None
        if not datagram:
            self._settled.set()
        return self.accept(datagram)

    def settle(self, seconds: float) -> bool:
        """Wait, while another thread receives, until all that was sent so far has been dealt with; return whether."""
        self._settled.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as marker:
            marker.settimeout(seconds)
            try:
                marker.connect(self._path)
                marker.send(b"")
            except OSError:
                return False
        return self._settled.wait(seconds)

    def accept(self, datagram: bytes) -> dict[str, Any] | None:
        """Return the report to send on for a datagram; None if it is of no use."""
        try:
            body = json.loads(datagram)
            kind, number = body["type"], body.pop("round", max(self._ranks, default=0))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if kind not in KINDS or number not in self._ranks:
            return None
        if kind == "progress" and not self._is_due(body, self._ranks[number]):
            return None
        return {**body, "round": number}

    def _is_due(self, body: dict[str, Any], node_rank: int) -> bool:
        if node_rank != 0:
            return False  # the progress of a round is told once
        now, last = self._clock(), body.get("step") is not None and body.get("step") == body.get("totalSteps")
        if not last and now - self._passed_on < PROGRESS_SECONDS:
            return False
        self._passed_on = now
        return True

    def close(self) -> None:
        """Receive no more."""
        self._socket.close()
