"""The socket by which the sessions of this pod's workers learn of rounds, and tell how far they are in them.

One line of JSON each: a worker sends `{"formed": n, "stalled": n}` when it connects and whenever that changes; it is
sent `{"pod": name, "round": {...}}` when it connects and at every new round.
"""

from __future__ import annotations

import json
import logging
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastrain_trainer.agent import machine
from elastrain_trainer.agent.protocol import Round

log = logging.getLogger("elastrain.agent")


class SessionServer:
    """All open sessions of this pod's workers."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        """Listen at `path`; `changed` is called, from any thread, when `state` may be another than it was."""
        self._changed = changed
        self._lock = threading.Lock()
        self._workers = 0
        self._said: dict[_Connection, machine.Sessions] = {}
        self._told: bytes | None = None
        self._server = _Server(str(path), self)
        threading.Thread(target=self._server.serve_forever, name="sessions", daemon=True).start()

    @property
    def state(self) -> machine.Sessions:
        """What all of them say together."""
        with self._lock:
            said = tuple(self._said.values())
            if not said or len(said) != self._workers:
                return machine.Sessions()
            return machine.Sessions(True, min(s.formed for s in said), max(s.stalled for s in said))

    def begin(self, told: Round) -> None:
        """Forget the sessions of former workers, and expect those of a round."""
        with self._lock:
            for connection in self._said:
                connection.end()
            self._said.clear()
            self._workers = told.processes_per_node
            self._told = _line(told)

    def tell(self, told: Round) -> None:
        """Tell all sessions, and those that are yet to open, of a round."""
        with self._lock:
            self._told = _line(told)
            connections = tuple(self._said)
        for connection in connections:
            connection.send(self._told)

    def take(self, connection: _Connection, said: machine.Sessions) -> None:
        """Keep what a session says of itself."""
        with self._lock:
            first = connection not in self._said
            if first and len(self._said) >= self._workers:
                log.warning("more sessions than workers: only one session may be open in a process")
                return
            self._said[connection] = said
            told = self._told
        if first and told:
            connection.send(told)
        self._changed()

    def drop(self, connection: _Connection) -> None:
        """Forget a session that has closed."""
        with self._lock:
            known = self._said.pop(connection, None)
        if known:
            self._changed()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def _line(told: Round) -> bytes:
    return json.dumps({"pod": told.pod, "round": told.to_json()}).encode() + b"\n"


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, sessions: SessionServer) -> None:
        self.sessions = sessions
        super().__init__(path, _Connection)


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.request.settimeout(None)
        try:
            for line in self.rfile:
                self.server.sessions.take(self, _said(line))
        except (OSError, ValueError, TypeError, KeyError):
            return  # the worker has ended, or sends what is no message

    def finish(self) -> None:
        self.server.sessions.drop(self)
        super().finish()

    def send(self, line: bytes) -> None:
        try:
            self.request.sendall(line)
        except OSError as error:
            log.info("a worker cannot be told of the round: %s", error)

    def end(self) -> None:
        try:
            self.request.shutdown(2)
        except OSError:
            return


def _said(line: bytes) -> machine.Sessions:
    body: dict[str, Any] = json.loads(line)
    return machine.Sessions(True, int(body["formed"]), int(body["stalled"]))
