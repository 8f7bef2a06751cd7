"""The planner, event by event, as the table of starts of a round tells it."""

from datetime import timedelta

import pytest
from tests.property.world import World, replace

from elastrain.planning import AgentState, DeletePod, Obstacle, PodPhase, Refusal


def started(**spec: object) -> World:
    world = World.of(**spec)
    world.settle()
    return world


def test_first_start_creates_the_service_and_all_pods_at_once() -> None:
    world = World.of(nodes=3)
    world.look()
    assert world.service
    assert world.created == ["job-0-0", "job-1-0", "job-2-0"]
    assert world.job.status.phase == "Pending"


def test_first_round_waits_for_all_wanted_pods() -> None:
    world = World.of(nodes=2)
    world.look()
    world.run_pod("job-0-0")
    world.look()
    assert world.job.status.round is None
    world.run_pod("job-1-0")
    world.look()
    current = world.job.status.round
    assert current is not None
    assert (current.number, current.members, current.world_size, current.reason) == (
        1,
        ("job-0-0", "job-1-0"),
        2,
        "Start",
    )
    assert world.job.status.phase == "Starting"
    assert world.directive.round is not None
    assert world.directive.round.rendezvous.host == "job-0-0.job.default.svc"
    assert [m.joining for m in world.directive.round.members] == [True, True]


def test_running_when_all_members_run() -> None:
    world = started(nodes=2)
    assert world.training == ("job-0-0", "job-1-0")
    assert world.condition("Running") == ("True", "Training")
    assert world.condition("Degraded") == ("False", "AsWanted")
    assert world.job.status.start_time is not None
    assert (world.job.status.nodes.wanted, world.job.status.nodes.ready, world.job.status.nodes.training) == (
        2,
        2,
        2,
    )


def test_min_nodes_start_after_settling() -> None:
    world = World.of(nodes=3, minNodes=2, scaling={"settleSeconds": 5})
    world.look()
    world.run_pod("job-0-0")
    world.run_pod("job-1-0")
    made = world.look()
    assert world.job.status.round is None
    assert made.next_look <= world.now + timedelta(seconds=5)
    world.pass_time(5)
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-1-0")


def test_exit_zero_of_all_members_is_completion() -> None:
    world = started(nodes=2)
    world.finish_workers("job-0-0")
    world.settle()
    assert world.job.status.phase == "Running"
    world.finish_workers("job-1-0")
    world.settle()
    assert world.job.status.phase == "Complete"
    assert world.condition("Complete") == ("True", "Finished")
    assert world.condition("Running") == ("False", "Finished")
    assert {p.phase for p in world.pods.values()} == {PodPhase.SUCCEEDED}
    assert world.job.status.completion_time is not None


def test_worker_failure_is_counted_and_followed_by_a_round_of_the_same_pods() -> None:
    world = started(nodes=2)
    world.fail_workers("job-1-0")
    made = world.look()
    assert made.next_look is not None  # the peers may tell more
    assert world.job.status.phase == "Recovering"
    world.pass_time(0.2)
    world.fail_workers("job-0-0", reason="PeerLost")
    world.look()
    failure = world.job.status.last_failure
    assert failure is not None
    assert (failure.pod, failure.node, failure.rank, failure.exit_code, failure.round) == (
        "job-1-0",
        "n1",
        0,
        1,
        1,
    )
    world.settle()
    assert world.job.status.failures.counted == 1
    assert world.job.status.round.number == 2
    assert world.job.status.round.reason == "WorkerFailed"
    assert world.training == ("job-0-0", "job-1-0")
    assert world.created == ["job-0-0", "job-1-0"]


def test_budget_of_failures_ends_the_job_with_the_root_cause() -> None:
    world = started(nodes=2, failurePolicy={"maxFailures": 1})
    for _ in range(2):
        world.fail_workers("job-1-0", exit_code=7)
        world.fail_workers("job-0-0", reason="PeerLost")
        world.settle()
    assert world.job.status.phase == "Failed"
    failed = next(c for c in world.job.status.conditions if c.type == "Failed")
    assert failed.reason == "MaxFailuresExceeded"
    assert "pod job-1-0 on node n1, rank 0: WorkerFailed, exit code 7" in failed.message
    assert not [p for p in world.pods.values() if not p.ended]


def test_fatal_exit_code_is_not_tried_again() -> None:
    world = started(nodes=1, failurePolicy={"fatalExitCodes": [3]})
    world.fail_workers("job-0-0", exit_code=3)
    world.settle()
    assert world.condition("Failed") == ("True", "FatalExitCode")


def test_invalid_arguments_fail_at_once() -> None:
    world = started(nodes=1)
    world.fail_workers("job-0-0", reason="InvalidArguments", exit_code=2)
    world.settle()
    assert world.condition("Failed") == ("True", "InvalidArguments")
    assert world.job.status.failures.counted == 1


def test_free_exit_code_spends_no_budget() -> None:
    world = started(nodes=1, failurePolicy={"freeExitCodes": [42], "maxFailures": 0})
    world.fail_workers("job-0-0", exit_code=42)
    world.settle()
    assert world.training == ("job-0-0",)
    assert (world.job.status.failures.counted, world.job.status.failures.free) == (0, 1)


def test_back_off_doubles() -> None:
    world = started(nodes=1, failurePolicy={"maxFailures": 9, "backoffSeconds": 4, "maxBackoffSeconds": 10})
    waits = []
    for _ in range(3):
        world.fail_workers("job-0-0")
        failed = world.now
        world.settle()
        waits.append((world.job.status.round.start_time - failed).total_seconds())
    assert waits == [4, 8, 10]


@pytest.mark.parametrize("how", ["deleted", "evicted", "gone"])
def test_loss_of_a_pod_is_free_and_brings_a_replacement(how: str) -> None:
    world = started(nodes=2, failurePolicy={"maxFailures": 0})
    if how == "deleted":
        world.take_pod("job-1-0")
    elif how == "evicted":
        world.end_pod("job-1-0", 137, disruption="Evicted")
    else:
        world.remove_pod("job-1-0")
    world.fail_workers("job-0-0", reason="PeerLost")
    world.look()
    assert world.job.status.phase == "Recovering"
    world.settle()
    assert world.training == ("job-0-0", "job-1-1")
    assert world.job.status.round.reason == "PodLost"
    assert (world.job.status.failures.counted, world.job.status.failures.free) == (0, 0)


def test_survivors_go_on_at_once_when_min_nodes_allow_it() -> None:
    world = started(nodes=3, minNodes=1)
    world.take_pod("job-0-0")
    world.look()
    current = world.job.status.round
    assert (current.number, current.members) == (2, ("job-1-0", "job-2-0"))
    world.settle()
    assert world.training == ("job-1-0", "job-2-0", "job-0-1")
    assert world.condition("Degraded") == ("False", "AsWanted")


def test_growth_trains_on_until_the_newcomers_are_ready() -> None:
    world = started(nodes=2)
    world.edit(nodes=4)
    world.look()
    assert world.created[2:] == ["job-2-0", "job-3-0"]
    assert world.job.status.phase == "Running"
    assert world.condition("Degraded") == ("True", "FewerNodes")
    world.run_pod("job-2-0")
    world.look()
    assert world.job.status.round.number == 1
    world.run_pod("job-3-0")
    world.look()
    assert world.job.status.phase == "Scaling"
    assert world.job.status.round.reason == "NodesAdded"
    world.settle()
    assert world.training == ("job-0-0", "job-1-0", "job-2-0", "job-3-0")


def test_shrinking_publishes_the_round_before_it_deletes_pods() -> None:
    world = started(nodes=4)
    world.edit(nodes=2)
    made = world.look()
    assert not [a for a in made.actions if isinstance(a, DeletePod)]
    assert set(made.directive.leaving) == {"job-2-0", "job-3-0"}
    assert world.job.status.round.members == ("job-0-0", "job-1-0")
    world.settle()
    assert world.training == ("job-0-0", "job-1-0")
    assert set(world.pods) == {"job-0-0", "job-1-0"}
    assert world.job.status.failures.counted == 0


def test_a_leaver_that_does_not_leave_is_deleted_after_leave_seconds() -> None:
    world = started(nodes=2, scaling={"leaveSeconds": 7})
    world.edit(nodes=1)
    made = world.look()
    assert made.next_look <= world.now + timedelta(seconds=7)
    world.pass_time(7)
    made = world.look()
    assert [a.name for a in made.actions if isinstance(a, DeletePod)] == ["job-1-0"]


def test_node_multiple_rounds_down() -> None:
    world = started(nodes=4, nodeMultiple=2, minNodes=2)
    world.take_pod("job-1-0")
    world.look()
    assert world.job.status.round.members == ("job-0-0", "job-2-0")


def test_suspend_and_resume_with_an_edit_between() -> None:
    world = started(nodes=2)
    world.edit(suspend=True)
    world.settle()
    assert world.pods == {}
    assert world.job.status.phase == "Suspended"
    assert world.condition("Suspended") == ("True", "Suspended")
    world.edit(suspend=False, nodes=3)
    world.settle()
    assert len(world.training) == 3
    assert world.job.status.round.number == 2
    assert world.job.status.round.reason == "Resumed"
    assert world.condition("Suspended") == ("False", "NotSuspended")


def test_created_suspended_makes_no_pods() -> None:
    world = started(nodes=2, suspend=True, activeDeadlineSeconds=5)
    assert world.created == []
    world.pass_time(60)
    world.edit(suspend=False)
    world.settle()
    assert world.created
    assert (
        world.condition("Failed")[1] == "ActiveDeadlineExceeded"
    )  # settle lets all time pass, from the first round on
    assert world.job.status.start_time is not None


def test_active_deadline() -> None:
    world = World.of(nodes=1, activeDeadlineSeconds=100)
    world.settle()
    assert world.job.status.phase == "Failed"
    assert world.condition("Failed") == ("True", "ActiveDeadlineExceeded")
    ran = world.job.status.completion_time - world.job.status.start_time
    assert ran == timedelta(seconds=100)


def test_start_timeout() -> None:
    world = World.of(nodes=1, startTimeoutSeconds=30)
    world.look()
    world.pass_time(30)
    world.look()
    assert world.condition("Failed") == ("True", "StartTimeoutExceeded")


@pytest.mark.parametrize(("policy", "left"), [("Running", 1), ("All", 0), ("None", 2)])
def test_clean_pod_policy(policy: str, left: int) -> None:
    world = started(nodes=2, cleanPodPolicy=policy, failurePolicy={"maxFailures": 0})
    world.end_pod("job-0-0", 1)
    world.look()
    world.look()
    assert world.job.status.phase == "Failed"
    world.pass_time(60)  # the other agent never hears of it
    world.look()
    assert len([p for p in world.pods.values() if not p.deleting]) == left


def test_time_to_live_deletes_the_job() -> None:
    world = started(nodes=1, ttlSecondsAfterFinished=20)
    world.finish_workers("job-0-0")
    world.look()
    ended = world.now
    world.settle()
    assert world.job_deleted
    assert world.now == ended + timedelta(seconds=20)


def test_a_finished_job_stays_finished() -> None:
    world = started(nodes=2)
    world.finish_workers("job-0-0")
    world.finish_workers("job-1-0")
    world.settle()
    created = list(world.created)
    for name in list(world.pods):
        world.remove_pod(name)
    world.edit(nodes=5)
    world.settle()
    assert world.created == created
    assert world.job.status.phase == "Complete"


def test_one_rank_that_exits_early_is_named() -> None:
    world = started(nodes=2, failurePolicy={"maxFailures": 0})
    world.finish_workers("job-1-0")
    world.fail_workers("job-0-0", reason="PeerLost")
    world.settle()
    assert world.job.status.phase == "Failed"
    assert world.job.status.last_failure.reason == "EndedEarly"
    assert "job-1-0 ended with exit code 0 while" in world.job.status.last_failure.message


def test_a_job_on_fewer_nodes_tells_why() -> None:
    world = World.of(nodes=3, minNodes=2, scaling={"settleSeconds": 0})
    world.look()
    world.pods["job-2-0"] = replace(world.pods["job-2-0"], obstacle=Obstacle("Unschedulable", "Insufficient cpu"))
    for _ in range(3):
        for name in ("job-0-0", "job-1-0"):
            world.run_pod(name)
            world.poll(name)
        world.look()
    degraded = next(c for c in world.job.status.conditions if c.type == "Degraded")
    assert degraded.message == "training on 2 of 3 nodes; pod job-2-0: Unschedulable: Insufficient cpu"


def test_an_agent_that_was_killed_from_outside_spends_no_budget() -> None:
    world = started(nodes=2, failurePolicy={"maxFailures": 0})
    world.end_pod("job-1-0", 137)
    world.settle()
    assert world.job.status.failures.free == 1
    assert world.job.status.failures.counted == 0
    assert world.training == ("job-0-0", "job-1-1")


def test_out_of_memory_kill_of_the_container_is_named() -> None:
    world = started(nodes=2)
    world.end_pod("job-1-0", 137, reason="OOMKilled")
    world.look()
    assert world.job.status.last_failure.reason == "OOMKilled"
    assert world.job.status.failures.counted == 1
    world.settle()
    assert world.training == ("job-0-0", "job-1-1")
    assert "job-1-0" in world.pods  # its log can still be read


def test_a_container_that_cannot_start_spends_the_budget_and_does_not_spin() -> None:
    world = World.of(nodes=2, failurePolicy={"maxFailures": 1, "backoffSeconds": 10})
    world.look()
    for name in ("job-0-0", "job-1-0"):
        world.end_pod(name, 127)
    world.look()
    world.look()
    assert world.job.status.failures.counted == 1
    assert world.created == ["job-0-0", "job-1-0"]
    world.pass_time(10)
    world.look()
    assert world.created[2:] == ["job-0-1", "job-1-1"]
    world.pass_time(1)
    world.end_pod("job-1-1", 127)
    world.look()
    assert world.condition("Failed") == ("True", "MaxFailuresExceeded")


def test_obstacles_are_told() -> None:
    world = World.of(nodes=2)
    world.look()
    world.pods["job-1-0"] = replace(world.pods["job-1-0"], obstacle=Obstacle("ImagePullBackOff", "no such image x:1"))
    world.look()
    assert world.job.status.phase == "Pending"
    running = next(c for c in world.job.status.conditions if c.type == "Running")
    assert running.reason == "ImagePullFailed"
    assert running.message == "pod job-1-0: ImagePullBackOff: no such image x:1"
    assert [e.reason for e in world.events] == ["ImagePullFailed"]


def test_a_permanent_refusal_waits_for_an_edit() -> None:
    world = World.of(nodes=1)
    world.refusal = Refusal("InvalidTemplate", "spec.x: Invalid", world.now, permanent=True, generation=1)
    made = world.look()
    assert world.created == []
    assert made.next_look is None
    assert world.condition("Running") == ("False", "InvalidTemplate")
    world.edit(nodes=2)
    world.look()
    assert world.created == ["job-0-0", "job-1-0"]


def test_a_template_edit_replaces_the_pods_without_a_failure() -> None:
    world = started(nodes=2)
    template = {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}
    before = {pod.uid for pod in world.pods.values()}
    world.edit(template=template)
    world.settle()
    assert len(world.training) == 2
    assert not before & {pod.uid for pod in world.pods.values()}
    assert {pod.template_hash for pod in world.pods.values()} == {world.observed().template_hash}
    assert world.job.status.round.reason == "TemplateChanged"
    assert world.job.status.failures.counted == 0


def test_a_new_operator_tells_the_same_round_and_writes_nothing() -> None:
    world = started(nodes=2)
    told = world.directive
    world.restart_operator()
    before = world.job.status
    made = world.look()
    assert made.actions == ()
    assert made.status == before
    assert made.directive == told


def test_goodput_sums_to_the_wall_time() -> None:
    world = started(nodes=2)
    world.pass_time(50)
    world.take_pod("job-1-0")
    world.settle()
    world.pass_time(20)
    world.finish_workers("job-0-0")
    world.finish_workers("job-1-1")
    world.settle()
    goodput = world.job.status.goodput
    total = goodput.productive_seconds + sum(goodput.lost_seconds.model_dump().values())
    wall = (world.job.status.completion_time - world.job.metadata.creation_timestamp).total_seconds()
    assert total == pytest.approx(wall, rel=0.01)
    assert goodput.productive_seconds == pytest.approx(wall, abs=2)
    assert goodput.lost_seconds.recovering > 0


def test_agent_states_cover_the_protocol() -> None:
    assert {str(s) for s in AgentState} == {"ready", "running", "failed", "finished", "left"}
