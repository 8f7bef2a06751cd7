"""The operator is killed at every write that it makes; whoever follows it brings about the same end.

The planner is the real one; kubelets and agents are played by `world`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.faults import virtual_time
from tests.faults.fake_apiserver import Answers, Fault, Lost, Silent, When
from tests.faults.world import World

from elastrain.kubernetes.transport import Request

Json = dict[str, Any]
Story = Callable[[World], Awaitable[None]]


async def start(world: World) -> None:
    world.apply(nodes=3)
    await world.settle()


async def grow(world: World) -> None:
    world.apply(nodes=2)
    await world.settle()
    world.apply(nodes=4)
    await world.settle()


async def shrink(world: World) -> None:
    world.apply(nodes=4)
    await world.settle()
    world.apply(nodes=2)
    await world.settle()


async def rest_and_resume(world: World) -> None:
    world.apply(nodes=2)
    await world.settle()
    world.apply(suspend=True)
    await world.settle()
    world.apply(suspend=False)
    await world.settle()


async def lose_a_pod(world: World) -> None:
    world.apply(nodes=2)
    await world.settle()
    world.server.remove("pods", "default", "sft-1-0")
    await world.settle()


async def roll_out(world: World) -> None:
    world.apply(nodes=2)
    await world.settle()
    world.apply(procsPerNode=2)
    await world.settle()


async def complete_and_clean(world: World) -> None:
    world.apply(nodes=2, cleanPodPolicy="All")
    await world.settle()
    world.agents.finish()
    await world.settle()


async def complete_and_vanish(world: World) -> None:
    world.apply(nodes=2, ttlSecondsAfterFinished=5)
    await world.settle()
    world.agents.finish()
    await world.settle()


STORIES = [start, grow, shrink, rest_and_resume, lose_a_pod, roll_out, complete_and_clean, complete_and_vanish]


def tell(story: Story, dies_at: int | None = None, when: When = When.UNDONE) -> tuple[World, Json]:
    """Tell a story with an operator that dies at its n-th write; return the world and its end."""

    async def main() -> tuple[World, Json]:
        world = World()
        world.start(dies_at, when)
        await story(world)
        outcome = world.outcome()
        await world.stop()
        return world, outcome

    return virtual_time.run(main())


def writes_of(story: Story) -> int:
    world, _ = tell(story)
    assert world.power is not None
    return world.power.writes


def doubled(world: World) -> list[str]:
    """Return node indices that had two pods at once that were neither deleted nor over."""
    live: dict[str, set[str]] = defaultdict(set)
    found = []
    for change in world.server.history("pods"):
        for pod, holds in ((change.before, False), (change.after, True)):
            if pod is None:
                continue
            index, uid = pod["metadata"]["labels"]["elastrain.dev/node-index"], pod["metadata"]["uid"]
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            live[index].discard(uid)
            if holds and not over and not pod["metadata"].get("deletionTimestamp"):
                live[index].add(uid)
            if len(live[index]) > 1:
                found.append(index)
    return found


@pytest.mark.parametrize("story", STORIES)
def test_the_stories_end_as_they_should(story: Story) -> None:
    world, end = tell(story)
    wanted = {
        start: ("Running", 3),
        grow: ("Running", 4),
        shrink: ("Running", 2),
        rest_and_resume: ("Running", 2),
        lose_a_pod: ("Running", 2),
        roll_out: ("Running", 2),
        complete_and_clean: ("Complete", 0),
        complete_and_vanish: (None, 0),
    }[story]
    running = [pod for pod in end["pods"] if pod[2] == "Running"]
    assert (end["phase"], len(running)) == wanted
    assert doubled(world) == []
    gone = story is complete_and_vanish
    assert (end["services"], end["policies"]) == (([], []) if gone else (["sft"], ["sft"]))


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("story", STORIES)
def test_a_crash_at_any_write_changes_nothing_in_the_end(story: Story, when: When) -> None:
    _, wanted = tell(story)
    for dies_at in range(1, writes_of(story) + 1):
        world, end = tell(story, dies_at, when)
        assert world.deaths == 1
        assert end == wanted, f"killed at write {dies_at}"
        assert doubled(world) == [], f"killed at write {dies_at}"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("story", [grow, shrink, lose_a_pod, complete_and_clean])
def test_a_storm_of_errors_passes_and_leaves_nothing_behind(story: Story, seed: int) -> None:
    """For a minute, three requests of ten fail: refused, lost before or after they were carried out, or late."""
    _, wanted = tell(story)
    dice = random.Random(seed)  # noqa: S311 - no secret
    kinds: list[Fault] = [
        Answers(429, 1), Answers(429), Answers(500), Answers(503), Answers(500, when=When.DONE), Answers(504),
        Lost(), Lost(When.DONE), Silent(), Silent(When.DONE),
    ]  # fmt: skip

    async def main() -> tuple[World, Json]:
        world = World(quiet=300)  # five silent attempts of half a minute each, and the longest wait of the queue
        ends = asyncio.get_running_loop().time() + 60

        def fault(_request: Request) -> Fault | None:
            stormy = asyncio.get_running_loop().time() < ends
            return dice.choice(kinds) if stormy and dice.random() < 0.3 else None

        world.server.faults = fault
        world.start()
        await story(world)
        outcome = world.outcome()
        await world.stop()
        return world, outcome

    world, end = virtual_time.run(main())
    assert doubled(world) == []
    assert end == wanted
