"""How often tokens are reviewed, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from elastrain.coordination import Caller, ReviewUnavailable
from elastrain.coordination.authentication import CAPACITY, Authentication

POD = Caller("default", "sft-0-0", "uid-1")


class Reviews:
    """Counts the reviews, lets them through one event at a time, and moves the loop's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.good = {"good": POD}
        self.available = True
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.skipped = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.skipped)

    async def review(self, token: str) -> Caller | None:
        self.asked.append(token)
        self.begun.set()
        await self.open.wait()
        if not self.available:
            raise ReviewUnavailable("no API server")
        return self.good.get(token)


@pytest.fixture
async def reviews(monkeypatch: pytest.MonkeyPatch) -> Reviews:
    return Reviews(monkeypatch)


async def test_a_good_token_is_reviewed_again_after_a_minute(reviews: Reviews) -> None:
    authentication = Authentication(reviews.review)
    assert await authentication.caller("good") == POD
    reviews.skipped += 59
    del reviews.good["good"]
    assert await authentication.caller("good") == POD
    reviews.skipped += 2
    assert await authentication.caller("good") is None
    assert len(reviews.asked) == 2


async def test_a_refused_token_is_reviewed_again_soon(reviews: Reviews) -> None:
    authentication = Authentication(reviews.review)
    assert await authentication.caller("early") is None
    assert await authentication.caller("early") is None
    reviews.good["early"] = POD
    reviews.skipped += 3
    assert await authentication.caller("early") == POD
    assert len(reviews.asked) == 2


async def test_a_waiter_that_goes_away_does_not_end_the_review_of_others(reviews: Reviews) -> None:
    reviews.open.clear()
    authentication = Authentication(reviews.review)
    first, second = (asyncio.create_task(authentication.caller("good")) for _ in range(2))
    await reviews.begun.wait()
    first.cancel()
    reviews.open.set()
    assert await second == POD
    assert reviews.asked == ["good"]


async def test_a_review_that_cannot_be_made_is_not_remembered(reviews: Reviews) -> None:
    reviews.available = False
    authentication = Authentication(reviews.review)
    with pytest.raises(ReviewUnavailable):
        await authentication.caller("good")
    reviews.available = True
    assert await authentication.caller("good") == POD


async def test_what_is_remembered_is_bounded(reviews: Reviews) -> None:
    authentication = Authentication(reviews.review)
    for number in range(CAPACITY + 10):
        await authentication.caller(str(number))
    assert len(authentication._reviewed) == CAPACITY


async def test_closing_ends_what_is_under_way(reviews: Reviews) -> None:
    reviews.open.clear()
    authentication = Authentication(reviews.review)
    waiting = asyncio.create_task(authentication.caller("good"))
    await reviews.begun.wait()
    await authentication.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert authentication._reviews == {}
