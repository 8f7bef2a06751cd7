"""From what was decided to what people read: the conditions, and the phase that is derived from them.

Conditions carry the truth. The phase is one word for people and is never read by a decision, but for the
booking of time in `goodput`, which asks what people were told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from elastrain.api import Condition, ConditionType, Phase, Reason, RoundStatus, TrainJob, TrainJobStatus
from elastrain.planning.in_place import only_newcomers, stalled
from elastrain.planning.lifecycle import End, describe
from elastrain.planning.membership import RoundReason
from elastrain.planning.observed import AgentState, Observed, Pod, PodPhase
from elastrain.planning.seats import Seats
from elastrain.planning.troubles import Diagnosis

_PHASES = {
    Reason.TRAINING: Phase.RUNNING,
    Reason.STARTING: Phase.STARTING,
    Reason.SCALING: Phase.SCALING,
    Reason.RECOVERING: Phase.RECOVERING,
    Reason.SUSPENDING: Phase.SUSPENDED,
    Reason.SUSPENDED: Phase.SUSPENDED,
}

_PLANNED = frozenset(
    {
        RoundReason.NODES_ADDED,
        RoundReason.NODES_REMOVED,
        RoundReason.TEMPLATE_CHANGED,
        RoundReason.POD_LEAVES,
        RoundReason.NEWCOMER_LATE,
        RoundReason.NEWCOMER_LOST,
    }
)

_OBSTACLES = {
    "Unschedulable": Reason.UNSCHEDULABLE,
    "SchedulingGated": Reason.UNSCHEDULABLE,
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": Reason.IMAGE_PULL_FAILED,
}


@dataclass(frozen=True, slots=True)
class Activity:
    """Whether a round trains, and why not; `nodes` is on how many it does, `missing` why others are not there yet."""

    training: bool
    reason: Reason
    message: str
    nodes: int = 0
    missing: str = ""


def activity(job: TrainJob, status: TrainJobStatus, seats: Seats, diagnosis: Diagnosis, observed: Observed) -> Activity:
    """Return what the job is doing.

    Args:
        job: the job as it was.
        status: its status with the round decided on just now, if any.
        seats: its pods by index.
        diagnosis: what is wrong with the round that was.
        observed: what is known of the surroundings.

    """
    if job.spec.suspend:
        if observed.pods:
            return Activity(False, Reason.SUSPENDING, f"waiting for {len(observed.pods)} pods to go")
        return Activity(False, Reason.SUSPENDED, "spec.suspend is true")
    current = status.round
    begun = current is not None and bool(current.members)
    fresh = begun and current is not None and not _on_record(job, current)
    why = _obstacle(seats)
    if begun and current and (fresh or not diagnosis.broken or only_newcomers(current, diagnosis.pods)):
        doing = _training(job, current, observed, fresh=fresh)
        if doing:
            refused = observed.refusal.message if observed.refusal else ""
            return replace(doing, missing=why[1] if why else refused)
    missing = any(seat.pod is None for seat in seats.wanted)
    if observed.refusal and missing:
        return Activity(False, Reason(observed.refusal.reason), observed.refusal.message)
    if fresh or (begun and not diagnosis.broken):
        assert current is not None
        text = f"round {current.number} ({current.reason}) is forming"
        cause = f"; {describe(diagnosis.cause)}" if diagnosis.cause else ""
        return Activity(False, _forming(current.reason), text + cause)
    if diagnosis.broken or (diagnosis.cause and begun):
        text = describe(diagnosis.cause) if diagnosis.cause else "a worker failed"
        return Activity(False, Reason.RECOVERING, "; ".join(filter(None, [text, why and why[1]])))
    if why:
        return Activity(False, *why)
    if current is not None and current.reason == RoundReason.TEMPLATE_CHANGED:
        return Activity(False, Reason.SCALING, "the pods are replaced: the template changed")
    ready, wanted = len(seats.eligible), len(seats.wanted)
    running = all(seat.pod and seat.pod.phase is PodPhase.RUNNING for seat in seats.wanted)
    text = f"{ready} of {wanted} nodes are ready"
    if diagnosis.cause:
        text += f"; {describe(diagnosis.cause)}"
    return Activity(False, Reason.STARTING if running else Reason.PODS_PENDING, text)


def _on_record(job: TrainJob, current: RoundStatus) -> bool:
    before = job.status.round
    return before is not None and (before.number, before.members) == (current.number, current.members)


def _training(job: TrainJob, current: RoundStatus, observed: Observed, *, fresh: bool) -> Activity | None:
    """Return what a round does that has members and no trouble; None while none of its workers train."""
    waiting = stalled(current, observed)
    if current.previous and not waiting and _forming(current.reason) is Reason.SCALING:
        nodes = len(current.continuing) + len(current.leavers)
        text = f"{nodes} nodes train on while round {current.number} ({current.reason}) is forming"
        return Activity(True, Reason.TRAINING, text, nodes)
    if fresh or current.previous:
        return None
    if waiting:
        more = f" (and {len(waiting) - 1} more pods)" if len(waiting) > 1 else ""
        text = f"the process group of round {current.number} is broken: pod {waiting[0]}{more} waits for the next"
        return Activity(False, Reason.RECOVERING, text)
    if not _all_train(job, observed):
        return None
    nodes, size = len(current.members), current.world_size
    return Activity(True, Reason.TRAINING, f"round {current.number} trains on {nodes} nodes, world size {size}", nodes)


def _all_train(job: TrainJob, observed: Observed) -> bool:
    """Return whether every member runs the round; what is not known yet stays as it was on record."""
    current = job.status.round
    assert current is not None
    before = _condition(job.status, ConditionType.RUNNING)
    trained = before is not None and before.status == "True"
    uids = {pod.name: pod.uid for pod in observed.pods}
    for name in current.members:
        agent = observed.agents.get(uids.get(name, ""))
        if agent is None:
            if not trained:
                return False
        elif agent.round != current.number or agent.state not in (AgentState.RUNNING, AgentState.FINISHED):
            return False
    return True


def _forming(reason: str) -> Reason:
    if reason in (RoundReason.START, RoundReason.RESUMED):
        return Reason.STARTING
    if reason in _PLANNED:
        return Reason.SCALING
    return Reason.RECOVERING


def _obstacle(seats: Seats) -> tuple[Reason, str] | None:
    stuck: list[Pod] = [seat.pod for seat in seats.wanted if seat.pod and seat.pod.obstacle]
    if not stuck:
        return None
    # What a person has to mend (an image's name) is told before what the cluster may mend by itself.
    first = min(
        stuck,
        key=lambda pod: (pod.obstacle is not None and pod.obstacle.reason == "Unschedulable", pod.index),
    )
    assert first.obstacle is not None
    others = f" (and {len(stuck) - 1} more pods)" if len(stuck) > 1 else ""
    text = f"pod {first.name}: {first.obstacle.reason}: {first.obstacle.message}{others}"
    return _OBSTACLES.get(first.obstacle.reason, Reason.PODS_PENDING), text


def conditions(job: TrainJob, doing: Activity, end: End | None, now: datetime) -> tuple[Condition, ...]:
    """Return all conditions of the job; the time of transition moves only where the status does.

    Args:
        job: the job as it was.
        doing: what it is doing.
        end: its end, if it came just now.
        now: the present moment.

    """
    wanted = job.spec.wanted_nodes
    few = doing.training and doing.nodes < wanted
    few_text = f"training on {doing.nodes} of {wanted} nodes"
    suspended = doing.reason is Reason.SUSPENDED
    ended = (end.reason, end.message) if end else (Reason.NOT_FINISHED, "")
    running = doing.training and not end
    rows = [
        (
            ConditionType.SUSPENDED,
            suspended and not end,
            *((doing.reason, doing.message) if suspended else (Reason.NOT_SUSPENDED, "")),
        ),
        (ConditionType.RUNNING, running, *(ended if end else (doing.reason, doing.message))),
        (
            ConditionType.DEGRADED,
            few and not end,
            *(
                (Reason.FEWER_NODES, "; ".join(filter(None, [few_text, doing.missing])))
                if few and not end
                else (Reason.AS_WANTED, "")
            ),
        ),
        (
            ConditionType.COMPLETE,
            bool(end and end.complete),
            *(ended if end and end.complete else (Reason.NOT_FINISHED, "")),
        ),
        (
            ConditionType.FAILED,
            bool(end and not end.complete),
            *(ended if end and not end.complete else (Reason.NOT_FAILED, "")),
        ),
    ]
    return tuple(_updated(job, type_, value, reason, message, now) for type_, value, reason, message in rows)


def _updated(
    job: TrainJob, type_: ConditionType, value: bool, reason: Reason, message: str, now: datetime
) -> Condition:
    before = _condition(job.status, type_)
    status = "True" if value else "False"
    since = before.last_transition_time if before and before.status == status else now
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message[:1024],
        observed_generation=job.metadata.generation,
        last_transition_time=since,
    )


def _condition(status: TrainJobStatus, type_: ConditionType) -> Condition | None:
    return next((c for c in status.conditions if c.type is type_), None)


def running_reason(status: TrainJobStatus) -> str | None:
    """Return the reason of the Running condition on record."""
    running = _condition(status, ConditionType.RUNNING)
    return running.reason if running else None


def below_minimum_since(job: TrainJob) -> datetime | None:
    """Return since when no round has trained though the job is not suspended; None while one trains."""
    running = _condition(job.status, ConditionType.RUNNING)
    suspended = _condition(job.status, ConditionType.SUSPENDED)
    if running is None or running.status == "True" or (suspended and suspended.status == "True"):
        return None
    times = [c.last_transition_time for c in (running, suspended) if c and c.last_transition_time]
    return max(times, default=None)


def phase(doing: Activity, end: End | None) -> Phase:
    """Return the one word for people."""
    if end:
        return Phase.COMPLETE if end.complete else Phase.FAILED
    return _PHASES.get(doing.reason, Phase.PENDING)
