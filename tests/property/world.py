"""A simulated cluster for the planner: pods, agents and a coordinator that behave as the protocol says.

A fake, for what a real cluster cannot give: thousands of histories a minute, and a crash of the operator
between any two actions. It knows nothing of the planner but its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

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
    Round,
    WorkerFailure,
    plan,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
IMAGE = "trainer:1"
EVICTION = timedelta(seconds=300)
"""After this time the API server has the pods of a node deleted that it does not hear of."""
QUIET = timedelta(seconds=700)
"""No limit is longer than this, but for those that a spec may set."""


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
    """One job and everything around it; `now` moves only when told to.

    The workers of an `elastic` one open sessions, and those then go from round to round in place.
    """

    job: TrainJob
    elastic: bool = False
    now: datetime = START
    pods: dict[str, Pod] = field(default_factory=dict)  # by name
    agents: dict[str, Agent] = field(default_factory=dict)  # what agents are, by pod uid
    reported: dict[str, Agent] = field(default_factory=dict)  # what the coordinator knows of them
    heard: dict[str, datetime] = field(default_factory=dict)  # when agents last asked or reported, by pod uid
    since: datetime = START  # from when on they could
    cut: set[str] = field(default_factory=set)  # the names of pods that are off the network
    directive: Directive = field(default_factory=Directive)
    service: bool = False
    refusal: Refusal | None = None
    next_look: datetime | None = None
    job_deleted: bool = False
    events: list[EmitEvent] = field(default_factory=list)
    rounds: list[tuple[int, tuple[str, ...], int, int]] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    told: dict[int, Round] = field(default_factory=dict)  # every round that an agent heard of, by number
    group: frozenset[str] = frozenset()  # the pod uids whose sessions train together
    restarted: list[str] = field(default_factory=list)  # pods whose session trained and whose workers began anew
    unasked: list[str] = field(default_factory=list)  # pods that trained and are in no way part of the next round
    _uids: Iterable[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of(cls, *, elastic: bool = False, **spec: object) -> World:
        return cls(TrainJob.model_validate(manifest(**spec)), elastic)

    # What the operator does.

    def observed(self) -> Observed:
        return Observed(
            pods=tuple(self.pods.values()),
            agents=dict(self.reported),
            heard=dict(self.heard),
            listening_since=self.since,
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
        if after and after.members and (before is None or before.number < after.number):
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
        self.heard, self.since = {}, self.now

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
        self.cut.discard(name)
        for known in (self.agents, self.reported, self.heard):
            known.pop(pod.uid, None)

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
        if agent is None or name in self.cut:
            return
        self.reported[pod.uid], self.heard[pod.uid] = agent, self.now
        told = self.directive
        if told.outcome:
            code = 81 if agent.state is AgentState.FAILED else 0
            self.end_pod(name, code, outcome="userError" if code else "finished")
        elif name in told.leaving:
            self.end_pod(name, 0, outcome="left", reason="Completed")
        elif told.round and told.round.number > agent.round:
            self._hear(name, agent, told.round)

    def _hear(self, name: str, agent: Agent, told: Round) -> None:
        """Do as `machine` does with a round."""
        members = {member.pod: member for member in told.members}
        if name not in (*members, *told.leavers):
            return
        self.told[told.number] = told
        if name in members and members[name].joining:
            self.restarted += [name] if agent.in_place and agent.formed and not agent.stalled else []
            self._agent(name, AgentState.RUNNING, told.number)
        elif agent.state is AgentState.RUNNING and agent.in_place:
            self._say(name, round=told.number)
            if name in told.leavers and agent.stalled:
                self.end_pod(name, 0, outcome="left", reason="Completed")
        elif name in told.leavers:
            self.end_pod(name, 0, outcome="left", reason="Completed")
        elif agent.state is AgentState.FINISHED:
            self._say(name, round=told.number)
        else:
            failure = agent.failure or WorkerFailure("WorkerFailed", "cannot go on", self.now, 0, 1)
            self._agent(name, AgentState.FAILED, told.number, failure)

    def open_session(self, name: str) -> None:
        """The workers of one pod get to their session."""
        agent = self.agents.get(self.pods[name].uid)
        if self.elastic and agent and agent.state is AgentState.RUNNING and not agent.in_place:
            self._say(name, in_place=True)

    def regroup(self) -> None:
        """The sessions notice that a peer is lost, and form the next group when all its members have arrived."""
        if any(uid not in self.agents or self.agents[uid].state is not AgentState.RUNNING for uid in self.group):
            for name in self._names(self.group):
                agent = self.agents[self.pods[name].uid]
                if agent.state is AgentState.RUNNING:
                    self._say(name, stalled=agent.formed)
                    if name in (self.told[agent.round].leavers if agent.round in self.told else ()):
                        self.end_pod(name, 0, outcome="left", reason="Completed")
            self.group = frozenset()
        told = self.told[max(self.told)] if self.told else None
        away = {name for name in self._names(self.group) if name in self.cut}
        there = [self.agents[self.pods[name].uid] for name in self._names(self.group) if name not in away]
        here = {*told.leavers, *(m.pod for m in told.members if not m.joining)} if told else set()
        if away and not away & here and told and all(agent.round == told.number for agent in there):
            # No connection breaks: it is the word of the round that tells them.
            for name in self._names(self.group):
                if name not in away:
                    self._say(name, stalled=self.agents[self.pods[name].uid].formed)
            self.group = frozenset()
        if told and all(self._arrived(member.pod, told.number) for member in told.members):
            self._form(told)

    def _arrived(self, name: str, number: int) -> bool:
        agent = self.agents.get(self.pods[name].uid) if name in self.pods else None
        return bool(
            agent
            and name not in self.cut
            and agent.state is AgentState.RUNNING
            and agent.in_place
            and agent.round == number
            and agent.formed < number
        )

    def _form(self, told: Round) -> None:
        members = [member.pod for member in told.members]
        trained = self._names(self.group)
        if self.cut & set(trained) or any(
            self.agents[self.pods[name].uid].round < told.number for name in trained if name in told.leavers
        ):
            return  # they have not all heard of it, so they do not agree at their boundary
        if not all(member.joining for member in told.members):
            self.unasked += [name for name in trained if name not in (*members, *told.leavers)]
        for name in trained:
            if name not in members:
                self.end_pod(name, 0, outcome="left", reason="Completed")
        for name in members:
            self._say(name, formed=told.number, stalled=0)
        self.group = frozenset(self.pods[name].uid for name in members)

    def _names(self, uids: frozenset[str]) -> list[str]:
        return [name for name, pod in self.pods.items() if pod.uid in uids and pod.uid in self.agents]

    def finish_workers(self, name: str) -> None:
        agent = self.agents[self.pods[name].uid]
        if agent.state is AgentState.RUNNING:
            self._agent(name, AgentState.FINISHED, agent.round)

    def finish_group(self) -> None:
        """The sessions do their last step, all together."""
        for name in self._names(self.group):
            self.finish_workers(name)
        self.group = frozenset()

    def fail_workers(self, name: str, reason: str = "WorkerFailed", exit_code: int = 1) -> None:
        agent = self.agents[self.pods[name].uid]
        if agent.state is AgentState.RUNNING:
            failure = WorkerFailure(reason, f"{name} broke", self.now, 0, exit_code)
            self._agent(name, AgentState.FAILED, agent.round, failure)

    def _agent(self, name: str, state: AgentState, number: int, failure: WorkerFailure | None = None) -> None:
        uid = self.pods[name].uid
        agent = Agent(uid, state, number, Ports(40000 + len(self.agents), 41000), self.now, failure)
        self.agents[uid] = agent
        self._report(name)

    def _report(self, name: str) -> None:
        uid = self.pods[name].uid
        if name not in self.cut:
            self.pods[name] = replace(self.pods[name], ready=True)
            self.reported[uid], self.heard[uid] = self.agents[uid], self.now

    def _say(self, name: str, **changes: Any) -> None:
        """One agent reports that something about its sessions is another."""
        uid = self.pods[name].uid
        stalled = changes.get("stalled")
        since = {} if stalled is None else {"stalled_since": self.now if stalled else None}
        self.agents[uid] = replace(self.agents[uid], **changes, **since)
        self._report(name)

    def _leaves_by_itself(self, name: str) -> bool:
        """Whether the agent has been sent SIGTERM and waits for a round without its pod."""
        agent = self.agents.get(self.pods[name].uid)
        return bool(agent and agent.in_place and self.pods[name].uid in self.group and not agent.stalled)

    def pass_time(self, seconds: float) -> None:
        """Let time go by, in which all agents that can be heard are."""
        self.now += timedelta(seconds=max(seconds, 0.1))
        self.heard |= {self.pods[name].uid: self.now for name in self.pods if self._can_be_heard(name)}

    def _can_be_heard(self, name: str) -> bool:
        return name not in self.cut and self.pods[name].uid in self.heard and self.pods[name].uid in self.agents

    def _snapshot(self) -> tuple[object, ...]:
        return self.job.status.model_dump_json(), dict(self.pods), dict(self.agents), dict(self.reported)

    # Courses of events.

    def settle(self, *, limit: int = 200) -> None:
        """Let everything that is under way happen, time included, until nothing changes."""
        changed = begun = self.now
        for name in self.cut:  # the API server does not hear of its node either
            self.pods[name] = replace(self.pods[name], ready=False)
        for _ in range(limit):
            if self.now > begun + EVICTION:
                for name in self.cut:
                    self.take_pod(name)
            before = self._snapshot()
            made = self.look()
            for name in list(self.pods):
                pod = self.pods[name]
                if pod.deleting and name not in self.cut and not self._leaves_by_itself(name):
                    self.remove_pod(name)
                else:
                    self.run_pod(name)
                    self.poll(name)
            for name in self.pods:
                self.open_session(name)
            self.regroup()
            if before == self._snapshot():
                if made.next_look is None and self.cut and self.now <= begun + EVICTION:
                    self.pass_time(EVICTION.total_seconds())
                    continue
                if made.next_look is None or self.now > changed + QUIET or self.job_deleted:
                    return
                self.pass_time((made.next_look - self.now).total_seconds())
            else:
                self.pass_time(0.1)
                changed = self.now
        raise AssertionError(f"no rest after {limit} looks: {self.job.status}")

    @property
    def training(self) -> tuple[str, ...]:
        current = self.job.status.round
        phase = self.job.status.phase
        return current.members if current and phase == "Running" else ()

    def condition(self, type_: str) -> tuple[str, str]:
        found = next(c for c in self.job.status.conditions if c.type == type_)
        return found.status, str(found.reason)
