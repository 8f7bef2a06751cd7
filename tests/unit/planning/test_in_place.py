"""Rounds that workers with sessions go into as they are: planned changes, losses, and what can go wrong on the way."""

from datetime import timedelta

import pytest
from tests.property.world import World

from elastrain.planning import AgentState, PodPhase, Round
from elastrain.planning.in_place import FORM_LIMIT, STALL_LIMIT


def trains(**spec: object) -> World:
    """Return a job whose workers train in place, and have for a while."""
    world = World.of(elastic=True, **spec)
    world.settle()
    assert len(world.group) == len(world.training) == world.job.spec.wanted_nodes
    world.pass_time(300)
    return world


def told(world: World) -> Round:
    assert world.directive.round is not None
    return world.directive.round


def joining(world: World) -> list[str]:
    return [member.pod for member in told(world).members if member.joining]


def formed(world: World, name: str) -> int:
    return world.agents[world.pods[name].uid].formed


def test_growth_keeps_all_workers_and_trains_on_while_newcomers_come() -> None:
    world = trains(nodes=2)
    world.edit(nodes=4)
    world.look()
    for name in ("job-2-0", "job-3-0"):
        world.run_pod(name)
    world.look()
    assert world.job.status.round.number == 2
    assert joining(world) == ["job-2-0", "job-3-0"]
    assert told(world).rendezvous.host == "job-2-0.job.default.svc"
    assert told(world).store.host == "job-0-0.job.default.svc"
    assert world.job.status.phase == "Running"
    assert world.condition("Degraded") == ("True", "FewerNodes")
    assert world.job.status.nodes.training == 2
    world.settle()
    assert world.training == ("job-0-0", "job-1-0", "job-2-0", "job-3-0")
    assert {formed(world, name) for name in world.training} == {2}
    assert world.job.status.nodes.training == 4
    assert world.restarted == []
    assert [event.reason for event in world.events].count("Recovering") == 0


def test_shrinking_lets_the_leavers_train_until_the_round_has_formed() -> None:
    world = trains(nodes=3)
    world.edit(nodes=1)
    world.look()
    assert told(world).leavers == ("job-1-0", "job-2-0")
    assert world.directive.leaving == {}
    assert not any(pod.deleting for pod in world.pods.values())
    assert world.job.status.phase == "Running"
    world.settle()
    assert world.training == ("job-0-0",)
    assert list(world.pods) == ["job-0-0"]
    assert formed(world, "job-0-0") == 2
    assert world.restarted == []


def test_a_leaver_that_does_not_leave_is_stopped_and_told_so() -> None:
    world = trains(nodes=2, scaling={"leaveSeconds": 20})
    world.edit(nodes=1)
    made = world.look()
    assert made.next_look <= world.now + timedelta(seconds=20)
    world.pass_time(20)
    world.look()
    assert world.pods["job-1-0"].deleting
    assert "did not leave with round 2" in world.directive.leaving["job-1-0"]


def test_growth_and_shrinking_of_targets_settle_to_one_change() -> None:
    world = trains(nodes=2)
    for nodes in (4, 3, 5, 3):
        world.edit(nodes=nodes)
        world.look()
    world.settle()
    assert [number for number, *_ in world.rounds] == [1, 2]
    assert len(world.training) == 3


@pytest.mark.parametrize("victim", ["job-0-0", "job-1-0", "job-2-0"])
def test_a_lost_pod_is_left_out_at_once_and_its_replacement_joins_the_others(victim: str) -> None:
    world = trains(nodes=3, minNodes=1)
    world.remove_pod(victim)
    world.look()
    rest = tuple(name for name in ("job-0-0", "job-1-0", "job-2-0") if name != victim)
    assert world.job.status.round.members == rest
    assert world.job.status.round.reason == "PodLost"
    assert joining(world) == []
    assert world.job.status.phase == "Recovering"
    world.settle()
    assert len(world.training) == 3
    assert victim[:-1] + "1" in world.training
    assert [members for _, members, *_ in world.rounds][1:] == [rest, (*rest, victim[:-1] + "1")]
    assert world.restarted == []
    assert world.job.status.failures.counted == 0


def test_survivors_that_are_too_few_wait_for_the_replacement_and_keep_their_workers() -> None:
    world = trains(nodes=2, minNodes=2)
    world.remove_pod("job-1-0")
    world.look()
    assert world.job.status.round.number == 1
    assert world.job.status.phase == "Recovering"
    world.settle()
    assert world.job.status.round.continuing == ("job-0-0",)
    assert world.training == ("job-0-0", "job-1-1")
    assert formed(world, "job-0-0") == 2


def test_a_pod_being_deleted_leaves_without_a_stop() -> None:
    world = trains(nodes=3, minNodes=1)
    world.take_pod("job-0-0")
    world.look()
    assert world.job.status.round.reason == "PodLeaves"
    assert told(world).leavers == ("job-0-0",)
    assert world.job.status.phase == "Running"
    assert world.created[-1] == "job-0-1"
    world.settle()
    assert world.training == ("job-1-0", "job-2-0", "job-0-1")
    assert world.restarted == []
    assert [event.reason for event in world.events].count("Recovering") == 0


def test_a_failed_worker_is_counted_once_and_rejoins_after_its_back_off_while_the_others_train() -> None:
    world = trains(nodes=3, minNodes=1, failurePolicy={"backoffSeconds": 60})
    world.fail_workers("job-1-0")
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")
    assert world.job.status.round.reason == "WorkerFailed"
    for _ in range(4):  # some turns, no time
        for name in list(world.pods):
            world.poll(name)
        world.regroup()
        world.look()
    assert world.job.status.phase == "Running"
    assert world.job.status.nodes.training == 2
    begun = world.now
    world.settle()
    assert world.now >= begun + timedelta(seconds=50)
    assert world.training == ("job-0-0", "job-2-0", "job-1-0")
    assert world.job.status.failures.counted == 1
    assert world.restarted == []


def test_one_fault_of_all_is_one_failure() -> None:
    world = trains(nodes=3, minNodes=1, failurePolicy={"maxFailures": 1})
    for name in world.training:
        world.fail_workers(name)
        world.look()
        for other in list(world.pods):
            world.poll(other)
        world.look()
    assert world.job.status.failures.counted == 1
    world.settle()
    assert world.job.status.phase == "Running"
    assert len(world.training) == 3


@pytest.mark.parametrize("minimum", [1, 3])
def test_a_newcomer_that_fails_before_it_comes_in_disturbs_nobody(minimum: int) -> None:
    world = trains(nodes=2)
    world.edit(nodes=3, minNodes=minimum)
    world.look()
    world.run_pod("job-2-0")
    world.look()
    for name in list(world.pods):
        world.poll(name)
    world.fail_workers("job-2-0")
    world.look()
    assert not any(world.agents[pod.uid].stalled for pod in world.pods.values())
    assert world.job.status.phase == "Running"
    assert world.job.status.nodes.training == 2
    world.settle()
    assert len(world.training) == 3
    assert world.restarted == []


def test_a_newcomer_that_never_comes_in_is_left_out_and_tried_again() -> None:
    world = trains(nodes=2, minNodes=1)
    world.edit(nodes=3)
    world.look()
    world.run_pod("job-2-0")
    world.look()
    for name in list(world.pods):
        world.poll(name)
    made = world.look()
    assert made.next_look <= world.now + FORM_LIMIT
    world.pass_time(FORM_LIMIT.total_seconds())
    world.look()
    assert world.job.status.round.reason == "NewcomerLate"
    assert world.job.status.round.members == ("job-0-0", "job-1-0")
    assert world.job.status.phase == "Running"
    world.settle()
    assert len(world.training) == 3
    assert world.restarted == []


def test_a_change_waits_until_the_round_before_has_formed() -> None:
    world = trains(nodes=2)
    world.edit(nodes=3)
    world.look()
    world.run_pod("job-2-0")
    world.look()
    world.edit(nodes=1)
    world.look()
    assert world.job.status.round.number == 2
    world.settle()
    assert world.training == ("job-0-0",)
    assert world.restarted == []


def test_a_broken_group_without_a_loss_gets_a_new_round_of_the_same() -> None:
    world = trains(nodes=2)
    for name in world.training:
        world._say(name, stalled=1)
    world.group = frozenset()
    made = world.look()
    assert world.job.status.phase == "Recovering"
    assert made.next_look <= world.now + STALL_LIMIT
    world.pass_time(STALL_LIMIT.total_seconds())
    for name in world.pods:
        world.poll(name)
    world.look()
    assert world.job.status.round.reason == "Regroup"
    assert joining(world) == []
    world.settle()
    assert {formed(world, name) for name in world.training} == {2}


def test_an_operator_that_starts_anew_lets_a_forming_round_be() -> None:
    world = trains(nodes=2)
    world.edit(nodes=3)
    world.look()
    world.run_pod("job-2-0")
    world.look()
    before = told(world)
    world.restart_operator()
    world.look()
    assert told(world) == before
    world.settle()
    assert world.job.status.round.number == 2
    assert len(world.group) == 3


def test_an_end_while_a_newcomer_is_on_its_way_is_the_end() -> None:
    world = trains(nodes=2)
    world.edit(nodes=3)
    world.look()
    world.run_pod("job-2-0")
    world.look()
    world.finish_group()
    for name in list(world.pods):
        world.poll(name)
    world.look()
    assert world.job.status.phase == "Complete"


def test_an_end_of_one_alone_is_a_failure_of_all() -> None:
    world = trains(nodes=2, failurePolicy={"maxFailures": 0})
    world.finish_workers("job-0-0")
    world.settle()
    assert world.job.status.phase == "Failed"
    assert "job-0-0 ended with exit code 0 while those of job-1-0 were still training" in str(
        world.job.status.last_failure.message
    )


def test_mode_restart_starts_all_workers_anew() -> None:
    world = trains(nodes=2, scaling={"mode": "Restart"})
    world.edit(nodes=1)
    world.look()
    assert joining(world) == ["job-0-0"]
    assert told(world).leavers == ()


def test_mode_in_place_never_restarts_workers_for_a_planned_change() -> None:
    world = World.of(nodes=2, scaling={"mode": "InPlace"})  # their script opens no session
    world.settle()
    world.edit(nodes=1)
    world.settle()
    assert world.job.status.round.number == 1
    assert world.agents[world.pods["job-1-0"].uid].state is AgentState.RUNNING


def test_a_service_that_is_deleted_is_made_again_and_the_round_is_let_be() -> None:
    world = trains(nodes=2)
    world.service = False
    world.settle()
    assert world.service
    assert world.job.status.round.number == 1


def test_a_suspended_job_goes_and_comes_back() -> None:
    world = trains(nodes=2)
    world.edit(suspend=True)
    world.settle()
    assert world.pods == {}
    assert world.job.status.round.continuing == ()
    world.edit(suspend=False, nodes=3)
    world.settle()
    assert len(world.group) == 3
    assert all(pod.phase is PodPhase.RUNNING for pod in world.pods.values())
