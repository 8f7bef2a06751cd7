"""How plans are carried out against a server that refuses, changes underneath, or is slow. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.faults import objects, virtual_time
from tests.faults.fake_apiserver import Answers, FakeApiServer, status
from tests.faults.world import World, clock

from elastrain.api import Phase
from elastrain.kubernetes.cache import Cache, Key
from elastrain.kubernetes.client import Client
from elastrain.kubernetes.errors import Conflict, ServerError
from elastrain.kubernetes.events import BURST, Events
from elastrain.kubernetes.executor import CONCURRENT, Executor, Settings
from elastrain.kubernetes.jobs import Job, Jobs
from elastrain.kubernetes.manifests import Coordination
from elastrain.kubernetes.observe import pod_entry, service_entry
from elastrain.kubernetes.transport import Request, Response, Stream
from elastrain.planning import CreatePod, CreateService, DeleteJob, DeletePod, EmitEvent, EventType

Json = dict[str, Any]
KEY = Key("default", "sft")
QUOTA = status(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: few, requested: pods=1')
EVENT = EmitEvent(EventType.NORMAL, "Training", "round 1 trains")


@dataclass
class Slow:
    """A transport on which every request takes a second; counts how many are under way."""

    server: FakeApiServer
    now: int = 0
    most: int = 0

    async def send(self, request: Request, *, timeout: float) -> Response:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(1)
            return await self.server.send(request, timeout=timeout)
        finally:
            self.now -= 1

    def stream(self, request: Request, *, inactivity: float) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError


@dataclass
class Bench:
    """An executor with one job, which the server has."""

    server: FakeApiServer = field(default_factory=lambda: FakeApiServer(clock=clock))

    def __post_init__(self) -> None:
        self.transport = Slow(self.server)
        self.client = Client(self.transport, jitter=lambda: 0.5)
        self.jobs = Jobs()
        self.pods = Cache(pod_entry, lambda _key: None)
        self.to = Coordination("https://c", "pem-1")
        self.events = Events(self.client, instance="me", clock=clock)
        self.executor = Executor(
            self.client,
            jobs=self.jobs,
            pods=self.pods,
            services=Cache(service_entry, lambda _key: None),
            events=self.events,
            settings=Settings(lambda: self.to),
            clock=clock,
        )
        self.jobs.put(self.server.put(objects.TRAINJOBS.format("default"), objects.trainjob()))

    @property
    def job(self) -> Job:
        found = self.jobs.get(KEY)
        assert isinstance(found, Job)
        return found

    def stored(self) -> Json:
        return self.server.get("trainjobs", "default", "sft")


def run(main: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(main)


def pods(count: int) -> list[CreatePod]:
    return [CreatePod(index, 0) for index in range(count)]


def refuse_beyond(server: FakeApiServer, limit: int) -> Any:
    def admit(_method: str, plural: str, _obj: Json) -> tuple[int, Json] | None:
        return (403, QUOTA) if plural == "pods" and len(server.objects("pods")) >= limit else None

    return admit


@pytest.mark.parametrize(("limit", "made", "asked"), [(0, 0, 2), (1, 1, 2), (10, 10, 14)])
def test_a_refusal_costs_a_few_requests_whatever_the_size_of_the_job(limit: int, made: int, asked: int) -> None:
    """After the Service, batches of 2, 4, 8 ...: the batch with the first refusal is the last."""

    async def main() -> None:
        bench = Bench()
        bench.server.admit = refuse_beyond(bench.server, limit)
        refusal = await bench.executor.act(bench.job, [CreateService(), *pods(1000)])
        assert refusal is not None
        assert (refusal.reason, refusal.permanent, refusal.message) == ("QuotaExceeded", False, QUOTA["message"])
        assert len(bench.server.objects("pods")) == made
        assert len(bench.server.writes("POST", "pods")) == asked

    run(main())


def test_many_pods_are_made_at_once_but_no_more_than_the_bound() -> None:
    async def main() -> None:
        bench = Bench()
        began = asyncio.get_running_loop().time()
        assert await bench.executor.act(bench.job, pods(1000)) is None
        # 1 + 2 + 4 + ... + 32 = 63 in 6 rounds of a second each, then 937 in 15 rounds of 64.
        assert asyncio.get_running_loop().time() - began == pytest.approx(21)
        assert len(bench.pods) == 1000
        assert bench.transport.most == CONCURRENT

    run(main())


def test_two_jobs_share_the_bound_and_a_small_one_is_not_held_up() -> None:
    async def main() -> None:
        bench = Bench()
        bench.jobs.put(bench.server.put(objects.TRAINJOBS.format("default"), objects.trainjob("small")))
        small = bench.jobs.get(Key("default", "small"))
        assert isinstance(small, Job)
        big = asyncio.create_task(bench.executor.act(bench.job, pods(1000)))
        await asyncio.sleep(10)
        began = asyncio.get_running_loop().time()
        await bench.executor.act(small, pods(4))
        assert asyncio.get_running_loop().time() - began <= 7, "three batches, each behind one of the big job's"
        await big
        assert bench.transport.most == CONCURRENT

    run(main())


def test_a_status_is_not_written_over_a_change_that_it_does_not_follow_from() -> None:
    async def main() -> None:
        bench = Bench()
        job = bench.job
        obj = bench.stored()
        bench.server.put(objects.TRAINJOBS.format("default"), {**obj, "spec": {**obj["spec"], "nodes": 5}})
        with pytest.raises(Conflict):
            await bench.executor.write_status(job, job.model.status.model_copy(update={"phase": Phase.RUNNING}))
        assert "status" not in bench.stored()

    run(main())


def test_a_status_is_written_once_and_read_back_at_once() -> None:
    async def main() -> None:
        bench = Bench()
        running = bench.job.model.status.model_copy(update={"phase": Phase.RUNNING})
        await bench.executor.write_status(bench.job, running)
        assert bench.job.model.status == running
        await bench.executor.write_status(bench.job, running)
        assert len(bench.server.writes("PATCH", "trainjobs")) == 1
        await bench.executor.write_status(bench.job, running.model_copy(update={"phase": None}))
        assert "phase" not in bench.stored()["status"]

    run(main())


def test_a_pod_is_deleted_only_while_it_has_the_uid() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.executor.act(bench.job, pods(1))
        name, uid = "sft-0-0", bench.server.get("pods", "default", "sft-0-0")["metadata"]["uid"]
        await bench.executor.act(bench.job, [DeletePod(name, "another")])
        assert len(bench.server.objects("pods")) == 1
        await bench.executor.act(bench.job, [DeletePod(name, uid)])
        assert bench.server.objects("pods") == []
        assert await bench.executor.act(bench.job, [DeletePod(name, uid)]) is None, "gone is as good as deleted"

    run(main())


def test_a_job_of_the_same_name_that_came_later_is_not_deleted() -> None:
    async def main() -> None:
        bench = Bench()
        old = bench.job
        bench.server.remove("trainjobs", "default", "sft")
        bench.server.put(objects.TRAINJOBS.format("default"), objects.trainjob())
        await bench.executor.act(old, [DeleteJob()])
        assert len(bench.server.objects("trainjobs")) == 1

    run(main())


def test_everything_is_tried_before_a_failure_is_raised() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.executor.act(bench.job, pods(2))
        doomed = [(p["metadata"]["name"], p["metadata"]["uid"]) for p in bench.server.objects("pods")]
        bench.server.faults = lambda r: Answers(500) if r.path.endswith("sft-0-0") else None
        with pytest.raises(ServerError):
            await bench.executor.act(bench.job, [*(DeletePod(*pod) for pod in doomed), CreatePod(7, 0)])
        assert [p["metadata"]["name"] for p in bench.server.objects("pods")] == ["sft-0-0", "sft-7-0"]

    run(main())


def test_a_webhook_that_is_down_is_told_of() -> None:
    async def main() -> None:
        bench = Bench()
        down = status(500, "InternalError", 'failed calling webhook "inject.example.com": connection refused')
        bench.server.admit = lambda _method, plural, _obj: (500, down) if plural == "pods" else None
        refusal = await bench.executor.act(bench.job, pods(3))
        assert refusal is not None
        assert (refusal.reason, refusal.permanent) == ("PodsRefused", False)
        assert "inject.example.com" in refusal.message

    run(main())


def test_running_pods_get_renewed_certificates() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.executor.act(bench.job, pods(3))
        bench.to = Coordination("https://c", "pem-2")
        await bench.executor.renew_certificates(bench.job)
        await bench.executor.renew_certificates(bench.job)
        annotations = [p["metadata"]["annotations"] for p in bench.server.objects("pods")]
        assert [a["elastrain.dev/coordinator-ca"] for a in annotations] == ["pem-2"] * 3
        assert len(bench.server.writes("PATCH", "pods")) == 3

    run(main())


def test_the_same_event_again_raises_its_count() -> None:
    async def main() -> None:
        bench = Bench()
        for _ in range(3):
            await bench.executor.act(bench.job, [EVENT])
        (event,) = bench.server.objects("events")
        assert (event["count"], event["reason"], event["type"]) == (3, "Training", "Normal")
        assert event["involvedObject"]["uid"] == bench.job.uid
        assert event["lastTimestamp"] > event["firstTimestamp"]

    run(main())


def test_an_event_that_cannot_be_written_stops_nothing() -> None:
    async def main() -> None:
        bench = Bench()
        bench.server.faults = lambda r: Answers(500) if "events" in r.path else None
        assert await bench.executor.act(bench.job, [EVENT, *pods(2)]) is None
        assert len(bench.pods) == 2

    run(main())


def test_a_job_that_says_too_much_is_cut_short() -> None:
    async def main() -> None:
        bench = Bench()
        many = [EmitEvent(EventType.NORMAL, "Noise", str(number)) for number in range(200)]
        await bench.executor.act(bench.job, many)
        assert len(bench.server.objects("events")) == BURST

    run(main())


def test_a_quota_that_is_raised_lets_the_job_go_on() -> None:
    """The whole of it, with the planner: refused, told of, tried again at intervals, made."""

    async def main() -> None:
        world = World()
        world.server.admit = refuse_beyond(world.server, 2)
        world.start()
        world.apply(nodes=6)
        await asyncio.sleep(65)
        conditions = {c["type"]: c for c in world.server.get("trainjobs", "default", "sft")["status"]["conditions"]}
        assert conditions["Running"]["reason"] == "QuotaExceeded"
        assert "exceeded quota: few" in conditions["Running"]["message"]
        assert len(world.server.writes("POST", "pods")) <= 2 + 2 * 7 + 4, "one refused batch at each interval of 10 s"
        world.server.admit = lambda _method, _plural, _obj: None
        await world.settle()
        assert world.outcome()["phase"] == "Running"
        assert len(world.server.objects("pods")) == 6
        await world.stop()

    run(main())
