"""Who trains together next: when a new round is due, and of which pods it consists.

A round is a fixed, ordered set of pods. A new one is due when there is none, when the present one is broken
(`troubles`) or when the wanted pods are others than its members. Numbers only grow; the number and the members
go into the status before anybody hears of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastrain.api import RoundStatus, TrainJob
from elastrain.planning.actions import Endpoint, Member, Round
from elastrain.planning.observed import Observed, Pod
from elastrain.planning.seats import Seat, Seats
from elastrain.planning.troubles import Cost, Diagnosis, retry_at


class RoundReason(StrEnum):
    """Why a round was begun (`status.round.reason`)."""

    START = "Start"
    SUSPENDED = "Suspended"  # of a round that was dissolved
    RESUMED = "Resumed"
    NODES_ADDED = "NodesAdded"
    NODES_REMOVED = "NodesRemoved"
    POD_LOST = "PodLost"
    WORKER_FAILED = "WorkerFailed"
    TEMPLATE_CHANGED = "TemplateChanged"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next round, or why there is none now; `until` is when to look again."""

    round: RoundStatus | None = None
    until: datetime | None = None


def propose(job: TrainJob, seats: Seats, diagnosis: Diagnosis, now: datetime) -> Proposal:
    """Return the round that should follow the present one, if one is due now.

    Args:
        job: the job with its present round.
        seats: its pods by index.
        diagnosis: what is wrong with the present round.
        now: the present moment.

    """
    chosen = _choose(job, seats)
    if chosen is None or (diagnosis.broken and diagnosis.cause is None):
        return Proposal(until=diagnosis.until)
    members = job.status.round.members if job.status.round else ()
    if members and not diagnosis.broken:
        reason = _change(seats, chosen, members)
        due = _settled(job, seats, chosen, grown=True) if reason is RoundReason.NODES_ADDED else None
    else:
        reason = _reason(job, diagnosis)
        due = _due(job, seats, chosen, diagnosis)
    if reason is None or (due and due > now):
        return Proposal(until=due)
    return Proposal(round=_round(job, chosen, reason, now))


def _change(seats: Seats, chosen: tuple[Seat, ...], members: tuple[str, ...]) -> RoundReason | None:
    """Return why a round that trains should be followed by another; None to let it be."""
    surplus = {seat.pod.name for seat in seats.surplus if seat.pod}
    eligible = {seat.pod.name for seat in seats.eligible if seat.pod}
    if set(members) - surplus - eligible:
        return None  # an agent has not been heard since this operator began; its workers train on
    if surplus & set(members):
        return RoundReason.NODES_REMOVED
    return RoundReason.NODES_ADDED if len(chosen) > len(members) else None


def dissolved(current: RoundStatus | None, reason: RoundReason) -> RoundStatus | None:
    """Return the round as it is on record when its members were sent away on purpose.

    The number stays, the members go: whoever comes back is not one of them.
    """
    if current is None or not current.members:
        return current
    return current.model_copy(update={"members": (), "reason": reason})


def has_outdated_members(job: TrainJob, seats: Seats) -> bool:
    """Return whether a member was made from another template than the job's present one."""
    members = job.status.round.members if job.status.round else ()
    return any(pod.name in members and seats.outdated(pod) for pod in seats.live)


def _choose(job: TrainJob, seats: Seats) -> tuple[Seat, ...] | None:
    """Return the seats of the largest round that is possible now, in rank order; None if too few."""
    members = job.status.round.members if job.status.round else ()
    place = {name: rank for rank, name in enumerate(members)}
    eligible = sorted(
        seats.eligible,
        key=lambda seat: (place.get(seat.pod.name, len(members)) if seat.pod else 0, seat.index),
    )
    size = len(eligible) - len(eligible) % job.spec.node_multiple
    if size < job.spec.effective_min_nodes:
        return None
    return tuple(eligible[:size])


def _due(job: TrainJob, seats: Seats, chosen: tuple[Seat, ...], diagnosis: Diagnosis) -> datetime | None:
    """Return the moment before which a first round, or one after a break, must not be published."""
    if diagnosis.cause and diagnosis.cause.cost is not Cost.LOSS:
        return retry_at(job)
    if diagnosis.broken:
        return None
    return _settled(job, seats, chosen, grown=False)


def _settled(job: TrainJob, seats: Seats, chosen: tuple[Seat, ...], *, grown: bool) -> datetime | None:
    """Return when the gathering of newcomers ends; None when nobody is missing."""
    if len(chosen) == len(seats.wanted):
        return None
    ready = sorted(seat.agent.since for seat in chosen if seat.agent)
    start = ready[-1] if grown else ready[job.spec.effective_min_nodes - 1]
    return start + timedelta(seconds=job.spec.scaling.settle_seconds)


def _reason(job: TrainJob, diagnosis: Diagnosis) -> RoundReason:
    cause, before = diagnosis.cause, job.status.round
    if cause and cause.cost is not Cost.LOSS:
        return RoundReason.WORKER_FAILED
    if cause:
        return RoundReason.POD_LOST
    if before is None:
        return RoundReason.START
    return RoundReason.TEMPLATE_CHANGED if before.reason == RoundReason.TEMPLATE_CHANGED else RoundReason.RESUMED


def _round(job: TrainJob, chosen: tuple[Seat, ...], reason: RoundReason, now: datetime) -> RoundStatus:
    host = chosen[0].agent
    assert host is not None  # an eligible seat has an agent
    return RoundStatus(
        number=(job.status.round.number if job.status.round else 0) + 1,
        reason=reason,
        members=tuple(seat.pod.name for seat in chosen if seat.pod),
        world_size=len(chosen) * job.spec.processes_per_node,
        start_time=now,
        rendezvous_port=host.ports.rendezvous,
        store_port=host.ports.store,
    )


def published(job: TrainJob, current: RoundStatus | None, observed: Observed) -> Round | None:
    """Return the round of the status as agents are told of it.

    It is made from the status and the pods alone, so that an operator that starts anew tells the same. None
    when there is no round, or a member's address is not known any more (its pod is gone: the round is broken).
    """
    if current is None or not current.members:
        return None
    pods: dict[str, Pod] = {pod.name: pod for pod in observed.pods}
    members = []
    for name in current.members:
        pod = pods.get(name)
        if pod is None or pod.address is None:
            return None
        members.append(Member(name, pod.address, joining=True))
    host = f"{current.members[0]}.{job.metadata.name}.{job.metadata.namespace}.svc"
    return Round(
        number=current.number,
        reason=current.reason,
        rendezvous_id=f"{job.metadata.uid}-{current.number}",
        processes_per_node=current.world_size // len(current.members),
        members=tuple(members),
        rendezvous=Endpoint(host, current.rendezvous_port),
        store=Endpoint(host, current.store_port),
    )
