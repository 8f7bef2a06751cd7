"""The whole operator in one process, kopf included, against the fake API server over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.faults import objects
from tests.faults.cluster import Agent, Cluster, fake_cluster

from elastrain.operator import Operator


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with fake_cluster(tmp_path) as found:
        yield found


async def _url(cluster: Cluster, operator: Operator) -> str:
    await cluster.server.until(lambda: operator.addresses)
    port = next(port for host, port, *_ in operator.addresses if ":" not in host)  # each IP family has its own
    return f"https://127.0.0.1:{port}/v1/namespaces/default/trainjobs/sft"


async def test_a_job_is_made_trains_and_completes(cluster: Cluster) -> None:
    async with cluster.operator() as operator, aiohttp.ClientSession(connector=_tls(cluster)) as session:
        cluster.apply()
        pods = await cluster.server.until(lambda: cluster.pods() if len(cluster.pods()) == 2 else None)
        assert [p["metadata"]["name"] for p in pods] == ["sft-0-0", "sft-1-0"]
        await cluster.server.until(lambda: cluster.phase() == "Pending")
        url = await _url(cluster, operator)
        tokens = [cluster.run_pod(pod, f"10.0.0.{n}") for n, pod in enumerate(pods, 1)]
        agents = [Agent(session, url, token) for token in tokens]
        polls = [asyncio.create_task(agent.round()) for agent in agents]
        await asyncio.sleep(0)
        for agent in agents:
            await _ready(agent)
        rounds = await asyncio.gather(*polls)
        assert [m["pod"] for m in rounds[0]["round"]["members"]] == ["sft-0-0", "sft-1-0"]
        assert rounds[0] == rounds[1]
        assert cluster.job()["status"]["round"]["number"] == 1
        for agent in agents:
            await agent.report("running", 1)
        await cluster.server.until(lambda: cluster.phase() == "Running")
        for agent in agents:
            await agent.report("finished", 1)
        await cluster.server.until(lambda: cluster.phase() == "Complete")
        assert (await agents[0].round(1))["command"] == "done"
    job = cluster.job()
    assert set(job["metadata"]) == {
        "name", "namespace", "uid", "generation", "creationTimestamp", "resourceVersion",
    }, "the operator wrote to the user's part of the object"  # fmt: skip
    assert len(cluster.server.writes("POST", "pods")) == 2
    assert len(cluster.server.writes("POST", "services")) == 1
    assert len(cluster.server.writes("PATCH", "trainjobs")) <= 6
    reasons = {event["reason"] for event in cluster.server.objects("events")}
    assert {"RoundPublished", "Training", "Complete"} <= reasons


async def _ready(agent: Agent) -> None:
    """Report once the operator has heard of the pod."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await agent.report("ready", 0)
            except AssertionError:
                await asyncio.sleep(0.05)


def _tls(cluster: Cluster) -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(ssl=cluster.trust)


async def test_nothing_is_written_when_an_operator_follows_another(cluster: Cluster) -> None:
    async with cluster.operator() as operator:
        cluster.apply()
        await cluster.server.until(lambda: len(cluster.pods()) == 2 and cluster.phase() == "Pending")
        await cluster.quiet(operator)
    before = len(cluster.server.requests)
    async with cluster.operator() as operator:
        await cluster.quiet(operator)
    written = [r for r in cluster.server.requests[before:] if r.method != "GET" and "leases" not in r.path]
    assert written == []


async def test_a_job_deleted_and_made_again_at_once_gets_pods_of_its_own(cluster: Cluster) -> None:
    async with cluster.operator():
        first = cluster.apply()["metadata"]["uid"]
        await cluster.server.until(lambda: len(cluster.pods()) == 2)
        cluster.server.remove("trainjobs", "default", "sft")
        second = cluster.apply()["metadata"]["uid"]
        await asyncio.sleep(0.3)
        assert {p["metadata"]["ownerReferences"][0]["uid"] for p in cluster.pods()} == {first}, "adopted"
        await cluster.server.until(lambda: "earlier TrainJob" in _message(cluster))
        cluster.server.collect_garbage()

        def mine() -> bool:
            return [p["metadata"]["ownerReferences"][0]["uid"] for p in cluster.pods()] == [second, second]

        await cluster.server.until(mine)


def _message(cluster: Cluster) -> str:
    conditions = (cluster.job().get("status") or {}).get("conditions") or ()
    return next((str(c["message"]) for c in conditions if c["type"] == "Running"), "")


async def test_losing_the_lease_ends_the_process(cluster: Cluster) -> None:
    async with cluster.operator(code=1) as operator:
        await cluster.server.until(lambda: operator.leads)
        lease = cluster.server.get("leases", "default", "elastrain")
        other = {**lease, "spec": {**lease["spec"], "holderIdentity": "another", "renewTime": "x"}}
        cluster.server.put("/apis/coordination.k8s.io/v1/namespaces/default/leases", other)
        async with asyncio.timeout(20):
            await operator.stop.wait()
    assert cluster.server.get("leases", "default", "elastrain")["spec"]["holderIdentity"] == "another"


async def test_a_job_that_this_release_cannot_read_is_told_and_left_alone(cluster: Cluster) -> None:
    async with cluster.operator():
        cluster.server.put(objects.TRAINJOBS.format("default"), objects.trainjob("old", nodes="many"))
        event = await cluster.server.until(lambda: next(iter(cluster.server.objects("events")), None))
        assert event["reason"] == "Unreadable"
        assert "spec.nodes" in event["message"]
        cluster.apply("new")
        await cluster.server.until(lambda: len(cluster.pods("new")) == 2)
    assert cluster.pods("old") == []
