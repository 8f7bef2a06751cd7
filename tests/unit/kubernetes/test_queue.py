"""The work queue, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults import virtual_time

from elastrain.kubernetes.queue import Queue


class Work:
    """Notes who was looked at when."""

    def __init__(self, seconds: float = 1.0, again: Callable[[str, int], float | None] = lambda _k, _n: None) -> None:
        self.seconds, self.again = seconds, again
        self.looks: list[tuple[float, str]] = []
        self.busy: set[str] = set()
        self.most = 0

    async def __call__(self, key: str) -> float | None:
        assert key not in self.busy, "two looks at once at one key"
        self.busy.add(key)
        self.most = max(self.most, len(self.busy))
        self.looks.append((asyncio.get_running_loop().time() - 1000.0, key))
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy.discard(key)
        return self.again(key, sum(k == key for _, k in self.looks))


def play(work: Work, scene: Callable[[Queue[str]], Awaitable[None]], workers: int = 2) -> list[tuple[float, str]]:
    async def main() -> None:
        queue: Queue[str] = Queue(work, workers=workers, jitter=lambda: 1.0)
        task = asyncio.create_task(queue.run())
        await scene(queue)
        assert not task.done()
        assert queue.idle
        task.cancel()

    virtual_time.run(main())
    return work.looks


def test_a_key_added_many_times_is_looked_at_once() -> None:
    async def scene(queue: Queue[str]) -> None:
        for _ in range(10):
            queue.add("a")
        await asyncio.sleep(10)

    assert play(Work(), scene) == [(0, "a")]


def test_a_key_added_while_it_is_looked_at_is_looked_at_once_more() -> None:
    async def scene(queue: Queue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(10)

    assert play(Work(), scene) == [(0, "a"), (1, "a")]


def test_workers_bound_how_many_are_looked_at_at_once_and_all_get_their_turn() -> None:
    async def scene(queue: Queue[str]) -> None:
        for key in "abcdef":
            queue.add(key)
        await asyncio.sleep(10)

    work = Work()
    assert [key for _, key in play(work, scene, workers=2)] == list("abcdef")
    assert work.most == 2


def test_a_busy_key_goes_to_the_end_of_the_line() -> None:
    async def scene(queue: Queue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(0.5)
        queue.add("b")
        queue.add("a")
        await asyncio.sleep(10)

    assert [key for _, key in play(Work(), scene, workers=1)] == ["a", "b", "a"]


def test_the_moment_that_a_look_asked_for_is_kept() -> None:
    async def scene(queue: Queue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(100)

    work = Work(again=lambda _key, count: 30.0 if count < 3 else None)
    assert play(work, scene) == [(0, "a"), (31, "a"), (62, "a")]


def test_a_look_in_between_replaces_the_moment() -> None:
    async def scene(queue: Queue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(100)

    work = Work(again=lambda _key, count: 30.0 if count < 3 else None)
    assert play(work, scene) == [(0, "a"), (10, "a"), (41, "a")]


def test_failures_are_tried_again_after_waits_that_double_and_a_success_begins_anew() -> None:
    fails = 4

    def again(_key: str, count: int) -> float | None:
        if count <= fails or count == fails + 2:
            raise RuntimeError("no")
        return 100.0 if count == fails + 1 else None

    async def scene(queue: Queue[str]) -> None:
        queue.add("a")
        await asyncio.sleep(1000)

    times = [time for time, _ in play(Work(seconds=0, again=again), scene)]
    assert times == [0, 0.5, 1.5, 3.5, 7.5, 107.5, 108.0]


def test_the_wait_is_bounded_and_others_are_not_held_up() -> None:
    def again(key: str, _count: int) -> float | None:
        if key == "bad":
            raise RuntimeError("no")
        return None

    async def scene(queue: Queue[str]) -> None:
        queue.add("bad")
        await asyncio.sleep(3600)
        queue.add("good")
        await asyncio.sleep(1)

    looks = play(Work(seconds=0, again=again), scene)
    bad = [time for time, key in looks if key == "bad"]
    assert max(later - earlier for earlier, later in pairwise(bad)) == pytest.approx(60)
    assert (3600, "good") in looks


_adds = st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, 2.5]), st.sampled_from("abc")), max_size=30)


@settings(max_examples=100, deadline=None)
@given(_adds, st.integers(1, 3))
def test_every_add_is_followed_by_a_look(adds: list[tuple[float, str]], workers: int) -> None:
    added: list[tuple[float, str]] = []

    async def scene(queue: Queue[str]) -> None:
        for wait, key in adds:
            await asyncio.sleep(wait)
            queue.add(key)
            added.append((asyncio.get_running_loop().time() - 1000.0, key))
        await asyncio.sleep(100)

    looks = play(Work(), scene, workers)
    for time, key in added:
        assert any(k == key and look >= time for look, k in looks)
    assert len(looks) <= len(added)
