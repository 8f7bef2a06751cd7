"""The invariants of rounds, held over random histories of a simulated cluster.

Every rule is something that can happen to a job; the invariants are checked after each of them, and at the end
of every history that whatever can settle does.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.world import Crash, World

from elastrain.planning import AgentState, DeletePod, PodPhase

pytestmark = pytest.mark.timeout(600)

GRACE = timedelta(seconds=1)
FINAL = ("Complete", "Failed")


class History(RuleBasedStateMachine):
    world: World

    @initialize(
        nodes=st.integers(1, 4),
        slack=st.integers(0, 3),
        budget=st.integers(0, 3),
        multiple=st.sampled_from([1, 1, 2]),
        under_way=st.booleans(),
        elastic=st.booleans(),
    )
    def begin(self, nodes: int, slack: int, budget: int, multiple: int, under_way: bool, elastic: bool) -> None:
        nodes *= multiple
        minimum = max(nodes - slack * multiple, multiple)
        self.world = World.of(
            elastic=elastic,
            nodes=nodes,
            minNodes=minimum,
            nodeMultiple=multiple,
            failurePolicy={"maxFailures": budget},
        )
        self.multiple = multiple
        self.final: str | None = None
        self.numbers: list[int] = []
        self.failures = 0
        self.doomed: dict[str, datetime] = {}
        if under_way:
            self.world.settle()

    # What the operator does.

    @rule()
    def look(self) -> None:
        self.world.look()

    @rule(after=st.integers(0, 5))
    def crash(self, after: int) -> None:
        try:
            self.world.look(crash_after=after)
        except Crash:
            self.world.restart_operator()

    @rule(seconds=st.sampled_from([0.1, 1, 5, 40]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def turn(self) -> None:
        """Everybody does one thing."""
        for name in list(self.world.pods):
            pod = self.world.pods[name]
            if name in self.world.cut:
                continue
            if pod.deleting and self.world.now > self.doomed.setdefault(name, self.world.now) + GRACE:
                self.world.remove_pod(name)
            else:
                self.world.run_pod(name)
                self.world.poll(name)
                self.world.open_session(name)
        self.world.regroup()
        self.world.pass_time(0.2)
        self.world.look()

    # What people do.

    @precondition(lambda self: self.final is None)
    @rule(nodes=st.integers(1, 5))
    def scale(self, nodes: int) -> None:
        self.world.edit(nodes=nodes * self.multiple, minNodes=self.multiple)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.world.edit(suspend=suspend)

    # What the cluster and the workers do.

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def run_pod(self, data: st.DataObject) -> None:
        self.world.run_pod(data.draw(st.sampled_from(sorted(self.world.pods))))

    @precondition(lambda self: self.world.agents)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        self.world.poll(data.draw(st.sampled_from(self._with_agents())))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def open_session(self, data: st.DataObject) -> None:
        self.world.open_session(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule()
    def regroup(self) -> None:
        self.world.regroup()

    @precondition(lambda self: self.world.group)
    @rule()
    def finish_group(self) -> None:
        self.world.regroup()
        self.world.finish_group()

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), how=st.sampled_from(["take", "remove", "evict"]))
    def lose(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.pods)))
        if how == "take":
            self.world.take_pod(name)
        elif how == "remove":
            self.world.remove_pod(name)
        elif not self.world.pods[name].ended:
            self.world.end_pod(name, 137, disruption="Evicted")

    @precondition(lambda self: self.world.agents)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self.world.cut.add(data.draw(st.sampled_from(self._with_agents())))

    @precondition(lambda self: self.world.cut)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        self.world.cut.discard(data.draw(st.sampled_from(sorted(self.world.cut))))

    @precondition(lambda self: self.world.agents)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._with_agents()))
        if self.world.agents[self.world.pods[name].uid].state is AgentState.RUNNING:
            self.failures += 1
        self.world.fail_workers(name)

    @precondition(lambda self: self.world.agents)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.failures += 1  # if it is alone in that
        self.world.finish_workers(data.draw(st.sampled_from(self._with_agents())))

    def _with_agents(self) -> list[str]:
        return sorted(name for name, pod in self.world.pods.items() if pod.uid in self.world.agents)

    # What must hold.

    @invariant()
    def numbers_only_grow(self) -> None:
        numbers = [number for number, *_ in self.world.rounds]
        assert numbers == sorted(set(numbers))

    @invariant()
    def members_are_ready_and_as_many_as_allowed(self) -> None:
        for _, members, ready, wanted in self.world.rounds:
            assert ready == len(members) == len(set(members))
            assert len(members) <= wanted
            assert len(members) % self.multiple == 0

    @invariant()
    def one_round_trains_at_a_time(self) -> None:
        """No agent is ever ahead of the number on record, nor two pods of one seat in one round."""
        world = self.world
        number = world.job.status.round.number if world.job.status.round else 0
        for name, pod in world.pods.items():
            agent = world.agents.get(pod.uid)
            assert agent is None or agent.round <= number, name
        for _, members, *_ in world.rounds:
            seats = [name.rsplit("-", 1)[0] for name in members]
            assert len(seats) == len(set(seats))

    @invariant()
    def whoever_trains_is_told_of_the_next_round(self) -> None:
        assert self.world.unasked == []

    @invariant()
    def only_failures_of_workers_spend_the_budget(self) -> None:
        assert self.world.job.status.failures.counted <= self.failures

    @invariant()
    def a_finished_job_stays_as_it_ended(self) -> None:
        phase = str(self.world.job.status.phase)
        if self.final:
            assert phase == self.final
        elif phase in FINAL:
            self.final = phase
            self.created = len(self.world.created)
        if self.final:
            assert len(self.world.created) == self.created

    @rule()
    def look_twice(self) -> None:
        """Planning again without news writes nothing, but for deletions under way."""
        world = self.world
        world.look()
        world.look()
        again = world.look()
        assert [a for a in again.actions if not isinstance(a, DeletePod)] == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle(limit=2000)
        phase = str(world.job.status.phase)
        if phase in FINAL:
            assert all(pod.ended for name, pod in world.pods.items() if name not in world.cut)
            return
        if world.job.spec.suspend:
            assert phase == "Suspended"
            assert set(world.pods) <= world.cut
            return
        assert phase in ("Running", *FINAL)
        live = [pod for pod in world.pods.values() if not pod.ended and not pod.deleting]
        assert len(live) == world.job.spec.wanted_nodes == len(world.training)
        assert all(pod.phase is PodPhase.RUNNING for pod in live)
        assert len({pod.index for pod in live}) == len(live)
        if world.elastic and phase == "Running":
            assert {pod.uid for pod in live} == world.group
            assert world.job.status.round is not None
            assert world.job.status.round.previous == 0


TestHistories = History.TestCase
TestHistories.settings = settings(
    max_examples=400,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking a history takes minutes
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
