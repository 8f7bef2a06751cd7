"""The parts of a process of which none may end before the process does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

END_SECONDS = 10.0


class Parts:
    """Tasks that run until the process ends; the first that ends by itself ends the process.

    `code` is the exit code: 0 as long as nothing ended untold.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        """Begin without parts.

        Args:
            stop: set when the process was told to end.

        """
        self._stop = stop
        self._tasks: set[asyncio.Task[Any]] = set()
        self.code = 0

    def start(self, part: Coroutine[Any, Any, Any], name: str) -> None:
        """Start a part."""
        self._tasks.add(asyncio.create_task(part, name=name))

    async def outlive(self, awaitable: Awaitable[Any]) -> bool:
        """Wait for something; return False if the process has to end before it is there.

        Raises:
            Exception: what it raised.

        """
        awaited = asyncio.ensure_future(awaitable)
        told = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({awaited, told, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            awaited.cancel()
        for part in done & self._tasks:
            self._judge(part)
        if self._stop.is_set() or done & self._tasks:
            return False
        await awaited
        return True

    async def end(self) -> None:
        """Cancel all parts and wait for their ends, for a while."""
        for part in self._tasks:
            part.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS)

    def _judge(self, part: asyncio.Task[Any]) -> None:
        error = None if part.cancelled() else part.exception()
        if error is None and self._stop.is_set():
            return
        log.error(
            "%s has ended: %s; so does the process", part.get_name(), error or "nothing was raised", exc_info=error
        )
        self.code = 1
