"""A simulated cluster for the planner: pods, agents and a coordinator that behave as the protocol says.

A fake, for what a real cluster cannot give: thousands of histories a minute, and a crash of the operator
between any two actions. It knows nothing of the planner but its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from elastrain.api import TrainJob, TrainJobStatus
from elastrain.planning import (
    Agent,
    AgentState,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    Directive,
    EmitEvent,
    Exit,
    Observed,
    Plan,
    Pod,
    PodPhase,
    Ports,
    Refusal,
    WorkerFailure,
    plan,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
IMAGE = "trainer:1"


def manifest(image: str = IMAGE, **spec: object) -> dict[str, object]:
    """Return a TrainJob as a user writes it."""
    template = {"spec": {"containers": [{"name": "trainer", "image": image}]}}
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "job",
            "namespace": "default",
            "uid": "job-uid",
            "generation": 1,
            "creationTimestamp": START.isoformat(),
        },
        "spec": {"template": template, **spec},
    }


class Crash(Exception):
    """The operator died between two actions."""


@dataclass
class World:
    """One job and everything around it; `now` moves only when told to."""

    job: TrainJob
    now: datetime = START
    pods: dict[str, Pod] = field(default_factory=dict)  # by name
    agents: dict[str, Agent] = field(default_factory=dict)  # what agents are, by pod uid
    reported: dict[str, Agent] = field(default_factory=dict)  # what the coordinator knows of them
    directive: Directive = field(default_factory=Directive)
    service: bool = False
    refusal: Refusal | None = None
    next_look: datetime | None = None
    job_deleted: bool = False
    events: list[EmitEvent] = field(default_factory=list)
    rounds: list[tuple[int, tuple[str, ...], int, int]] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    _uids: Iterable[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of(cls, **spec: object) -> World:
        return cls(TrainJob.model_validate(manifest(**spec)))

    # What the operator does.

    def observed(self) -> Observed:
        return Observed(
            pods=tuple(self.pods.values()),
            agents=dict(self.reported),
            service_exists=self.service,
            template_hash=self._hash(),
            refusal=self.refusal,
        )

    def look(self, crash_after: int | None = None) -> Plan:
        """Plan once and carry it out; with `crash_after`, die after that many writes."""
        made = plan(self.job, self.observed(), self.now)
        writes = 0

        def write() -> None:
            nonlocal writes
            if crash_after is not None and writes >= crash_after:
                raise Crash
            writes += 1

        if made.status != self.job.status:
            write()
            self._record(made.status)
        for action in made.actions:
            write()
            self._execute(action)
        self.directive = made.directive
        self.next_look = made.next_look
        return made

    def _record(self, status: TrainJobStatus) -> None:
        before = self.job.status.round
        self.job = TrainJob.model_validate(
            {
                **self.job.model_dump(mode="json", by_alias=True),
                "status": status.model_dump(mode="json", by_alias=True),
            }
        )
        after = status.round
        if after and after.members and after != before:
            ready = sum(p.phase is PodPhase.RUNNING for n, p in self.pods.items() if n in after.members)
            self.rounds.append((after.number, after.members, ready, self.job.spec.wanted_nodes))

    def _execute(self, action: object) -> None:
        match action:
            case CreateService():
                self.service = True
            case CreatePod(index, attempt):
                name = f"job-{index}-{attempt}"
                if name not in self.pods:
                    self.created.append(name)
                    self.pods[name] = Pod(
                        name,
                        f"uid-{next(iter(self._uids))}",
                        index,
                        attempt,
                        self._hash(),
                        PodPhase.PENDING,
                        self.now,
                    )
            case DeletePod(name, uid):
                if name in self.pods and self.pods[name].uid == uid:
                    self.pods[name] = replace(self.pods[name], deleting=True)
            case DeleteJob():
                self.job_deleted = True
            case EmitEvent():
                self.events.append(action)
            case _:
                raise AssertionError(action)

    def _hash(self) -> str:
        return self.job.spec.template.model_dump_json()

    # What the cluster does.

    def restart_operator(self) -> None:
        """Forget everything that only the process knew."""
        self.reported, self.directive, self.refusal = {}, Directive(), None

    def edit(self, **spec: object) -> None:
        raw = self.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        raw["spec"].update(spec)
        raw["metadata"]["generation"] += 1
        self.job = TrainJob.model_validate(raw)

    def run_pod(self, name: str) -> None:
        """The kubelet starts the container, its agent reports."""
        pod = self.pods[name]
        if pod.phase is PodPhase.PENDING and not pod.deleting:
            self.pods[name] = replace(pod, phase=PodPhase.RUNNING, address=f"10.0.0.{pod.index}", node=f"n{pod.index}")
            self._agent(name, AgentState.READY, 0)

    def remove_pod(self, name: str) -> None:
        """The pod's object disappears."""
        pod = self.pods.pop(name)
        self.agents.pop(pod.uid, None)
        self.reported.pop(pod.uid, None)

    def take_pod(self, name: str) -> None:
        """Somebody deletes the pod."""
        self.pods[name] = replace(self.pods[name], deleting=True)

    def end_pod(
        self,
        name: str,
        code: int,
        *,
        reason: str = "Error",
        outcome: str | None = None,
        disruption: str | None = None,
    ) -> None:
        pod = self.pods[name]
        agent = self.agents.pop(pod.uid, None)
        phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
        end = Exit(code, reason, "the end", self.now, outcome, agent.round if agent else None)
        self.pods[name] = replace(pod, phase=phase, exit=end, disruption=disruption)

    def poll(self, name: str) -> None:
        """One agent asks the coordinator and does what it is told."""
        pod = self.pods[name]
        agent = self.agents.get(pod.uid)
        if agent is None:
            return
        self.reported[pod.uid] = agent
        told = self.directive
        if told.outcome:
            code = 81 if agent.state is AgentState.FAILED else 0
            self.end_pod(name, code, outcome="userError" if code else "finished")
        elif name in told.leaving:
            self.end_pod(name, 0, outcome="left", reason="Completed")
        elif told.round and told.round.number > agent.round and name in [m.pod for m in told.round.members]:
            self._agent(name, AgentState.RUNNING, told.round.number)

    def finish_workers(self, name: str) -> None:
        agent = self.agents[self.pods[name].uid]
        if agent.state is AgentState.RUNNING:
            self._agent(name, AgentState.FINISHED, agent.round)

    def fail_workers(self, name: str, reason: str = "WorkerFailed", exit_code: int = 1) -> None:
        agent = self.agents[self.pods[name].uid]
        if agent.state is AgentState.RUNNING:
            failure = WorkerFailure(reason, f"{name} broke", self.now, 0, exit_code)
            self._agent(name, AgentState.FAILED, agent.round, failure)

    def _agent(self, name: str, state: AgentState, number: int, failure: WorkerFailure | None = None) -> None:
        uid = self.pods[name].uid
        agent = Agent(uid, state, number, Ports(40000 + len(self.agents), 41000), self.now, failure)
        self.agents[uid] = agent
        self.reported[uid] = agent

    def _snapshot(self) -> tuple[object, ...]:
        return self.job.status.model_dump_json(), dict(self.pods), dict(self.agents), dict(self.reported)

    # Courses of events.

    def settle(self, *, limit: int = 200) -> None:
        """Let everything that is under way happen, time included, until nothing changes."""
        for _ in range(limit):
            before = self._snapshot()
            made = self.look()
            for name in list(self.pods):
                pod = self.pods[name]
                if pod.deleting:
                    self.remove_pod(name)
                else:
                    self.run_pod(name)
                    self.poll(name)
            if before == self._snapshot():
                if made.next_look is None or made.next_look <= self.now or self.job_deleted:
                    return
                self.now = made.next_look
            else:
                self.now += timedelta(milliseconds=100)
        raise AssertionError(f"no rest after {limit} looks: {self.job.status}")

    @property
    def training(self) -> tuple[str, ...]:
        current = self.job.status.round
        phase = self.job.status.phase
        return current.members if current and phase == "Running" else ()

    def condition(self, type_: str) -> tuple[str, str]:
        found = next(c for c in self.job.status.conditions if c.type == type_)
        return found.status, str(found.reason)
