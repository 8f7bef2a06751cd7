"""A world around the reconciler, in virtual time: the fake API server, kubelets, agents, and operators that crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.faults import objects
from tests.faults.fake_apiserver import FakeApiServer, When

from elastrain.kubernetes.cache import Cache, Key
from elastrain.kubernetes.client import PODS, SERVICES, Client
from elastrain.kubernetes.errors import ApiError
from elastrain.kubernetes.events import Events
from elastrain.kubernetes.executor import Executor, Settings
from elastrain.kubernetes.jobs import Jobs
from elastrain.kubernetes.manifests import Coordination
from elastrain.kubernetes.observe import pod_entry, service_entry
from elastrain.kubernetes.queue import Queue
from elastrain.kubernetes.reconciler import Reconciler
from elastrain.kubernetes.reflector import Reflector
from elastrain.kubernetes.trainjobs import TrainJobs
from elastrain.kubernetes.transport import Request, Response, Stream
from elastrain.planning import Agent, AgentState, CheckpointReport, Directive, Ports, ProgressReport, Round

Json = dict[str, Any]
START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def clock() -> datetime:
    """Return the time of day, which goes with the loop's."""
    return START + timedelta(seconds=asyncio.get_running_loop().time() - 1000.0)


@dataclass
class Agents:
    """All agents, which outlive operators and do at once what they are told."""

    server: FakeApiServer
    wake: Callable[[Key], None] = lambda _key: None
    known: dict[str, tuple[Key, str, Agent]] = field(default_factory=dict)  # by pod uid, with the pod's name

    def begin(self, pod: Json) -> None:
        """A pod's agent is there and ready."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if uid not in self.known:
            key = Key(pod["metadata"]["namespace"], pod["metadata"]["labels"]["elastrain.dev/job"])
            agent = Agent(uid, AgentState.READY, 0, Ports(40001, 40002), clock())
            self.known[uid] = (key, name, agent)
            self.wake(key)

    def finish(self) -> None:
        """All workers end with 0."""
        for uid, (key, name, agent) in list(self.known.items()):
            if agent.state is AgentState.RUNNING:
                self.known[uid] = (key, name, replace(agent, state=AgentState.FINISHED, since=clock()))
                self.wake(key)

    def heard(self, key: Key) -> tuple[datetime, dict[str, datetime]]:
        """All of them are heard all the time."""
        return clock(), {uid: clock() for uid, (job, *_) in self.known.items() if job == key}

    def publish(self, key: Key, directive: Directive) -> None:
        live = {obj["metadata"]["uid"] for obj in self.server.objects("pods")}
        for uid, (job, name, agent) in list(self.known.items()):
            if uid not in live:
                del self.known[uid]
            elif job != key:
                continue
            elif directive.outcome or name in directive.leaving:
                self._exit(uid, key, name, agent)
            elif directive.round and directive.round.number > agent.round and _has(directive.round, name):
                running = replace(agent, state=AgentState.RUNNING, round=directive.round.number, since=clock())
                self.known[uid] = (key, name, running)
                self.wake(key)

    def _exit(self, uid: str, key: Key, name: str, agent: Agent) -> None:
        if agent.state is AgentState.LEFT:
            return
        self.known[uid] = (key, name, replace(agent, state=AgentState.LEFT, since=clock()))
        told = json.dumps({"outcome": "left", "round": agent.round})
        terminated = {"exitCode": 0, "reason": "Completed", "finishedAt": clock().isoformat(), "message": told}
        status = {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "trainer", "state": {"terminated": terminated}}],
        }
        self.server.set_status("pods", key.namespace, name, status)

    def forget(self, key: Key) -> None:
        """Nothing: the agents of a job that is gone go with their pods."""

    def agents(self, key: Key) -> Mapping[str, Agent]:
        return {uid: agent for uid, (job, _, agent) in self.known.items() if job == key}

    def progress(self, key: Key) -> ProgressReport | None:
        return None

    def checkpoint(self, key: Key) -> CheckpointReport | None:
        return None


def _has(number: Round, pod: str) -> bool:
    return any(member.pod == pod for member in number.members)


@dataclass
class Power:
    """The transport of one operator process, which dies at its n-th write, before or after it is carried out."""

    server: FakeApiServer
    dies_at: int | None = None
    when: When = When.UNDONE
    writes: int = 0
    died: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, request: Request, *, timeout: float) -> Response:
        if self.died.is_set():
            await asyncio.Event().wait()
        if request.method != "GET":
            self.writes += 1
            if self.writes == self.dies_at:
                if self.when is When.DONE:
                    self.server.handle(request)
                    self.server.requests.append(request)
                self.died.set()
                await asyncio.Event().wait()
        return await self.server.send(request, timeout=timeout)

    def stream(self, request: Request, *, inactivity: float) -> AbstractAsyncContextManager[Stream]:
        return self.server.stream(request, inactivity=inactivity)


@dataclass
class World:
    """A cluster with one job and one operator at a time."""

    server: FakeApiServer = field(default_factory=lambda: FakeApiServer(clock=clock))
    power: Power | None = None
    deaths: int = 0
    quiet: float = 30.0  # seconds without a write after which the world is at rest
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = Agents(self.server)

    def apply(self, **spec: Any) -> None:
        """Write the job as a user does; what is not named stays."""
        found = [obj for obj in self.server.objects("trainjobs") if obj["metadata"]["name"] == "sft"]
        obj = {**found[0], "spec": {**found[0]["spec"], **spec}} if found else objects.trainjob(**spec)
        self.server.put(objects.TRAINJOBS.format("default"), obj)

    def start(self, dies_at: int | None = None, when: When = When.UNDONE) -> None:
        """Start the kubelets, and an operator that is followed by another when it dies."""
        self._tasks = [asyncio.create_task(self._kubelets()), asyncio.create_task(self._operators(dies_at, when))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self, seconds: float = 7200.0) -> None:
        """Wait until nothing has been written for a while."""
        loop = asyncio.get_running_loop()
        ends, since, revision = loop.time() + seconds, loop.time(), self.server.revision
        while loop.time() - since < self.quiet:
            assert loop.time() < ends, "it never comes to rest"
            await asyncio.sleep(1)
            if self.server.revision != revision:
                since, revision = loop.time(), self.server.revision

    async def _kubelets(self) -> None:
        """Start pods that are there, and remove those that are being deleted, a moment later."""
        while True:
            await asyncio.sleep(1.3)
            for pod in self.server.objects("pods"):
                name = pod["metadata"]["name"]
                if pod["metadata"].get("deletionTimestamp"):
                    self.server.remove("pods", "default", name)
                elif not pod["spec"].get("nodeName"):
                    self.server.put(
                        objects.PODS.format("default"), {**pod, "spec": {**pod["spec"], "nodeName": "node-1"}}
                    )
                    address = f"10.0.0.{pod['metadata']['labels']['elastrain.dev/node-index']}"
                    self.server.set_status("pods", "default", name, {"phase": "Running", "podIP": address})
                elif (pod.get("status") or {}).get("phase") == "Running":
                    self.agents.begin(pod)
            self.server.collect_garbage()

    async def _operators(self, dies_at: int | None, when: When) -> None:
        self.power = Power(self.server, dies_at, when)
        while True:
            operator = asyncio.create_task(self._operator(self.power))
            try:
                await self.power.died.wait()
            finally:
                operator.cancel()
                await asyncio.gather(operator, return_exceptions=True)
            self.deaths += 1
            await asyncio.sleep(3)
            self.power = Power(self.server)

    async def _operator(self, power: Power) -> None:
        client = Client(power, jitter=lambda: 0.5)
        jobs = Jobs()
        queue: Queue[Key] = Queue(lambda key: reconciler.look(key), jitter=lambda: 0.5)
        pods = Cache(pod_entry, queue.add)
        services = Cache(service_entry, queue.add)
        events = Events(client, instance=f"operator-{self.deaths}", clock=clock)
        to = Coordination("https://c", "pem")
        executor = Executor(
            client,
            jobs=jobs,
            pods=pods,
            services=services,
            events=events,
            settings=Settings(lambda: to, network_policy=True),
            clock=clock,
        )
        reconciler = Reconciler(
            client,
            jobs=jobs,
            pods=pods,
            services=services,
            agents=self.agents,
            executor=executor,
            events=events,
            clock=clock,
        )
        trainjobs = TrainJobs(jobs, changed=queue.add, gone=reconciler.forget)
        self.agents.wake = queue.add
        reflectors = [
            Reflector(client, kind, cache, selector="elastrain.dev/job", jitter=lambda: 0.5)
            for kind, cache in ((PODS, pods), (SERVICES, services))
        ]
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
                await reflector.wait()
            group.create_task(queue.run())
            while True:
                with suppress(ApiError):
                    await trainjobs.sweep(client, None)
                await asyncio.sleep(1)

    # What is there in the end

    def outcome(self) -> Json:
        """Return all that matters of the end state, without times, and with indices for the names of pods.

        How often a pod was replaced may depend on what a crash delayed.
        """
        jobs = self.server.objects("trainjobs")
        status = jobs[0].get("status") or {} if jobs else {}
        return {
            "phase": status.get("phase"),
            "round": {k: (status.get("round") or {}).get(k) for k in ("number", "reason", "worldSize")},
            "members": [_index(name) for name in (status.get("round") or {}).get("members") or ()],
            "failures": status.get("failures"),
            "conditions": [(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or ()],
            "pods": sorted(
                (
                    _index(pod["metadata"]["name"]),
                    pod["metadata"]["ownerReferences"][0]["uid"] == jobs[0]["metadata"]["uid"] if jobs else None,
                    (pod.get("status") or {}).get("phase"),
                )
                for pod in self.server.objects("pods")
            ),
            "services": [obj["metadata"]["name"] for obj in self.server.objects("services")],
            "policies": [obj["metadata"]["name"] for obj in self.server.objects("networkpolicies")],
        }


def _index(pod: str) -> str:
    return pod.rsplit("-", 1)[0]
