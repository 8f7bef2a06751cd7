"""The agent's side of the connection to the coordinator: one thread asks, one reports.

Both go on for as long as it takes: an absent coordinator stops nobody from training. The token is read for each
request and the certificate authority for each connection, since the kubelet renews both in place.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from elastrain_trainer.agent import protocol
from elastrain_trainer.agent.environment import Environment

log = logging.getLogger("elastrain.agent")

POLL_SECONDS = 60
"""Longer than the coordinator holds a request, so that a dead connection is noticed."""

LONGEST_WAIT = 10.0


class Unanswered(Exception):
    """A request got no useful answer; it is tried again after `wait` seconds."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class Connection:
    """One reused connection; not for several threads."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
        """Send one request.

        Returns:
            The status, the JSON body (None if there is none), and the coordinator's id.

        Raises:
            Unanswered: no connection, no answer, or an answer of 401, 403, 404, 429 or 5xx.

        """
        try:
            connection = self._connection or self._connect()
            token = (self._environment.credentials / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException, ssl.SSLError) as error:
            self.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        identity = answer.headers.get("Elastrain-Coordinator", "")
        if answer.status >= 400:
            after = answer.headers.get("Retry-After", "")
            raise Unanswered(
                f"{answer.status}: {content[:200].decode(errors='replace')}", float(after) if after.isdigit() else None
            )
        return answer.status, json.loads(content) if content else None, identity

    def _connect(self) -> http.client.HTTPConnection:
        url = urllib.parse.urlsplit(self._environment.coordinator_url)
        context = ssl.create_default_context(cafile=str(self._environment.credentials / "ca.crt"))
        self._connection = http.client.HTTPSConnection(
            url.hostname or "", url.port or 443, timeout=POLL_SECONDS, context=context
        )
        return self._connection

    def close(self) -> None:
        """Drop the connection; the next request makes another."""
        if self._connection:
            self._connection.close()
        self._connection = None


class _Patience:
    """Waits between attempts: doubling up to a bound, with jitter, told once for each spell of absence."""

    def __init__(self, what: str, stopped: threading.Event) -> None:
        self._what, self._stopped, self._failures = what, stopped, 0

    def good(self) -> None:
        if self._failures:
            log.info("%s again", self._what)
        self._failures = 0

    def bad(self, error: Unanswered) -> None:
        self._failures += 1
        if self._failures == 3:
            log.warning("cannot %s, will go on trying: %s", self._what, error)
        wait = error.wait or min(0.1 * 2**self._failures, LONGEST_WAIT)
        self._stopped.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


class Listener(threading.Thread):
    """Asks for the next round again and again and hands on what it is told."""

    def __init__(
        self, environment: Environment, tell: Callable[[protocol.Command], None], greet: Callable[[str], None]
    ):
        super().__init__(name="listener", daemon=True)
        self._environment, self._tell, self._greet = environment, tell, greet
        self._after, self._stopped = 0, threading.Event()

    def run(self) -> None:
        """Ask until told to leave or that the job is done."""
        connection, patience = Connection(self._environment), _Patience("ask the coordinator", self._stopped)
        while not self._stopped.is_set():
            try:
                _, body, identity = connection.request("GET", f"{self._environment.path}/round?after={self._after}")
                patience.good()
                self._greet(identity)
                if body is not None:
                    self._hand_on(protocol.parse(body, self._environment.pod))
            except Unanswered as error:
                patience.bad(error)
            except protocol.ProtocolError as error:
                patience.bad(Unanswered(str(error), wait=2.0))

    def _hand_on(self, command: protocol.Command) -> None:
        if isinstance(command, protocol.Round):
            self._after = command.number
        else:
            self._stopped.set()  # nothing that comes after this could change it
        self._tell(command)

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()


class Reporter(threading.Thread):
    """Sends reports until they arrive; of each kind only the newest matters."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(name="reporter", daemon=True)
        self._environment = environment
        self._changed = threading.Condition()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._state: dict[str, Any] | None = None
        self._identity: str | None = None
        self._stopped = threading.Event()

    def report(self, body: dict[str, Any]) -> None:
        """Send a report, in place of an older one of its kind that has not been sent yet."""
        with self._changed:
            if body["type"] == "state":
                self._state = body
            self._waiting[body["type"]] = {"version": protocol.VERSION, **body}
            self._changed.notify()

    def greet(self, identity: str) -> None:
        """Take note of who answers: a coordinator that is new knows nothing of this agent."""
        with self._changed:
            known, self._identity = self._identity, identity
        if known != identity and known is not None and self._state:
            self.report(self._state)

    def run(self) -> None:
        """Send what waits, for as long as the agent lives."""
        connection, patience = Connection(self._environment), _Patience("report to the coordinator", self._stopped)
        while not self._stopped.is_set():
            with self._changed:
                while not self._waiting and not self._stopped.is_set():
                    self._changed.wait()
                if not self._waiting:
                    return
                kind = "state" if "state" in self._waiting else next(iter(self._waiting))
                body = self._waiting[kind]
            try:
                connection.request("POST", f"{self._environment.path}/reports", body)
                patience.good()
                with self._changed:
                    if self._waiting.get(kind) is body:
                        del self._waiting[kind]
                    self._changed.notify_all()
            except Unanswered as error:
                patience.bad(error)

    def flush(self, seconds: float) -> None:
        """Wait until all reports were sent, but not longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout=seconds)
