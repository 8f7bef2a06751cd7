"""The protocol over real HTTPS: who may ask, what is answered, what the planner gets to see."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from dataclasses import replace

import aiohttp
import pytest
from tests.unit.coordination.conftest import Start
from tests.unit.coordination.service import DEADLINE, JOB, START, Service, World, golden
from tests.unit.coordination.values import AFTER_FAILURE, COMPLETE, FIRST, LEAVE

from elastrain.coordination import JobKey
from elastrain.planning import (
    AgentState,
    CheckpointReport,
    Directive,
    Member,
    Ports,
    ProgressReport,
    Round,
)

OTHER = JobKey("default", "other")
ELSEWHERE = JobKey("elsewhere", "sft")


def polls(service: Service) -> int:
    return sum(len(job.polls) for job in service.coordinator._jobs._jobs.values())


async def until_polls(service: Service, count: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while polls(service) != count:  # noqa: ASYNC110 - no event tells of requests that arrive
            await asyncio.sleep(0)


# Asking


async def test_what_is_published_is_told_at_once(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=FIRST))
    assert await service.ask(token) == (200, golden("round-first"))
    service.coordinator.publish(JOB, Directive(round=FIRST, leaving={"sft-0-0": LEAVE}))
    assert await service.ask(token, after=1) == (200, golden("leave"))
    service.coordinator.publish(JOB, Directive(round=FIRST, outcome=COMPLETE))
    assert await service.ask(token, after=1) == (200, golden("done-complete"))


async def test_a_poll_waits_for_what_is_published_later(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=FIRST))
    poll = asyncio.create_task(service.ask(token, after=1))
    await until_polls(service, 1)
    service.coordinator.publish(JOB, Directive(round=FIRST))  # nothing new
    assert not poll.done()
    service.coordinator.publish(JOB, Directive(round=AFTER_FAILURE))
    assert await poll == (200, golden("round-after-failure"))
    await until_polls(service, 0)


async def test_a_poll_ends_with_nothing_after_its_time(start: Start, world: World) -> None:
    service = await start(poll_seconds=0.05)
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=FIRST))
    assert await service.ask(token, after=1) == (204, None)
    assert polls(service) == 0


async def test_a_hundred_polls_at_once_are_all_answered(service: Service, world: World) -> None:
    names = [f"sft-{index}-0" for index in range(100)]
    tokens = [world.pod(name) for name in names]
    service.coordinator.publish(JOB, Directive())
    waiting = [asyncio.create_task(service.ask(token)) for token in tokens]
    await until_polls(service, 100)
    members = tuple(Member(name, f"10.0.0.{index}", joining=True) for index, name in enumerate(names[:99]))
    service.coordinator.publish(JOB, Directive(round=replace(FIRST, members=members), leaving={"sft-99-0": LEAVE}))
    answers = [await poll for poll in waiting]
    assert {status for status, _ in answers} == {200}
    assert [body["command"] for _, body in answers] == ["round"] * 99 + ["leave"]
    assert [member["pod"] for member in answers[7][1]["round"]["members"]] == names[:99]
    assert polls(service) == 0


async def test_polls_whose_clients_went_away_leave_nothing(
    service: Service, world: World, trusting: ssl.SSLContext
) -> None:
    service.coordinator.publish(JOB, Directive())
    tokens = [world.pod(f"sft-{index}-0") for index in range(20)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
        waiting = [asyncio.create_task(service.ask(token, session=session)) for token in tokens]
        await until_polls(service, 20)
        for poll in waiting:
            poll.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await until_polls(service, 0)


async def test_the_newer_poll_of_a_pod_takes_the_place_of_the_older(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive())
    older = asyncio.create_task(service.ask(token))
    await until_polls(service, 1)
    newer = asyncio.create_task(service.ask(token))
    assert await older == (204, None)
    service.coordinator.publish(JOB, Directive(round=FIRST))
    assert await newer == (200, golden("round-first"))


async def test_an_unpublished_job_is_looked_at_and_its_agents_wait(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    poll = asyncio.create_task(service.ask(token))
    await world.wakes(1)
    assert world.woken == [JOB]
    service.coordinator.publish(JOB, Directive(round=FIRST))
    assert await poll == (200, golden("round-first"))


async def test_agents_of_a_job_that_is_gone_are_told_so(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive())
    poll = asyncio.create_task(service.ask(token))
    await until_polls(service, 1)
    service.coordinator.forget(JOB)
    status, body = await poll
    assert status == 404
    assert "no TrainJob default/sft" in body["error"]
    service.coordinator.forget(JOB)
    assert service.coordinator._jobs._jobs == {}


async def test_a_shutdown_ends_waiting_polls(service: Service, world: World, start: Start) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive())
    poll = asyncio.create_task(service.ask(token))
    await until_polls(service, 1)
    service.coordinator._jobs.close()
    status, body = await poll
    assert status == 503
    assert body["error"] == "this replica is being shut down; ask again"


@pytest.mark.parametrize("after", ["", "-1", "1.5", "x", "٣", "9" * 11])
async def test_a_strange_round_number_is_refused(service: Service, world: World, after: str) -> None:
    status, body = await service.ask(world.pod("sft-0-0"), after=after)
    assert (status, body["version"]) == (400, 1)
    assert body["error"].startswith("after: ")


# Who may ask


async def test_every_answer_names_the_process(start: Start, world: World) -> None:
    first, second = await start(identity="pod-a/1"), await start(identity="pod-b/2")
    for service, identity in ((first, "pod-a/1"), (second, "pod-b/2")):
        for path in ("/livez", "/nowhere", "/v1/namespaces/default/trainjobs/sft/round"):
            async with service.session.get(service.url + path) as response:
                assert response.headers["Elastrain-Coordinator"] == identity


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer " + "x" * 7169, "Bearer expired"]
)
async def test_a_bad_token_is_not_let_in(service: Service, world: World, header: str | None) -> None:
    world.pod("sft-0-0")
    url = f"{service.url}/v1/namespaces/default/trainjobs/sft/round"
    headers = {} if header is None else {"Authorization": header}
    async with service.session.get(url, headers=headers) as response:
        assert response.status == 401
        assert "token is not good" in (await response.json())["error"]


@pytest.mark.parametrize("asked", [OTHER, ELSEWHERE, JobKey("default", "none")])
async def test_a_pod_of_another_job_is_not_let_in(service: Service, world: World, asked: JobKey) -> None:
    token = world.pod("sft-0-0")
    for key in (JOB, OTHER, ELSEWHERE):
        service.coordinator.publish(key, Directive(round=FIRST))
    assert (await service.ask(token, job=asked))[0] == 403
    assert (await service.report(token, golden("report-state-ready"), job=asked))[0] == 403
    assert (await service.kubeflow(token, golden("kubeflow-training"), job=asked))[0] == 403
    assert service.coordinator.agents(asked) == {}
    assert service.coordinator.progress(asked) is None


async def test_a_pod_of_the_same_name_in_another_namespace_is_not_let_in(service: Service, world: World) -> None:
    token = world.pod("sft-0-0", ELSEWHERE)
    assert (await service.report(token, golden("report-state-ready")))[0] == 403


async def test_a_pod_that_belongs_to_no_job_is_not_let_in(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    world.pods.clear()
    assert (await service.ask(token))[0] == 403


async def test_tokens_are_reviewed_once_and_for_all_who_wait(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    bodies = [golden("report-progress")] * 10
    answers = await asyncio.gather(*(service.report(token, body) for body in bodies))
    assert answers == [(204, None)] * 10
    assert world.reviews == [token]


async def test_no_review_is_no_refusal(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    world.reviewable = False
    status, body = await service.report(token, golden("report-state-ready"))
    assert status == 503
    assert body["error"] == "the API server does not answer; ask again"
    world.reviewable = True
    assert (await service.report(token, golden("report-state-ready")))[0] == 204


async def test_a_replica_that_does_not_serve_sends_agents_away(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    world.serving = False
    url = f"{service.url}/v1/namespaces/default/trainjobs/sft/round"
    async with service.session.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert world.reviews == []
    assert world.woken == []


async def test_a_pod_in_a_loop_is_slowed_down_and_its_peers_are_not(service: Service, world: World) -> None:
    busy, calm = world.pod("sft-0-0"), world.pod("sft-1-0")
    service.coordinator.publish(JOB, Directive(round=FIRST))
    statuses = {(await service.ask(busy))[0] for _ in range(80)}
    assert statuses == {200, 429}
    url = f"{service.url}/v1/namespaces/default/trainjobs/sft/round"
    for _ in range(80):
        async with service.session.get(url, headers={"Authorization": f"Bearer {busy}"}) as response:
            if response.status == 429:
                assert response.headers["Retry-After"] == "1"
                assert "too many requests of pod sft-0-0" in (await response.json())["error"]
                break
    else:
        pytest.fail("no request was refused")
    assert (await service.ask(calm))[0] == 200


async def test_probes(service: Service, world: World) -> None:
    async def probe(path: str) -> tuple[int, str]:
        async with service.session.get(service.url + path) as response:
            return response.status, await response.text()

    assert [await probe("/livez"), await probe("/readyz")] == [(200, "ok"), (200, "leads")]
    world.serving = False
    assert [await probe("/livez"), await probe("/readyz")] == [(200, "ok"), (200, "stands by")]
    world.sick = "the pod stream is silent"
    assert await probe("/livez") == (503, "the pod stream is silent")
    assert await probe("/readyz") == (503, "the pod stream is silent")


async def test_unknown_paths_and_methods_are_errors_of_the_protocol(service: Service) -> None:
    async with service.session.get(f"{service.url}/v2/namespaces/default/trainjobs/sft/round") as response:
        assert response.status == 404
        assert (await response.json())["version"] == 1
    async with service.session.delete(f"{service.url}/v1/namespaces/default/trainjobs/sft/reports") as response:
        assert response.status == 405
        assert "docs/protocol.md" in (await response.json())["error"]


# Reporting


async def test_states_are_kept_by_pod_and_wake_only_by_news(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive())
    uid = f"uid-of-{JOB}-sft-0-0"
    assert await service.report(token, golden("report-state-ready")) == (204, None)
    agent = service.coordinator.agents(JOB)[uid]
    assert (agent.pod_uid, agent.state, agent.round, agent.ports) == (
        uid,
        AgentState.READY,
        0,
        Ports(40001, 40002),
    )
    assert agent.since == START
    assert world.woken == [JOB]

    world.tick(60)
    await service.report(token, golden("report-state-ready"))
    assert world.woken == [JOB]  # the same again

    await service.report(token, golden("report-state-ready") | {"ports": {"rendezvous": 5, "store": 6}})
    assert world.woken == [JOB, JOB]
    assert service.coordinator.agents(JOB)[uid].since == START  # the state is the old one, its ports are new

    await service.report(token, golden("report-state-running"))
    running = service.coordinator.agents(JOB)[uid]
    assert (running.state, running.round, (running.since - START).total_seconds()) == (
        AgentState.RUNNING,
        3,
        60,
    )
    assert len(world.woken) == 3


async def test_an_overtaken_state_changes_nothing(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    await service.report(token, golden("report-state-failed"))
    before = service.coordinator.agents(JOB)
    woken = len(world.woken)
    assert (await service.report(token, golden("report-state-ready-after-round")))[0] == 204
    assert service.coordinator.agents(JOB) == before
    assert len(world.woken) == woken


async def test_agents_of_pods_that_are_gone_are_dropped(service: Service, world: World) -> None:
    gone, stays = world.pod("sft-0-0"), world.pod("sft-1-0")
    for token in (gone, stays):
        await service.report(token, golden("report-state-ready"))
    del world.pods[f"uid-of-{JOB}-sft-0-0"]
    service.coordinator.publish(JOB, Directive(round=FIRST))
    assert set(service.coordinator.agents(JOB)) == {f"uid-of-{JOB}-sft-1-0"}


async def test_progress_wakes_seldom(start: Start, world: World) -> None:
    service = await start(progress_seconds=3600)
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=AFTER_FAILURE))
    for step in range(1, 6):
        await service.report(token, golden("report-progress") | {"step": step})
    assert service.coordinator.progress(JOB) == ProgressReport(3, START, 5, 1000, 0.4, 812.5, {"loss": "2.13"})
    await world.wakes(1)
    assert world.woken == [JOB]


async def test_progress_after_a_quiet_time_wakes_again(start: Start, world: World) -> None:
    service = await start(progress_seconds=0.02)
    token = world.pod("sft-0-0")
    for step in range(1, 4):
        await service.report(token, golden("report-progress") | {"step": step})
        await world.wakes(step + 1)  # the first one is for the job that was not published


async def test_checkpoints_wake_once_each(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=AFTER_FAILURE))
    for _ in range(2):
        assert (await service.report(token, golden("report-checkpoint")))[0] == 204
    assert service.coordinator.checkpoint(JOB) == CheckpointReport(3, START, 100, "/checkpoints/step-100")
    assert world.woken == [JOB]
    await service.report(token, golden("report-checkpoint") | {"step": 200, "path": "/checkpoints/step-200"})
    assert world.woken == [JOB, JOB]


async def test_progress_and_checkpoints_of_an_older_round_change_nothing(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=replace(AFTER_FAILURE, number=4)))
    for name in ("report-progress", "report-checkpoint"):
        assert await service.report(token, golden(name)) == (204, None)
    assert service.coordinator.progress(JOB) is None
    assert service.coordinator.checkpoint(JOB) is None


async def test_phases_are_accepted(service: Service, world: World) -> None:
    assert await service.report(world.pod("sft-0-0"), golden("report-phase")) == (204, None)


async def test_the_callback_of_transformers_reports_progress(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=AFTER_FAILURE))
    assert (await service.kubeflow(token, golden("kubeflow-training")))[0] == 200
    assert service.coordinator.progress(JOB) == ProgressReport(3, START, 2, 4, 0.5, None, {"loss": "2.13"})


async def test_the_callback_of_a_worker_of_an_older_round_changes_nothing(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    service.coordinator.publish(JOB, Directive(round=AFTER_FAILURE))
    await service.report(token, golden("report-state-running"))
    published: Round = replace(AFTER_FAILURE, number=4)
    service.coordinator.publish(JOB, Directive(round=published))
    assert (await service.kubeflow(token, golden("kubeflow-training")))[0] == 200
    assert service.coordinator.progress(JOB) is None


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"{}", b'{"trainerStatus": 1}'])
async def test_garbage_is_refused(service: Service, world: World, body: bytes) -> None:
    token = world.pod("sft-0-0")
    for status, answer in (await service.report(token, body), await service.kubeflow(token, body)):
        assert status == 400
        assert "docs/protocol.md" in answer["error"]
    assert service.coordinator.agents(JOB) == {}


async def test_the_largest_body_is_taken_and_a_larger_one_refused(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    report = b'{"version": 1, "type": "phase", "round": 3, "phase": "saving"}'
    assert (await service.report(token, report.ljust(65536)))[0] == 204
    status, body = await service.report(token, report.ljust(65537))
    assert status == 413
    assert body["error"] == "the body is larger than 65536 bytes; send less"


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused(service: Service, world: World) -> None:
    token = world.pod("sft-0-0")
    packed = gzip.compress(b" " * 50_000_000)
    headers = {"Authorization": f"Bearer {token}", "Content-Encoding": "gzip"}
    url = f"{service.url}/v1/namespaces/default/trainjobs/sft/reports"
    async with service.session.post(url, data=packed, headers=headers) as response:
        assert response.status in (400, 413)
