"""The cache equals the server after any sequence of writes, broken streams, compactions and refused requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.faults import objects, virtual_time
from tests.faults.fake_apiserver import Answers, Break, FakeApiServer, Fault, Lost, Silent, When

from elastrain.kubernetes.cache import Cache, Key, Owner
from elastrain.kubernetes.client import PODS, Client
from elastrain.kubernetes.errors import AlreadyExists, NotFound
from elastrain.kubernetes.observe import pod_entry
from elastrain.kubernetes.reflector import Reflector
from elastrain.kubernetes.transport import Request

SELECTOR = "elastrain.dev/job"
COLLECTION = objects.PODS.format("default")
LONG = 400.0  # seconds: more than a stream's silence, the longest wait between two tries and both again


@dataclass
class Bench:
    """A server, a reflector that follows it, and a mirror kept by what the cache tells of changes."""

    server: FakeApiServer
    namespace: str | None = None
    pending: list[Fault] = field(default_factory=list)
    mirror: dict[str, Any] = field(default_factory=dict)
    told: int = 0

    def __post_init__(self) -> None:
        self.server.faults = self.fault
        self.client = Client(self.server, jitter=lambda: 0.5)
        self.cache = Cache(pod_entry, self.changed)
        self.reflector = Reflector(
            self.client, PODS, self.cache, namespace=self.namespace, selector=SELECTOR, jitter=lambda: 0.5
        )

    def fault(self, request: Request) -> Fault | None:
        return self.pending.pop() if self.pending and request.method == "GET" else None

    def changed(self, key: Key) -> None:
        self.told += 1
        self.stale = True

    def refresh(self) -> None:
        """Read the cache as its user does: only after it told of a change."""
        if self.stale:
            self.mirror = {entry.uid: entry.value for entry in self.cache.entries()}
            self.stale = False

    stale: bool = False

    def truth(self) -> dict[str, Any]:
        found = {}
        for obj in self.server.objects("pods"):
            if SELECTOR in obj["metadata"]["labels"] and (entry := pod_entry(obj)):
                found[entry.uid] = entry.value
        return found


# What may happen, each as a coroutine function of the bench


def _name(number: int) -> str:
    return f"sft-{number}-0"


@dataclass(frozen=True)
class Create:
    number: int
    own: bool
    late: float

    async def __call__(self, bench: Bench) -> None:
        body = objects.pod(_name(self.number))
        if not self.own:
            bench.server.handle(Request("POST", COLLECTION, body=json.dumps(body).encode()))
            return
        with suppress(AlreadyExists):
            stored = await bench.client.create(PODS, body, namespace="default")
            _later(self.late, lambda: bench.cache.insert(stored))


@dataclass(frozen=True)
class Run:
    number: int
    address: int

    async def __call__(self, bench: Bench) -> None:
        with_status = {"phase": "Running", "podIP": f"10.0.0.{self.address}"}
        with suppress(KeyError):
            bench.server.set_status("pods", "default", _name(self.number), with_status)


@dataclass(frozen=True)
class Delete:
    number: int
    own: bool
    late: float

    async def __call__(self, bench: Bench) -> None:
        try:
            obj = bench.server.get("pods", "default", _name(self.number))
        except StopIteration:
            return
        if not self.own:
            bench.server.remove("pods", "default", _name(self.number))
            return
        try:
            left = await bench.client.delete(PODS, "default", _name(self.number), uid=obj["metadata"]["uid"])
        except NotFound:
            bench.cache.remove(obj["metadata"]["uid"])
        else:
            _later(self.late, lambda: bench.cache.insert(left))


@dataclass(frozen=True)
class Relabel:
    number: int

    async def __call__(self, bench: Bench) -> None:
        try:
            obj = bench.server.get("pods", "default", _name(self.number))
        except StopIteration:
            return
        labels = dict(obj["metadata"]["labels"])
        if labels.pop(SELECTOR, None) is None:
            labels[SELECTOR] = "sft"
        bench.server.put(COLLECTION, {**obj, "metadata": {**obj["metadata"], "labels": labels}})


@dataclass(frozen=True)
class Simple:
    what: str

    async def __call__(self, bench: Bench) -> None:
        getattr(bench.server, self.what)()


@dataclass(frozen=True)
class Streams:
    how: Break

    async def __call__(self, bench: Bench) -> None:
        bench.server.break_streams(self.how)


@dataclass(frozen=True)
class Faults:
    faults: tuple[Fault, ...]

    async def __call__(self, bench: Bench) -> None:
        bench.pending.extend(self.faults)


@dataclass(frozen=True)
class Wait:
    seconds: float

    async def __call__(self, bench: Bench) -> None:
        await asyncio.sleep(self.seconds)


def _later(seconds: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)


_numbers = st.integers(0, 3)
_late = st.sampled_from([0.0, 0.1, 2.0, 40.0])
_faults = st.sampled_from([Lost(), Silent(), Answers(500), Answers(503), Answers(429, 2), Answers(410)])
_steps = st.one_of(
    st.builds(Create, _numbers, st.booleans(), _late),
    st.builds(Run, _numbers, st.integers(1, 3)),
    st.builds(Delete, _numbers, st.booleans(), _late),
    st.builds(Relabel, _numbers),
    st.builds(Simple, st.sampled_from(["compact", "bookmark", "finish_deletions"])),
    st.builds(Streams, st.sampled_from(Break)),
    st.builds(Faults, st.lists(_faults, max_size=3).map(tuple)),
    st.builds(Wait, st.sampled_from([0.0, 0.1, 1.0, 20.0, 90.0, 400.0])),
)


async def _settle(bench: Bench) -> None:
    """Let time pass without faults, with the bookmarks that a server sends."""
    bench.pending.clear()
    for _ in range(int(LONG // 50)):
        await asyncio.sleep(50)
        bench.server.bookmark()
    await asyncio.sleep(1)


async def _play(steps: list[Any], namespace: str | None, page: int) -> None:
    bench = Bench(FakeApiServer(page=page), namespace)
    task = asyncio.create_task(bench.reflector.run())
    for step in steps:
        await step(bench)
        bench.refresh()
    await _settle(bench)
    bench.refresh()
    try:
        assert not task.done()
        assert {entry.uid: entry.value for entry in bench.cache.entries()} == bench.truth()
        assert bench.mirror == bench.truth(), "a change was not told of"
        by_owner = {entry.uid for entry in bench.cache.of(Owner(Key("default", "sft"), "job-1")).values()}
        assert by_owner == set(bench.truth())
    finally:
        task.cancel()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_steps, max_size=25), st.sampled_from([None, "default"]), st.sampled_from([1, 2, 500]))
def test_cache_equals_server_after_any_sequence(steps: list[Any], namespace: str | None, page: int) -> None:
    virtual_time.run(_play(steps, namespace, page))


def test_own_creation_is_seen_at_once_though_the_stream_is_silent() -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer())
        task = asyncio.create_task(bench.reflector.run())
        await bench.reflector.wait()
        await asyncio.sleep(1)
        bench.server.break_streams(Break.STALL)
        stored = await bench.client.create(PODS, objects.pod(), namespace="default")
        bench.cache.insert(stored)
        assert [entry.value[0].name for entry in bench.cache.entries()] == ["sft-0-0"]
        task.cancel()

    virtual_time.run(main())


def test_a_pod_deleted_before_the_answer_to_its_creation_came_stays_gone() -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer())
        task = asyncio.create_task(bench.reflector.run())
        await bench.reflector.wait()
        stored = await bench.client.create(PODS, objects.pod(), namespace="default")
        await asyncio.sleep(1)
        bench.server.remove("pods", "default", "sft-0-0")
        await asyncio.sleep(1)
        bench.cache.insert(stored)
        assert len(bench.cache) == 0
        task.cancel()

    virtual_time.run(main())


@pytest.mark.parametrize("how", [Break.CUT, Break.STALL, Break.ERROR, Break.EXPIRE])
def test_deletion_during_a_break_is_told_of(how: Break) -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer())
        bench.server.put(COLLECTION, objects.pod())
        task = asyncio.create_task(bench.reflector.run())
        await bench.reflector.wait()
        await asyncio.sleep(1)
        bench.server.break_streams(how)
        bench.server.remove("pods", "default", "sft-0-0")
        bench.server.compact()
        told = bench.told
        await asyncio.sleep(100)
        assert len(bench.cache) == 0
        assert bench.told > told
        task.cancel()

    virtual_time.run(main())


def test_a_server_that_always_says_410_is_not_asked_in_a_hot_loop() -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer())
        bench.server.faults = lambda request: Answers(410) if "watch" in request.query else None
        task = asyncio.create_task(bench.reflector.run())
        await asyncio.sleep(600)
        # 0.375 s, doubling up to 22.5 s: 6 tries in the first 24 s, then one each 22.5 s; two requests each.
        assert len(bench.server.requests) <= 2 * (7 + 600 / 22.5)
        task.cancel()

    virtual_time.run(main())


def test_pages_are_read_and_a_list_that_expires_half_way_is_begun_again() -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer(page=2))
        for number in range(5):
            bench.server.put(COLLECTION, objects.pod(_name(number)))
        expired = []

        def compact_once(request: Request) -> Fault | None:
            if "continue" in request.query and not expired:
                expired.append(request)
                bench.server.put(COLLECTION, objects.pod(_name(7)))
                bench.server.compact()
            return None

        bench.server.faults = compact_once
        task = asyncio.create_task(bench.reflector.run())
        await bench.reflector.wait()
        assert expired
        assert len(bench.cache) == 6
        task.cancel()

    virtual_time.run(main())


def test_create_whose_answer_was_lost_is_found_to_exist() -> None:
    async def main() -> None:
        server = FakeApiServer(faults=lambda r: Lost(When.DONE) if not server.objects("pods") else None)
        client = Client(server)
        with pytest.raises(AlreadyExists):
            await client.create(PODS, objects.pod(), namespace="default")
        assert len(server.objects("pods")) == 1

    virtual_time.run(main())


def test_an_object_that_cannot_be_read_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench = Bench(FakeApiServer())
        broken = objects.pod()
        broken["metadata"]["ownerReferences"] = [
            {"kind": "TrainJob", "apiVersion": "elastrain.dev/v1", "controller": True}
        ]
        bench.server.put(COLLECTION, broken)
        task = asyncio.create_task(bench.reflector.run())
        await bench.reflector.wait()
        bench.server.put(COLLECTION, objects.pod("sft-1-0"))
        await asyncio.sleep(1)
        assert [entry.value[0].name for entry in bench.cache.entries()] == ["sft-1-0"]
        task.cancel()

    virtual_time.run(main())
    assert "cannot be read" in caplog.text
