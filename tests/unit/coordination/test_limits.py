"""The bucket lets a burst through, then its rate."""

from __future__ import annotations

from elastrain.coordination.limits import TokenBucket


def test_a_burst_then_the_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(100.0) for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert bucket.take(100.25) == 0.25
    assert bucket.take(100.5) == 0
    assert bucket.take(100.5) == 0.5


def test_it_never_holds_more_than_a_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    bucket.take(0.0)
    assert [bucket.take(1e6) for _ in range(4)] == [0, 0, 0, 0.5]
