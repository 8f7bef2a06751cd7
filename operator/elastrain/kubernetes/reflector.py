"""Keeps a cache equal to what the API server has: list, replace, watch, and list again after any doubt.

kopf is not used for it because nothing tells its handlers of objects that were deleted while a stream was down,
and because its start-up costs grow with the square of the number of objects. Here a list replaces the cache's
content, and deletions that no stream told of follow from the difference.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from elastrain.kubernetes.cache import Cache, Entry, version_of
from elastrain.kubernetes.client import INACTIVITY_SECONDS, Client, Resource
from elastrain.kubernetes.errors import ApiError, Gone, Unreachable

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
SHORTEST_STREAM = 1.0
"""A stream that ends in good order lasts for minutes; one that ends at once says that something is wrong."""

STEADY_SECONDS = 60.0
"""A stream that lived as long as this was a good one: after it, waiting begins anew."""


class Reflector:
    """Fills one scope of a cache with the objects that a selector matches."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        cache: Cache[Any],
        *,
        namespace: str | None = None,
        selector: str = "",
        first_wait: float = FIRST_WAIT,
        inactivity: float = INACTIVITY_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare, without asking yet.

        Args:
            client: asks.
            resource: the kind of objects.
            cache: what is kept equal to the server, within the scope `namespace`.
            namespace: None: all.
            selector: of labels.
            first_wait: seconds before the second try after a failure; doubles up to half a minute.
            inactivity: seconds of silence after which a stream is given up.
            jitter: returns numbers in [0, 1).

        """
        self._client = client
        self._resource = resource
        self._cache = cache
        self._namespace = namespace
        self._selector = selector
        self._first_wait = first_wait
        self._inactivity = inactivity
        self._jitter = jitter
        self._synced = asyncio.Event()
        self._touched = 0.0

    @property
    def name(self) -> str:
        """What is reflected, for people."""
        return f"{self._resource.plural} of {self._namespace or 'all namespaces'}"

    @property
    def synced(self) -> bool:
        """Whether the cache has been equal to the server once."""
        return self._synced.is_set()

    async def wait(self) -> None:
        """Return once the cache has been equal to the server."""
        await self._synced.wait()

    def idle_seconds(self) -> float:
        """Return for how long nothing has come in and nothing has been tried."""
        return asyncio.get_running_loop().time() - self._touched

    async def run(self) -> None:
        """Keep the cache equal to the server until cancelled; never returns."""
        wait = self._first_wait
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            try:
                await self._follow(await self._list())
            except Gone:
                log.info("%s: the revision is no longer kept; listing again", self.name)
            except ApiError as error:
                log.warning("%s: %s; listing again", self.name, error.message)
            except (KeyError, TypeError, ValueError) as error:
                log.exception("%s: an object that cannot be read (%s); listing again", self.name, type(error).__name__)
            if now() - began >= STEADY_SECONDS:
                wait = self._first_wait
            await asyncio.sleep(wait * (0.5 + self._jitter() / 2))
            wait = min(wait * 2, LONGEST_WAIT)

    def _touch(self) -> None:
        self._touched = asyncio.get_running_loop().time()

    async def _list(self) -> str:
        """Replace the scope's content by a list and return the list's revision."""
        self._touch()
        entries: list[Entry[Any]] = []
        version = ""
        async for page in self._client.list(self._resource, self._namespace, selector=self._selector):
            entries += self._cache.reduce(page.items)
            version = page.version
            self._touch()
        self._cache.replace(self._namespace, entries, int(version))
        self._synced.set()
        return version

    async def _follow(self, version: str) -> None:
        """Follow the watch from a revision on, through as many streams as end well; raises when one does not."""
        while True:
            began = asyncio.get_running_loop().time()
            self._touch()
            async for event in self._client.watch(
                self._resource,
                self._namespace,
                selector=self._selector,
                version=version,
                inactivity=self._inactivity,
            ):
                self._touch()
                self._cache.follow(self._namespace, event.type, event.object)
                version = str(version_of(event.object))
            if asyncio.get_running_loop().time() - began < SHORTEST_STREAM:
                raise Unreachable("the watch ended as soon as it had begun")
