"""Who trains together next: when a new round is due, and of which pods it consists.

A round is a fixed, ordered set of pods. A new one is due when there is none, when the present one is broken
(`troubles`) or when the wanted pods are others than its members. Numbers only grow; the number and the members
go into the status before anybody hears of them.

Whose workers can go on as they are (`in_place`) do so, and all others join: they start their workers anew. After
a loss those that can go on do not wait for others if they are enough; who is left over joins later.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastrain.api import RoundStatus, ScalingMode, TrainJob
from elastrain.planning.actions import Endpoint, Member, Round
from elastrain.planning.in_place import (
    FORM_LIMIT,
    STALL_LIMIT,
    all_heard,
    departures,
    forming_until,
    going,
    is_formed,
    leavers,
    member_agents,
    only_newcomers,
    round_size,
    stalled_until,
)
from elastrain.planning.observed import AgentState, Observed, Pod
from elastrain.planning.seats import Seat, Seats
from elastrain.planning.silence import lost_at
from elastrain.planning.troubles import Cost, Diagnosis, retry_at

LISTEN_AGAIN = timedelta(seconds=0.5)
"""How soon to look again for a member that has yet to be heard of."""


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
    POD_LEAVES = "PodLeaves"  # a member is being deleted, and trains until the others go on without it
    NEWCOMER_LOST = "NewcomerLost"  # a member is lost before it has come to its session
    NEWCOMER_LATE = "NewcomerLate"  # a member has not come to its session in time
    REGROUP = "Regroup"  # the process group is broken though nobody is lost


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next round, or why there is none now; `until` is when to look again."""

    round: RoundStatus | None = None
    until: datetime | None = None


def propose(job: TrainJob, seats: Seats, diagnosis: Diagnosis, observed: Observed, now: datetime) -> Proposal:
    """Return the round that should follow the present one, if one is due now.

    Args:
        job: the job with its present round.
        seats: its pods by index.
        diagnosis: what is wrong with the present round.
        observed: its pods and agents.
        now: the present moment.

    """
    current = job.status.round
    if diagnosis.broken and diagnosis.cause is None:
        return Proposal(until=diagnosis.until)
    unheard = _unheard_until(job, observed) if diagnosis.broken else None
    if unheard:
        return Proposal(until=unheard)
    if current is None or not current.members:
        return _anew(job, seats, _reason(job, diagnosis), diagnosis, now)
    view = _View(job, seats, observed, current, going(job, seats), diagnosis.pods, now)
    if diagnosis.broken:
        reason = _reason(job, diagnosis)
        if not view.going:
            return _anew(job, seats, reason, diagnosis, now)
        return _survivors(view, RoundReason.NEWCOMER_LOST if only_newcomers(current, diagnosis.pods) else reason)
    if departures(job, seats, observed):
        return _survivors(view, RoundReason.POD_LEAVES)
    stuck = _stuck(view)
    if stuck.round:
        return stuck
    planned = _planned(view)
    return planned if planned.round else Proposal(until=_earliest(stuck.until, planned.until))


def _unheard_until(job: TrainJob, observed: Observed) -> datetime | None:
    """Return until when to wait for members that may be well but have not told this operator anything yet."""
    members = job.status.round.members if job.status.round else ()
    quiet = [
        lost_at(job, pod, observed)
        for pod in observed.pods
        if pod.name in members and pod.uid not in observed.agents and not (pod.silent or pod.deleting)
    ]
    return _earliest(*quiet)


@dataclass(frozen=True, slots=True)
class _View:
    """What a decision about a round with members looks at; `going` are the seats that can keep their workers, `lost`
    the members that cannot go on.
    """

    job: TrainJob
    seats: Seats
    observed: Observed
    current: RoundStatus
    going: tuple[Seat, ...]
    lost: frozenset[str]
    now: datetime

    def round(self, chosen: tuple[Seat, ...], reason: RoundReason) -> RoundStatus:
        """Return the next round, of these seats."""
        names = frozenset(seat.pod.name for seat in chosen if seat.pod)
        leaving = leavers(self.current, names | self.lost, self.observed)
        return _round(self.job, chosen, reason, self.now, self.going, leaving)


def _anew(job: TrainJob, seats: Seats, reason: RoundReason, diagnosis: Diagnosis, now: datetime) -> Proposal:
    """Propose a round in which all members join."""
    chosen = _choose(job, seats)
    if chosen is None:
        return Proposal()
    due = _due(job, seats, chosen, diagnosis)
    return Proposal(until=due) if due and due > now else Proposal(_round(job, chosen, reason, now))


def _survivors(view: _View, reason: RoundReason) -> Proposal:
    """Propose a round of those that can go on; with others only if they are too few."""
    size = round_size(view.job, len(view.going))
    if size:
        return Proposal(view.round(view.going[:size], reason))
    others, until = _joinable(view, hurry=True)
    pool = (*view.going, *others)
    size = round_size(view.job, len(pool))
    return Proposal(view.round(pool[:size], reason)) if size else Proposal(until=until)


def _stuck(view: _View) -> Proposal:
    """Propose a round in place of one whose members do not come together."""
    job, current = view.job, view.current
    stalled = stalled_until(job, current, view.seats, view.observed)
    if stalled and stalled <= view.now and not all_heard(current, view.observed, stalled - STALL_LIMIT):
        return Proposal(until=view.now + LISTEN_AGAIN)
    if stalled and stalled <= view.now:
        return _survivors(view, RoundReason.REGROUP) if view.going else _restarted(view, RoundReason.REGROUP)
    agents = dict(member_agents(current, view.observed))
    due = forming_until(current, view.observed) if current.previous and all(agents.values()) else None
    if due is None or due > view.now:
        return Proposal(until=_earliest(stalled, due))
    late = [name for name, agent in agents.items() if name not in current.continuing and not is_formed(current, agent)]
    if late and round_size(job, len(view.going)):
        return _survivors(view, RoundReason.NEWCOMER_LATE)
    return _restarted(view, RoundReason.NEWCOMER_LATE if late else RoundReason.REGROUP)


def _restarted(view: _View, reason: RoundReason) -> Proposal:
    chosen = _choose(view.job, view.seats)
    return Proposal(_round(view.job, chosen, reason, view.now)) if chosen else Proposal()


def _planned(view: _View) -> Proposal:
    """Propose a round because the wanted pods are others than the members; in place if that is possible."""
    job, seats = view.job, view.seats
    others, backoff = _joinable(view, hurry=False)
    pool = (*view.going, *others)
    size = round_size(job, len(pool))
    chosen = (pool[:size] or None) if view.going else _choose(job, seats)
    if chosen is None:
        return Proposal(until=backoff)
    reason = _change(seats, chosen, view.current.members)
    due = _settled(job, seats, chosen, grown=True) if reason is RoundReason.NODES_ADDED else None
    due = max(filter(None, [due, forming_until(view.current, view.observed)]), default=None)
    if reason is None or (due and due > view.now):
        return Proposal(until=_earliest(due if reason else None, backoff))
    if view.going and not _has_closed_session(view):
        return Proposal(view.round(chosen, reason)) if reason is RoundReason.NODES_ADDED else _survivors(view, reason)
    if job.spec.scaling.mode is ScalingMode.IN_PLACE:
        return Proposal(until=backoff)
    return _restarted(view, reason)


def _has_closed_session(view: _View) -> bool:
    """Return whether a wanted member has workers that would have to be restarted."""
    return any(
        seat.agent is not None and seat.agent.state is AgentState.RUNNING and seat not in view.going
        for seat in view.seats.eligible
        if seat.pod and seat.pod.name in view.current.members
    )


def _joinable(view: _View, *, hurry: bool) -> tuple[tuple[Seat, ...], datetime | None]:
    """Return the seats whose pods could start workers in the next round, and when there may be more of them.

    A pod whose worker failed waits out the back-off. One that came too late to the present round waits a while,
    unless there is `hurry` because those that can go on are too few.
    """
    current, now = view.current, view.now
    seats, looks = [], []
    for seat in view.seats.eligible:
        if seat in view.going or seat.pod is None or seat.agent is None or seat.pod.name in current.leavers:
            continue
        due = None
        if seat.agent.state is AgentState.FAILED:
            due = retry_at(view.job)
        elif _came_late(current, seat) and current.start_time and not hurry:
            due = current.start_time + FORM_LIMIT
        if due and due > now:
            looks.append(due)
        else:
            seats.append(seat)
    place = {name: rank for rank, name in enumerate(current.members)}
    seats.sort(key=lambda seat: (place.get(seat.pod.name, len(place)) if seat.pod else 0, seat.index))
    return tuple(seats), min(looks, default=None)


def _came_late(current: RoundStatus, seat: Seat) -> bool:
    assert seat.pod is not None
    assert seat.agent is not None
    waits = seat.agent.state is AgentState.RUNNING and seat.pod.name not in current.members
    return waits and current.reason == RoundReason.NEWCOMER_LATE


def _earliest(*times: datetime | None) -> datetime | None:
    return min(filter(None, times), default=None)


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
    return current.model_copy(update={"members": (), "continuing": (), "leavers": (), "previous": 0, "reason": reason})


def has_outdated_members(job: TrainJob, seats: Seats) -> bool:
    """Return whether a member was made from another template than the job's present one."""
    members = job.status.round.members if job.status.round else ()
    return any(pod.name in members and seats.outdated(pod) for pod in seats.live)


def _choose(job: TrainJob, seats: Seats) -> tuple[Seat, ...] | None:
    """Return the seats of the largest round that is possible now, in rank order; None if too few."""
    members = job.status.round.members if job.status.round else ()
    leaving = job.status.round.leavers if job.status.round else ()
    place = {name: rank for rank, name in enumerate(members)}
    eligible = sorted(
        (seat for seat in seats.eligible if seat.pod and seat.pod.name not in leaving),
        key=lambda seat: (place.get(seat.pod.name, len(members)) if seat.pod else 0, seat.index),
    )
    return tuple(eligible[: round_size(job, len(eligible))]) or None


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


def _round(
    job: TrainJob,
    chosen: tuple[Seat, ...],
    reason: RoundReason,
    now: datetime,
    going: tuple[Seat, ...] = (),
    leavers: tuple[str, ...] = (),
) -> RoundStatus:
    """Return the next round, of these seats in the order of their ranks."""
    before = job.status.round
    continuing = tuple(seat.pod.name for seat in chosen if seat.pod and seat in going)
    members = tuple(seat.pod.name for seat in chosen if seat.pod)
    host = chosen[0].agent
    meeting = next((seat for seat in chosen if seat not in going), chosen[0]).agent
    assert host is not None  # an eligible seat has an agent
    assert meeting is not None
    return RoundStatus(
        number=(before.number if before else 0) + 1,
        reason=reason,
        members=members,
        continuing=continuing,
        leavers=leavers if continuing else (),
        previous=(before.previous or before.number) if before and continuing else 0,
        world_size=len(chosen) * job.spec.processes_per_node,
        start_time=now,
        rendezvous_port=meeting.ports.rendezvous,
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
        members.append(Member(name, pod.address, joining=name not in current.continuing))
    meeting = next((member.pod for member in members if member.joining), current.members[0])
    domain = f"{job.metadata.name}.{job.metadata.namespace}.svc"
    return Round(
        number=current.number,
        reason=current.reason,
        rendezvous_id=f"{job.metadata.uid}-{current.number}",
        processes_per_node=current.world_size // len(current.members),
        members=tuple(members),
        rendezvous=Endpoint(f"{meeting}.{domain}", current.rendezvous_port),
        store=Endpoint(f"{current.members[0]}.{domain}", current.store_port),
        leavers=tuple(name for name in current.leavers if name in pods and not pods[name].ended),
        previous=current.previous,
    )
