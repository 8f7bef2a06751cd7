"""How a job ends and what becomes of it afterwards.

Completion, the budget of failures, deadlines, clean-up of pods and the time to live. A finished job stays
finished: nothing here or elsewhere brings it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.api import (
    CleanPodPolicy,
    ConditionType,
    FailureCounts,
    LastFailure,
    Reason,
    TrainJob,
    TrainJobStatus,
)
from elastrain.planning.actions import Action, DeleteJob, DeletePod, Directive, Outcome, Plan
from elastrain.planning.goodput import active_seconds
from elastrain.planning.in_place import is_formed, member_agents
from elastrain.planning.observed import Observed, PodPhase
from elastrain.planning.troubles import Cost, Diagnosis, Trouble, has_finished, is_recorded

GRACE = timedelta(seconds=30)
"""How long the agents of an ended job may take to exit by themselves before their pods are deleted."""


@dataclass(frozen=True, slots=True)
class End:
    """Why the job is over."""

    complete: bool
    reason: Reason
    message: str


def is_finished(status: TrainJobStatus) -> bool:
    """Return whether the job has ended, for good."""
    return any(
        c.type in (ConditionType.COMPLETE, ConditionType.FAILED) and c.status == "True" for c in status.conditions
    )


def completion(job: TrainJob, observed: Observed) -> End | None:
    """Return the end of a job whose every member's workers ended with 0 in the present round.

    Newcomers who have not come in before all who trained were finished have nothing left to do.
    """
    current = job.status.round
    if current is None or not current.members:
        return None
    pods = {pod.name: pod for pod in observed.pods}
    done = {name for name in current.members if name in pods and has_finished(observed, pods[name], current.number)}
    late = {
        name
        for name, agent in member_agents(current, observed)
        if current.previous and agent and name not in current.continuing and not is_formed(current, agent)
    }
    if not done or done | late != set(current.members):
        return None
    nodes = len(done)
    return End(
        True,
        Reason.FINISHED,
        f"all workers of round {current.number} ended with exit code 0 on {nodes} nodes",
    )


@dataclass(frozen=True, slots=True)
class Account:
    """The failures on record after a diagnosis, and the end of the job if they are too many."""

    failures: FailureCounts
    last_failure: LastFailure | None
    end: End | None = None
    news: Trouble | None = None  # the failure that was put on record just now


def account(job: TrainJob, diagnosis: Diagnosis) -> Account:
    """Put a diagnosed failure on record, once, and judge it by the failure policy."""
    status, policy = job.status, job.spec.failure_policy
    cause = diagnosis.cause
    if cause is None or cause.cost is Cost.LOSS or is_recorded(job, diagnosis):
        return Account(status.failures, status.last_failure)
    counted, free = status.failures.counted, status.failures.free
    last = status.last_failure
    if policy.window_seconds and last and cause.time - last.time > timedelta(seconds=policy.window_seconds):
        counted = 0
    if cause.cost is Cost.FREE:
        free += 1
    else:
        counted += 1
    failures = status.failures.model_copy(update={"counted": counted, "free": free})
    return Account(failures, cause.as_failure(diagnosis.round), _verdict(job, cause, counted), news=cause)


def _verdict(job: TrainJob, cause: Trouble, counted: int) -> End | None:
    if cause.cost is Cost.FATAL:
        reason = Reason.INVALID_ARGUMENTS if cause.reason == "InvalidArguments" else Reason.FATAL_EXIT_CODE
        return End(False, reason, describe(cause))
    limit = job.spec.failure_policy.max_failures
    if counted <= limit:
        return None
    return End(
        False,
        Reason.MAX_FAILURES_EXCEEDED,
        f"{counted} failures, {limit} allowed; the last: {describe(cause)}",
    )


def describe(cause: Trouble) -> str:
    """Return one sentence that names pod, node, rank, exit code and the error."""
    where = f"pod {cause.pod}" + (f" on node {cause.node}" if cause.node else "")
    rank = f", rank {cause.rank}" if cause.rank is not None else ""
    code = f", exit code {cause.exit_code}" if cause.exit_code is not None else ""
    return f"{where}{rank}: {cause.reason}{code}: {cause.message}"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end that a time limit brings, or when to look again."""

    end: End | None = None
    until: datetime | None = None


def deadlines(job: TrainJob, below_minimum_since: datetime | None, now: datetime) -> Deadline:
    """Judge `activeDeadlineSeconds` and `startTimeoutSeconds`.

    Args:
        job: the job, its status accounted up to now.
        below_minimum_since: since when it has had no round that trains, though not suspended; None if it has.
        now: the present moment.

    """
    spec, looks = job.spec, []
    if spec.active_deadline_seconds and job.status.start_time and job.status.goodput and not spec.suspend:
        left = spec.active_deadline_seconds - active_seconds(job.status.goodput)
        if left <= 0:
            text = f"the job was active for spec.activeDeadlineSeconds: {spec.active_deadline_seconds}"
            return Deadline(End(False, Reason.ACTIVE_DEADLINE_EXCEEDED, text))
        looks.append(now + timedelta(seconds=left))
    if spec.start_timeout_seconds and below_minimum_since and not spec.suspend:
        due = below_minimum_since + timedelta(seconds=spec.start_timeout_seconds)
        if due <= now:
            text = (
                f"fewer than {spec.effective_min_nodes} nodes were ready for "
                f"spec.startTimeoutSeconds: {spec.start_timeout_seconds}"
            )
            return Deadline(End(False, Reason.START_TIMEOUT_EXCEEDED, text))
        looks.append(due)
    return Deadline(until=min(looks, default=None))


def after_end(job: TrainJob, observed: Observed, now: datetime) -> Plan:
    """Plan for a finished job: tell its agents, clean up by the policy, delete it when its time is over."""
    status = job.status
    complete = any(c.type is ConditionType.COMPLETE and c.status == "True" for c in status.conditions)
    message = next((c.message for c in status.conditions if c.status == "True" and c.message), "")
    directive = Directive(outcome=Outcome(complete, message))
    ended = status.completion_time or now
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is not None and now >= ended + timedelta(seconds=ttl):
        return Plan(status, (DeleteJob(),), directive)
    looks = [] if ttl is None else [ended + timedelta(seconds=ttl)]
    actions, more = _clean(job, observed, ended, now)
    return Plan(status, actions, directive, next_look=min([*looks, *more], default=None))


def _clean(
    job: TrainJob, observed: Observed, ended: datetime, now: datetime
) -> tuple[tuple[Action, ...], list[datetime]]:
    policy = job.spec.clean_pod_policy
    if policy is CleanPodPolicy.NONE:
        return (), []
    standing = [pod for pod in observed.pods if not pod.deleting]
    running = [pod for pod in standing if not pod.ended or pod.lingers]
    doomed = [] if policy is CleanPodPolicy.RUNNING else [pod for pod in standing if pod not in running]
    if now >= ended + GRACE:
        doomed += running
        running = []
    # A pod that does not run yet has no agent that could be told.
    doomed += [pod for pod in running if pod.phase is PodPhase.PENDING]
    looks = [ended + GRACE] if running else []
    return tuple(DeletePod(pod.name, pod.uid) for pod in doomed), looks
