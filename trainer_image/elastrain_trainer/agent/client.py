"""The agent's side of the connection to the coordinator: one thread asks, one reports.

Both go on for as long as it takes: an absent coordinator stops nobody from training. The token is read for each
request and the certificate authority for each connection, since the kubelet renews both in place.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from elastrain_trainer.agent import protocol
from elastrain_trainer.agent.environment import Environment

log = logging.getLogger("elastrain.agent")

HELD_SECONDS = 25
"""The coordinator holds a question for so long if there is nothing to tell."""

LEAST_SECONDS = 0.5
"""An empty answer that comes sooner was not worth asking again at once."""

CONNECT_SECONDS = 10
LONGEST_WAIT = 10.0
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
"""A coordinator whose node vanished says nothing; the kernel asks after it, in seconds."""


class Unanswered(Exception):
    """A request got no useful answer; it is tried again after `wait` seconds."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class Refused(Exception):
    """The coordinator will never take this request: it is not one of the protocol."""


class Connection:
    """One reused connection; not for several threads."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: Any = None, *, patience: float = CONNECT_SECONDS) -> Any:
        """Send one request.

        Args:
            method: of HTTP.
            path: with the query.
            body: sent as JSON, if it is not None.
            patience: how many seconds to wait for the answer.

        Returns:
            The JSON body (None if there is none), and the coordinator's id.

        Raises:
            Refused: the answer is 400 or 413.
            Unanswered: no connection, no answer, or any other than a good one.

        """
        try:
            answer, content = self._exchange(method, path, body, patience)
            told = json.loads(content) if content and answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        if answer.status in (http.HTTPStatus.OK, http.HTTPStatus.NO_CONTENT):
            return told, answer.headers.get("Elastrain-Coordinator", "")
        text = f"{answer.status}: {content[:300].decode(errors='replace')}"
        if answer.status in (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            raise Refused(text)
        if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            self.close()  # the next connection may reach another replica
        after = answer.headers.get("Retry-After", "")
        raise Unanswered(text, float(after) if after.isdecimal() else None)

    def _exchange(self, method: str, path: str, body: Any, patience: float) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection and self._connection.sock is None:
            self.close()
        used = self._connection is not None
        try:
            connection = self._connection or self._connect()
            connection.sock.settimeout(patience)
            token = (self._environment.credentials / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        except (ConnectionError, ssl.SSLError, http.client.HTTPException):
            self.close()
            if not used:
                raise
        # The other side closes connections that were idle; that is no reason to wait. All requests may be repeated.
        return self._exchange(method, path, body, patience)

    def _connect(self) -> http.client.HTTPConnection:
        url = urllib.parse.urlsplit(self._environment.coordinator_url)
        context = ssl.create_default_context(cafile=str(self._environment.credentials / "ca.crt"))
        connection = http.client.HTTPSConnection(
            url.hostname or "", url.port or 443, timeout=CONNECT_SECONDS, context=context
        )
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # A connection that the other side closed is made anew by `_connect`, never silently without all this.
        connection.auto_open = 0
        self._connection = connection
        return connection

    def close(self) -> None:
        """Drop the connection; the next request makes another."""
        if self._connection:
            self._connection.close()
        self._connection = None


class Patience:
    """Waits between attempts: doubling up to a bound, with jitter, told once for each spell of absence."""

    def __init__(self, what: str, wait: Callable[[float], object]) -> None:
        self._what, self._wait, self._failures = what, wait, 0

    def good(self) -> None:
        """Take note of a success."""
        if self._failures >= 3:
            log.info("can %s again", self._what)
        self._failures = 0

    def bad(self, error: Exception, seconds: float | None = None) -> None:
        """Wait after a failure; `seconds` is what the other side asks for."""
        self._failures += 1
        if self._failures == 3:
            log.warning("cannot %s, will go on trying: %s", self._what, error)
        longest = min(0.1 * 2 ** min(self._failures, 10), LONGEST_WAIT)
        self._wait(max(longest, min(seconds or 0, 60)) * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret


class Listener(threading.Thread):
    """Asks for the next round again and again and hands on what it is told."""

    def __init__(
        self, environment: Environment, tell: Callable[[protocol.Command], None], greet: Callable[[str], None]
    ):
        super().__init__(name="listener", daemon=True)
        self._environment, self._tell, self._greet = environment, tell, greet
        self._after, self._over = 0, False

    def run(self) -> None:
        """Ask until told to leave or that the job is done."""
        connection, patience = Connection(self._environment), Patience("ask the coordinator for the round", time.sleep)
        while not self._over:
            path = f"{self._environment.path}/round?after={self._after}"
            asked = time.monotonic()
            try:
                body, identity = connection.request("GET", path, patience=HELD_SECONDS + CONNECT_SECONDS)
                self._greet(identity)
                if body is not None:
                    self._hand_on(protocol.parse(body, self._environment.pod))
            except Unanswered as error:
                patience.bad(error, error.wait)
            except (Refused, protocol.ProtocolError) as error:
                patience.bad(error, LONGEST_WAIT)
            else:
                patience.good()
                if body is None and time.monotonic() - asked < LEAST_SECONDS:
                    time.sleep(random.uniform(0.5, 1.0) * LEAST_SECONDS)  # noqa: S311 - not a secret

    def _hand_on(self, command: protocol.Command) -> None:
        if isinstance(command, protocol.Round):
            if command.number <= self._after:
                raise protocol.ProtocolError(f"round {command.number} is not newer than {self._after}")
            self._after = command.number
        else:
            self._over = True  # nothing that comes after this could change it
        self._tell(command)


class Reporter(threading.Thread):
    """Sends reports until they arrive, in their order; of each kind only the newest matters."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(name="reporter", daemon=True)
        self._environment = environment
        self._changed = threading.Condition()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._state: dict[str, Any] | None = None
        self._told: str | None = None  # the coordinator that knows the state

    def report(self, body: dict[str, Any]) -> None:
        """Send a report, in place of an older one of its kind that has not been sent yet."""
        with self._changed:
            if body["type"] == "state":
                self._state = body
            self._waiting.pop(body["type"], None)  # it goes behind what was reported before it
            self._waiting[body["type"]] = {"version": protocol.VERSION, **body}
            self._changed.notify_all()

    def greet(self, identity: str) -> None:
        """Take note of who answers: a coordinator that is new knows nothing of this agent."""
        with self._changed:
            if self._state and "state" not in self._waiting and identity != self._told:
                self.report(self._state)

    def run(self) -> None:
        """Send what waits, for as long as the agent lives."""
        connection, patience = Connection(self._environment), Patience("report to the coordinator", time.sleep)
        while True:
            kind, body = self._next()
            try:
                _, identity = connection.request("POST", f"{self._environment.path}/reports", body)
            except Unanswered as error:
                patience.bad(error, error.wait)
                continue
            except Refused as error:
                log.error("the coordinator refuses a report of the type %s: %s", kind, error)  # noqa: TRY400 - no bug
                identity = None
            patience.good()
            with self._changed:
                if kind == "state" and identity is not None:
                    self._told = identity
                if self._waiting.get(kind) is body:
                    del self._waiting[kind]
                self._changed.notify_all()

    def _next(self) -> tuple[str, dict[str, Any]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return next(iter(self._waiting.items()))

    def flush(self, seconds: float) -> None:
        """Wait until all reports were sent, but not longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout=seconds)
