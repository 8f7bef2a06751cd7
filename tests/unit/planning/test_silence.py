"""Members that are not heard of: who is taken for lost, when, and who is not."""

import pytest
from tests.property.world import World, replace

from elastrain.planning import AgentState, ProgressReport
from elastrain.planning.plan import plan


def trains(**spec: object) -> World:
    world = World.of(elastic=True, nodes=3, minNodes=1, failurePolicy={"nodeLossSeconds": 15}, **spec)
    world.settle()
    return world


def test_a_silent_member_is_left_out_after_its_time_and_its_pod_replaced() -> None:
    world = trains()
    world.cut.add("job-1-0")
    world.pass_time(14)
    world.look()
    assert world.job.status.round.number == 1
    world.pass_time(1)
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")
    assert world.pods["job-1-0"].deleting
    world.look()
    assert world.created[-1] == "job-1-1"
    assert any("job-1-0 on node n1 has not been heard of for 15 s" in event.message for event in world.events)
    world.settle()
    assert world.training == ("job-0-0", "job-2-0", "job-1-1")
    assert world.job.status.failures.counted == 0
    assert world.restarted == []


def test_if_nobody_is_heard_nobody_is_lost() -> None:
    world = trains()
    world.cut |= set(world.pods)
    for _ in range(10):
        world.pass_time(30)
        world.look()
    assert world.job.status.round.number == 1
    assert world.job.status.phase == "Running"
    world.cut.clear()
    world.settle()
    assert world.job.status.round.number == 1


def test_a_silent_member_that_the_api_server_has_lost_too_needs_no_other_witness() -> None:
    world = World.of(elastic=True, nodes=1)
    world.settle()
    world.cut.add("job-0-0")
    world.pass_time(30)
    world.look()
    assert world.created == ["job-0-0"]
    world.pods["job-0-0"] = replace(world.pods["job-0-0"], ready=False)
    world.look()
    world.look()
    assert world.created == ["job-0-0", "job-0-1"]


def test_steps_that_go_on_are_a_sign_of_life_of_every_member() -> None:
    world = trains()
    world.cut.add("job-1-0")
    world.pass_time(60)
    observed = replace(world.observed(), progress=ProgressReport(1, world.now, step=100))
    assert plan(world.job, observed, world.now).status.round.number == 1


def test_a_new_operator_gives_every_member_its_full_time() -> None:
    world = trains()
    world.cut.add("job-1-0")
    world.pass_time(14)
    world.restart_operator()
    for name in ("job-0-0", "job-2-0"):
        world.poll(name)
    world.pass_time(14)
    world.look()
    assert world.job.status.round.number == 1
    world.pass_time(1)
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")


@pytest.mark.parametrize("back", [True, False])
def test_a_loss_right_after_a_start_of_the_operator_waits_for_those_that_have_not_said_a_word_yet(back: bool) -> None:
    world = trains()
    world.restart_operator()
    world.remove_pod("job-2-0")
    world.poll("job-0-0")
    world.look()
    assert world.job.status.round.number == 1
    if back:
        world.poll("job-1-0")
    else:
        world.cut.add("job-1-0")
        world.pass_time(15)
    world.look()
    assert world.job.status.round.members == (("job-0-0", "job-1-0") if back else ("job-0-0",))
    assert world.job.status.round.continuing == world.job.status.round.members


def test_a_new_operator_takes_a_pod_that_is_being_deleted_and_says_nothing_for_lost() -> None:
    world = trains()
    world.cut.add("job-1-0")
    world.take_pod("job-1-0")
    world.restart_operator()
    world.look()
    for name in ("job-0-0", "job-2-0"):
        world.poll(name)
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")
    assert world.job.status.round.leavers == ()
    world.settle()
    assert len(world.group) == 3


def test_peers_that_have_lost_their_connections_are_witnesses() -> None:
    world = trains()
    world.cut.add("job-1-0")
    for name in ("job-0-0", "job-2-0"):
        world._say(name, stalled=1)
    world.group = frozenset()
    world.pass_time(8)
    world.look()
    assert world.job.status.round.number == 1  # not a round with the one that is not heard of
    world.pass_time(1)
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")
    world.settle()
    assert len(world.group) == 3


def test_a_pod_that_comes_back_to_the_network_is_no_member_any_more() -> None:
    world = trains()
    world.cut.add("job-1-0")
    world.pass_time(15)
    world.look()
    world.cut.clear()
    world.settle()
    assert "job-1-0" not in world.pods
    assert len(world.group) == 3
    assert {agent.state for agent in world.agents.values()} == {AgentState.RUNNING}


def test_a_pod_that_has_never_said_anything_is_not_taken_for_lost() -> None:
    world = trains()
    world.edit(nodes=4)
    world.look()
    world.cut.add("job-3-0")
    world.run_pod("job-3-0")
    for _ in range(5):
        world.pass_time(60)
        world.look()
    assert not world.pods["job-3-0"].deleting
    assert world.job.status.phase == "Running"
