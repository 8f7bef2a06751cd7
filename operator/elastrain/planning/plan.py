"""The one place where decisions are made about a job.

`plan` reads no clock and does no I/O. It is called with the newest view of the job whenever anything about it
changed or a moment it asked for has come; what it returns is complete, so a lost or repeated call does no harm.
"""

from __future__ import annotations

from datetime import datetime

from elastrain.api import NodeCounts, Reason, RoundStatus, TrainJob, TrainJobStatus, unsupported
from elastrain.planning.actions import Action, Directive, EmitEvent, EventType, Outcome, Plan
from elastrain.planning.conditions import (
    Activity,
    activity,
    below_minimum_since,
    conditions,
    phase,
    running_reason,
)
from elastrain.planning.goodput import accounted
from elastrain.planning.in_place import with_formed
from elastrain.planning.lifecycle import Account, End, account, after_end, completion, deadlines, is_finished
from elastrain.planning.membership import RoundReason, dissolved, has_outdated_members, propose, published
from elastrain.planning.observed import Observed
from elastrain.planning.progress import checkpointed, progressed
from elastrain.planning.seats import Seats, seats_of
from elastrain.planning.silence import poll_seconds, silence_until, with_silent
from elastrain.planning.staffing import Staffing, dismissal, staffing
from elastrain.planning.troubles import Diagnosis, diagnose

_UNTOLD = frozenset({Reason.PODS_PENDING, Reason.STARTING, Reason.SCALING, Reason.SUSPENDING})
"""What the job does between the transitions that people are told of."""


def plan(job: TrainJob, observed: Observed, now: datetime) -> Plan:
    """Return what should be done about a job, and its new status.

    Args:
        job: the job with the status on record.
        observed: what is known of its pods, agents and surroundings.
        now: the present moment, with a time zone.

    Returns:
        The plan. Its status equals the job's when nothing about it changed.

    """
    if job.metadata.deletion_timestamp or not job.spec.is_ours:
        return Plan(job.status)
    if is_finished(job.status):
        return after_end(job, observed, now)
    observed = with_silent(job, observed, now)
    seats = seats_of(job, observed)
    diagnosis = diagnose(job, seats, observed, now)
    books = account(job, diagnosis)
    job = _recorded(job, books)
    goodput = accounted(job.status, job.metadata.creation_timestamp or now, now)
    limits = deadlines(_with(job, goodput=goodput), below_minimum_since(job), now)
    end = completion(job, observed) or books.end or limits.end
    current, look = _round(job, seats, diagnosis, observed, end, now)
    crew = _crew(job, current, seats, observed, end, now)
    doing = activity(job, _with(job, round=current).status, seats, diagnosis, observed)
    status = _status(job, observed, seats, current, doing, end, now)
    if status != job.status or books.news:
        status = status.model_copy(update={"goodput": goodput})
    silence = None if job.spec.suspend else silence_until(job, observed, now)
    directive = Directive(
        poll_seconds=poll_seconds(job),
        round=None if end else published(job, current, observed),
        leaving={} if end else crew.leaving,
        outcome=Outcome(end.complete, end.message) if end else None,
    )
    looks = [now] if end else [at for at in (diagnosis.until, limits.until, look, crew.until, silence) if at]
    actions = (*crew.actions, *_events(job, status, books, doing, end))
    return Plan(status, actions, directive, min(looks, default=None))


def _with(job: TrainJob, **changes: object) -> TrainJob:
    return job.model_copy(update={"status": job.status.model_copy(update=changes)})


def _recorded(job: TrainJob, books: Account) -> TrainJob:
    return _with(job, failures=books.failures, last_failure=books.last_failure)


def _round(
    job: TrainJob, seats: Seats, diagnosis: Diagnosis, observed: Observed, end: End | None, now: datetime
) -> tuple[RoundStatus | None, datetime | None]:
    """Return the round after this look and when to look again for the next one."""
    current = job.status.round
    if end:
        return current, None
    if job.spec.suspend:
        return dissolved(current, RoundReason.SUSPENDED), None
    if has_outdated_members(job, seats):
        return dissolved(current, RoundReason.TEMPLATE_CHANGED), None
    proposal = propose(job, seats, diagnosis, observed, now)
    return proposal.round or with_formed(current, observed), proposal.until


def _crew(
    job: TrainJob,
    current: RoundStatus | None,
    seats: Seats,
    observed: Observed,
    end: End | None,
    now: datetime,
) -> Staffing:
    if end:
        return Staffing()
    if job.spec.suspend:
        return dismissal(observed)
    return staffing(job, current, seats, observed, now)


def _status(
    job: TrainJob,
    observed: Observed,
    seats: Seats,
    current: RoundStatus | None,
    doing: Activity,
    end: End | None,
    now: datetime,
) -> TrainJobStatus:
    members = current.members if current else ()
    training = doing.nodes if doing.training and not end else 0
    first = now if doing.training else None
    return job.status.model_copy(
        update={
            "observed_generation": job.metadata.generation,
            "phase": phase(doing, end),
            "conditions": conditions(job, doing, end, now),
            "replicas": len(seats.live),
            "selector": f"elastrain.dev/job={job.metadata.name}",
            "nodes": NodeCounts(
                wanted=len(seats.wanted),
                ready=seats.ready(members),
                training=training,
                summary=f"{training}/{len(seats.wanted)}",
            ),
            "round": current,
            "progress": progressed(job, observed, end is not None and end.complete),
            "checkpoint": checkpointed(job, observed),
            "start_time": job.status.start_time or first,
            "completion_time": now if end else None,
        }
    )


def _events(
    job: TrainJob, status: TrainJobStatus, books: Account, doing: Activity, end: End | None
) -> tuple[Action, ...]:
    """Return the events that tell each transition from the status on record to the new one, once."""
    events = []

    def tell(kind: EventType, reason: str, message: str) -> None:
        events.append(EmitEvent(kind, reason, message[:1024]))

    before = job.status
    if before.observed_generation != job.metadata.generation:
        for sentence in unsupported(job.spec):
            tell(EventType.WARNING, "FieldWithoutEffect", sentence)
    if books.news:
        tell(
            EventType.WARNING,
            str(books.news.reason),
            str(status.last_failure and status.last_failure.message),
        )
    old, new = before.round, status.round
    if new and new.members and (old is None or (old.number, old.members) != (new.number, new.members)):
        members = ", ".join(new.members[:8]) + (" ..." if len(new.members) > 8 else "")
        size = f"{len(new.members)} nodes, world size {new.world_size}"
        tell(EventType.NORMAL, "RoundPublished", f"round {new.number} ({new.reason}): {size}: {members}")
    if old and new and old.number == new.number and old.previous and not new.previous and new.members:
        tell(EventType.NORMAL, "RoundFormed", f"round {new.number} trains: all {len(new.members)} nodes have come in")
    if end:
        kind = EventType.NORMAL if end.complete else EventType.WARNING
        tell(kind, "Complete" if end.complete else "Failed", f"{end.reason}: {end.message}")
    elif running_reason(before) != doing.reason and doing.reason not in _UNTOLD and not books.news:
        calm = doing.reason in (Reason.TRAINING, Reason.SUSPENDED)
        tell(EventType.NORMAL if calm else EventType.WARNING, str(doing.reason), doing.message)
    return tuple(events)
