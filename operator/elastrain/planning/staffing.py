"""Which pods should exist: the creations and deletions that bring the job's pods to what the spec wants.

A pod that is not heard of any more is deleted for the sake of its replacement. That takes its seat with the next
attempt and waits for nothing but the back-off of a failure, so a pod that never goes away blocks nobody. A surplus
member leaves its round before its pod is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from elastrain.api import RoundStatus, TrainJob
from elastrain.planning.actions import Action, CreatePod, CreateService, DeletePod
from elastrain.planning.in_place import FORM_LIMIT
from elastrain.planning.observed import Agent, AgentState, Observed, Pod
from elastrain.planning.seats import Seat, Seats, next_attempt
from elastrain.planning.troubles import retry_at

REFUSAL_RETRY = timedelta(seconds=10)
"""How long after a refusal by the API server (a quota, say) creation is tried again."""


@dataclass(frozen=True, slots=True)
class Staffing:
    """What to create and delete, who is told to leave, and when to look again."""

    actions: tuple[Action, ...] = ()
    leaving: dict[str, str] = field(default_factory=dict)
    until: datetime | None = None


def staffing(job: TrainJob, current: RoundStatus | None, seats: Seats, observed: Observed, now: datetime) -> Staffing:
    """Return how the pods of a job that is neither suspended nor finished should change.

    Args:
        job: the job with its failures up to date.
        current: its round after this look.
        seats: its pods by index.
        observed: what is known of its surroundings.
        now: the present moment.

    """
    creations, looks = _creations(job, seats, observed, now)
    deletions = [*_obsolete(seats)]
    leaving: dict[str, str] = {}
    parting = current.leavers if current else ()
    for seat in seats.surplus:
        if seat.pod and (current is None or seat.pod.name not in (*current.members, *parting)):
            leaving[seat.pod.name] = "the job wants fewer nodes"
            due = _leave_by(job, current, seat.agent)
            if due is None or due <= now:
                deletions.append(seat.pod)
            else:
                looks.append(due)
    for pod in observed.pods:
        if current is None or pod.name not in parting or pod.ended:
            continue
        due = _parted_by(job, current)
        if due is None or due > now:
            looks += [due] if due else []
        else:
            leaving[pod.name] = f"its workers did not leave with round {current.number} in time"
            deletions.append(pod)
    deletions += [pod for pod in observed.pods if pod.silent]
    gone = tuple(DeletePod(pod.name, pod.uid) for pod in deletions if not pod.deleting)
    return Staffing((*creations, *gone), leaving, min(looks, default=None))


def dismissal(observed: Observed) -> Staffing:
    """Return how a suspended job is emptied: all pods go, with time to reach a boundary and save."""
    standing = [pod for pod in observed.pods if not pod.deleting]
    leaving = {pod.name: "the job is suspended" for pod in observed.pods if not pod.ended}
    return Staffing(tuple(DeletePod(pod.name, pod.uid) for pod in standing), leaving)


def _creations(job: TrainJob, seats: Seats, observed: Observed, now: datetime) -> tuple[list[Action], list[datetime]]:
    refusal = observed.refusal
    if refusal:
        if refusal.permanent and refusal.generation == job.metadata.generation:
            return [], []
        if not refusal.permanent and now < refusal.time + REFUSAL_RETRY:
            return [], [refusal.time + REFUSAL_RETRY]
    actions: list[Action] = [] if observed.service_exists else [CreateService()]
    backoff, looks = retry_at(job), []
    for seat in seats.wanted:
        if seat.pod:
            continue
        if backoff and now < backoff and _ended_by_itself(seat):
            looks.append(backoff)
            continue
        actions.append(CreatePod(seat.index, next_attempt(job, seat)))
    return actions, looks


def _ended_by_itself(seat: Seat) -> bool:
    last = seat.former[0] if seat.former else None
    return last is not None and last.ended and not last.deleting and last.disruption is None


def _obsolete(seats: Seats) -> Iterator[Pod]:
    """Yield pods that nobody needs: of an older template, twins of a newer attempt, all but the last ended one."""
    for seat in seats.wanted:
        if seat.pod and seats.outdated(seat.pod):
            yield seat.pod
        ended = [pod for pod in seat.former if pod.ended]
        yield from ended[1:]
        # Its successor may wait for the very devices that it keeps.
        yield from (pod for pod in ended[:1] if seat.pod and pod.lingers)
        yield from (pod for pod in seat.former if not pod.ended)
    for seat in seats.surplus:
        yield from seat.former


def _parted_by(job: TrainJob, current: RoundStatus) -> datetime | None:
    """Return until when leavers may train on, and then end by themselves, before they are told to stop."""
    if current.start_time is None:
        return None
    leave = timedelta(seconds=job.spec.scaling.leave_seconds)
    awaited = current.previous and set(current.members) - set(current.continuing)
    return current.start_time + (max(leave, FORM_LIMIT) if awaited else leave)


def _leave_by(job: TrainJob, current: RoundStatus | None, agent: Agent | None) -> datetime | None:
    """Return until when a surplus pod may take to leave by itself; None: it has nothing to finish."""
    if current is None or current.start_time is None or agent is None or agent.state is not AgentState.RUNNING:
        return None
    return current.start_time + timedelta(seconds=job.spec.scaling.leave_seconds)
