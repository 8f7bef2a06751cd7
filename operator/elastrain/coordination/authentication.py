"""Tokens to callers, with one review at a time for each token and its result kept for a while.

The review itself is given by the composer (in the cluster: a TokenReview). Only hashes of tokens are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from elastrain.coordination.identity import Caller

Authenticate = Callable[[str], Awaitable[Caller | None]]

KNOWN_SECONDS = 60.0
REFUSED_SECONDS = 2.0
CAPACITY = 20_000
CONCURRENT_REVIEWS = 32


class ReviewUnavailable(Exception):
    """Whether a token is good cannot be told now; asking again may help."""


@dataclass(frozen=True, slots=True)
class _Reviewed:
    caller: Caller | None
    until: float


class Authentication:
    """Remembers whom a token belongs to for a minute, and for two seconds that it is not good."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self._reviewed: dict[bytes, _Reviewed] = {}
        self._reviews: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_REVIEWS)

    async def caller(self, token: str) -> Caller | None:
        """Return the pod that the token is bound to, or None if the token is not good.

        Raises:
            ReviewUnavailable: it cannot be told now.

        """
        key = hashlib.sha256(token.encode()).digest()
        known = self._reviewed.get(key)
        if known and asyncio.get_running_loop().time() < known.until:
            return known.caller
        review = self._reviews.get(key)
        if review is None:
            review = self._reviews[key] = asyncio.create_task(self._review(key, token))
            review.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(review)  # others may wait for it too, so no one caller may cancel it

    async def _review(self, key: bytes, token: str) -> Caller | None:
        async with self._slots:
            caller = await self._authenticate(token)
        until = asyncio.get_running_loop().time() + (KNOWN_SECONDS if caller else REFUSED_SECONDS)
        self._reviewed.pop(key, None)  # so that the order of insertion is the order of reviews
        self._reviewed[key] = _Reviewed(caller, until)
        while len(self._reviewed) > CAPACITY:
            del self._reviewed[next(iter(self._reviewed))]
        return caller

    def _end(self, key: bytes, review: asyncio.Task[Caller | None]) -> None:
        del self._reviews[key]
        if not review.cancelled():
            review.exception()  # every waiter may be gone; then nobody else fetches it

    async def close(self) -> None:
        """End the reviews that are under way."""
        reviews = list(self._reviews.values())
        for review in reviews:
            review.cancel()
        await asyncio.gather(*reviews, return_exceptions=True)
