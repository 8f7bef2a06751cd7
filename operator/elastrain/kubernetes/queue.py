"""Which job is looked at when: a queue of keys in which each key is worked on by one task at a time.

A key added while it waits is one entry; added while it is worked on, it is looked at once more afterwards.
Failures are tried again after waits that double; a moment that a look asked for replaces the earlier one. First
come, first served, so that one busy job holds nobody up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from elastrain.kubernetes.errors import ApiError

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

WORKERS = 16
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0


class Queue(Generic[K]):
    """Calls `work(key)` for keys that were added; it returns after how many seconds to call again, or None."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = WORKERS,
        first_wait: float = FIRST_WAIT,
        longest_wait: float = LONGEST_WAIT,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare an empty queue.

        Args:
            work: looks at a key; what it raises is logged and the key is tried again.
            workers: how many keys are looked at at once.
            first_wait: seconds before the second try after a failure; doubles with each.
            longest_wait: the most that it doubles to.
            jitter: returns numbers in [0, 1).

        """
        self._work = work
        self._workers = workers
        self._first_wait, self._longest_wait, self._jitter = first_wait, longest_wait, jitter
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()  # the keys in _ready
        self._busy: set[K] = set()
        self._again: set[K] = set()  # added while busy
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Have a key looked at as soon as a worker is free."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    @property
    def idle(self) -> bool:
        """Whether no key waits for a worker or is looked at; timers may be running."""
        return not self._waiting and not self._busy

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._worker())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy.add(key)
            self._cancel(key)  # this look says when the next one is
            try:
                after = await self._look(key)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif after is not None:
                self._timers[key] = asyncio.get_running_loop().call_later(after, self._due, key)

    async def _look(self, key: K) -> float | None:
        try:
            after = await self._work(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(self._first_wait * 2.0 ** min(failures - 1, 30), self._longest_wait)
            wait *= 0.5 + self._jitter() / 2
            foreseen = isinstance(error, ApiError)
            log.warning(
                "%s: %s: %s; trying again in %.1f s", key, type(error).__name__, error, wait, exc_info=not foreseen
            )
            return wait
        self._failures.pop(key, None)
        return after

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
