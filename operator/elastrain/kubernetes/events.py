"""Events on TrainJobs, as `kubectl describe` shows them.

The same event again raises the count of the first one; a job that says too much is cut short. An event that
cannot be written is no reason to stop: it tells people, the conditions carry the truth.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from elastrain.api import GROUP, KIND, VERSION
from elastrain.kubernetes.cache import Key
from elastrain.kubernetes.client import EVENTS, Client, Json
from elastrain.kubernetes.errors import ApiError
from elastrain.planning import EmitEvent

log = logging.getLogger(__name__)

COMPONENT = "elastrain"
REMEMBERED = 4096
BURST, REFILL_SECONDS = 25.0, 30.0
"""A job may tell this many events at once, and one more after each so many seconds."""


@dataclass(slots=True)
class _Told:
    name: str
    count: int


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float


class Events:
    """Writes events; one for each process."""

    def __init__(
        self, client: Client, *, instance: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Make a writer.

        Args:
            client: writes.
            instance: this replica, for `reportingInstance`.
            clock: the time of day.

        """
        self._client = client
        self._instance = instance
        self._clock = clock
        self._told: OrderedDict[tuple[str, EmitEvent], _Told] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    async def emit(self, key: Key, uid: str, event: EmitEvent) -> None:
        """Tell people of an event of the TrainJob with this key and uid; never raises for the API server's sake."""
        if not self._allowed(uid):
            log.info("%s: too many events; not told: %s: %s", key, event.reason, event.message)
            return
        try:
            await self._write(key, uid, event)
        except ApiError as error:
            log.warning("%s: the event %s could not be written: %s", key, event.reason, error.message)

    async def _write(self, key: Key, uid: str, event: EmitEvent) -> None:
        told = self._told.get((uid, event))
        now = self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if told is None:
            body = self._event(key, uid, event, now)
            await self._client.create(EVENTS, body, namespace=key.namespace)
            self._told[uid, event] = _Told(body["metadata"]["name"], 1)
            while len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            return
        told.count += 1
        self._told.move_to_end((uid, event))
        patch = {"count": told.count, "lastTimestamp": now}
        await self._client.patch(EVENTS, key.namespace, told.name, patch)

    def _event(self, key: Key, uid: str, event: EmitEvent, now: str) -> Json:
        # Unlike any other event of the job's, also one that an earlier process told.
        mark = hashlib.sha256(f"{uid}{event}{self._instance}{self._clock().timestamp()}".encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{key.name}.{mark}", "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "namespace": key.namespace,
                "name": key.name,
                "uid": uid,
            },
            "type": str(event.type),
            "reason": event.reason,
            "message": event.message[:1024],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": f"{GROUP}/operator",
            "reportingInstance": self._instance[:128],
        }

    def _allowed(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        mine = self._allowances.setdefault(uid, _Allowance(BURST, now))
        self._allowances.move_to_end(uid)
        while len(self._allowances) > REMEMBERED:
            self._allowances.popitem(last=False)
        mine.left = min(BURST, mine.left + (now - mine.at) / REFILL_SECONDS)
        mine.at = now
        if mine.left < 1:
            return False
        mine.left -= 1
        return True
