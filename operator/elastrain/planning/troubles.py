"""What has gone wrong with the members of the present round, and what that means for the job.

A round is broken as soon as one member cannot go on. Why decides who pays: infrastructure never spends the
budget of failures, the script's own failures do (`spec.failurePolicy`). When one worker fails, its peers fail
with broken connections a moment later; the cause is the first failure that is not of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from elastrain.api import FailurePolicy, LastFailure, RoundStatus, TrainJob
from elastrain.planning.in_place import FORM_LIMIT, STALL_LIMIT, departures
from elastrain.planning.observed import Agent, AgentState, Exit, Observed, Pod
from elastrain.planning.seats import Seats

GATHER = timedelta(seconds=3)
"""How long the cause is looked for while all that is known are broken connections and somebody is silent."""

FREE_EXIT_REASONS = frozenset({"StartError", "ContainerStatusUnknown", "CreateContainerError"})
"""Reasons of the kubelet for a container that ended without having run the script."""

KILLED = (137, 143)
"""Exit codes of a container that was killed from outside; a script whose worker is killed is told of by its agent."""


PEER_LOST = "PeerLost"
"""The reason of a failure that is the consequence of another member's end."""


class Cost(StrEnum):
    """Who pays for a broken round."""

    LOSS = "loss"  # the cluster took a pod away
    FREE = "free"  # a failure that does not spend the budget
    COUNTED = "counted"
    FATAL = "fatal"  # trying again cannot help


@dataclass(frozen=True, slots=True)
class Trouble:
    """One member that cannot go on."""

    pod: str
    node: str | None
    time: datetime
    reason: str
    message: str
    cost: Cost
    rank: int | None = None
    exit_code: int | None = None

    def as_failure(self, round_number: int) -> LastFailure:
        """Return it as `status.lastFailure`."""
        return LastFailure(
            time=self.time,
            round=round_number,
            pod=self.pod,
            node=self.node,
            rank=self.rank,
            reason=self.reason,
            exit_code=self.exit_code,
            message=self.message[:1024],
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with the present round, or with the pods that are to join the next one.

    `cause` is None while nothing is wrong, or while `until` has not passed and members may still tell more.
    `round` is the number that the cause is put on record with: the broken round's, or 0 for a pod that ended
    before it took part in one. `pods` are the members that cannot go on.
    """

    broken: bool = False
    cause: Trouble | None = None
    until: datetime | None = None
    round: int = 0
    pods: frozenset[str] = frozenset()


def diagnose(job: TrainJob, seats: Seats, observed: Observed, now: datetime) -> Diagnosis:
    """Return what is wrong, and its cause once that can be told.

    Args:
        job: the job, with the round in its status.
        seats: its pods by index.
        observed: its pods and agents.
        now: the present moment.

    """
    current = job.status.round
    if current is None or not current.members:
        return _newcomers(job, seats, now)
    pods = {pod.name: pod for pod in observed.pods}
    going = departures(job, seats, observed)
    idle = [n for n in current.members if n in pods and has_finished(observed, pods[n], current.number)]
    troubles: list[Trouble] = []
    looks: list[datetime] = []
    for name in current.members:
        if name in idle or name in going:
            continue
        trouble = _trouble(job, observed, name, pods.get(name), current.number, now)
        due = _abandoned_at(current, observed.agents.get(pods[name].uid)) if idle and not trouble else None
        if due and due <= now:
            text = "its process group is broken"
            trouble = Trouble(name, pods[name].node, due, PEER_LOST, text, Cost.FREE)
        elif due:
            looks.append(due)
        if trouble:
            troubles.append(trouble)
    if not troubles:
        return replace(_newcomers(job, seats, now), until=min(looks, default=None))
    silent = len(current.members) - len(troubles) - len(idle)
    first = min(t.time for t in troubles)
    names = frozenset(t.pod for t in troubles)
    if silent and all(t.reason == PEER_LOST for t in troubles) and now < first + GATHER:
        return Diagnosis(broken=True, until=first + GATHER, pods=names)
    return Diagnosis(broken=True, cause=_cause(troubles, idle), round=current.number, pods=names)


def _newcomers(job: TrainJob, seats: Seats, now: datetime) -> Diagnosis:
    """Look at pods that ended before they took part in a round.

    Pods made before the last failure share its fate and are not counted again: only a replacement that fails
    as well is a new failure.
    """
    last = job.status.last_failure
    members = job.status.round.members if job.status.round else ()
    troubles = []
    for seat in seats.wanted:
        if seat.pod or not seat.former:
            continue
        pod = seat.former[0]
        if pod.ended and not pod.deleting and pod.name not in members and (not last or pod.created > last.time):
            trouble = _ended(pod, job.spec.failure_policy, 0, now)
            if trouble and trouble.cost is not Cost.LOSS:
                troubles.append(trouble)
    return Diagnosis(cause=_cause(troubles, []) if troubles else None)


def is_recorded(job: TrainJob, diagnosis: Diagnosis) -> bool:
    """Return whether the status has the diagnosed failure already.

    Where the others train on in a new round at once, one fault that many have (a full disk) breaks several
    rounds in a moment.
    """
    last, current = job.status.last_failure, job.status.round
    if not (last and diagnosis.round and diagnosis.cause):
        return False
    same = bool(current and current.continuing) and diagnosis.cause.time <= last.time + GATHER
    return last.round == diagnosis.round or same


def has_finished(observed: Observed, pod: Pod, round_number: int) -> bool:
    """Return whether all workers of this pod ended with 0, unasked, in the round of this number."""
    if pod.exit and pod.exit.outcome == "finished" and pod.exit.round == round_number:
        return True
    agent = observed.agents.get(pod.uid)
    return agent is not None and agent.state is AgentState.FINISHED and agent.round == round_number


def _cause(troubles: list[Trouble], idle: list[str]) -> Trouble:
    by_time = sorted(troubles, key=lambda t: t.time)
    losses = [t for t in by_time if t.cost is Cost.LOSS]
    if losses:
        return losses[0]
    primary = [t for t in by_time if t.reason != PEER_LOST]
    if primary:
        # A failure of the script beats one of the infrastructure that came with it.
        return min(primary, key=lambda t: (t.cost is Cost.FREE, t.time))
    victim = by_time[0]
    if not idle:
        return victim
    return Trouble(
        pod=idle[0],
        node=None,
        time=victim.time,
        reason="EndedEarly",
        message=f"the workers of {', '.join(idle)} ended with exit code 0 while those of {victim.pod} were still "
        f"training; every rank must run the same number of steps. {victim.pod} then saw: {victim.message}",
        cost=Cost.COUNTED,
        exit_code=0,
    )


def _trouble(
    job: TrainJob, observed: Observed, name: str, pod: Pod | None, number: int, now: datetime
) -> Trouble | None:
    policy = job.spec.failure_policy
    if pod is None:
        return Trouble(name, None, now, "PodLost", f"pod {name} is gone", Cost.LOSS)
    if pod.silent:
        seconds = policy.node_loss_seconds
        text = f"pod {name} on node {pod.node} has not been heard of for {seconds} s"
        return Trouble(name, pod.node, now, "PodLost", text, Cost.LOSS)
    if pod.ended and not pod.deleting:
        return _ended(pod, policy, number, now)
    if pod.deleting:
        why = pod.disruption or "deleted"
        return Trouble(name, pod.node, now, "PodLost", f"pod {name} is being deleted ({why})", Cost.LOSS)
    agent = observed.agents.get(pod.uid)
    if agent and agent.state is AgentState.LEFT and agent.round >= number:
        return Trouble(name, pod.node, agent.since, "PodLost", f"pod {name} was told to stop", Cost.LOSS)
    if not (agent and agent.state is AgentState.FAILED and agent.round == number and agent.failure):
        return None
    failure = agent.failure
    return Trouble(
        pod=name,
        node=pod.node,
        time=failure.time,
        reason=failure.reason,
        message=failure.message,
        cost=_cost(policy, failure.reason, failure.exit_code),
        rank=failure.rank,
        exit_code=failure.exit_code,
    )


def _abandoned_at(current: RoundStatus, agent: Agent | None) -> datetime | None:
    """Return from when on a member is in trouble whose session waits for another one that has ended well."""
    if agent is None or agent.state is not AgentState.RUNNING or not agent.in_place or agent.round != current.number:
        return None
    if agent.stalled == current.number and agent.stalled_since:
        return agent.stalled_since + STALL_LIMIT
    return None if agent.formed == current.number else agent.since + FORM_LIMIT


def _ended(pod: Pod, policy: FailurePolicy, number: int, now: datetime) -> Trouble | None:
    end = pod.exit
    if end and end.outcome == "finished" and end.round == number:
        return None
    if pod.disruption:
        text = f"pod {pod.name} was ended by the cluster: {pod.disruption}"
        return Trouble(pod.name, pod.node, end.time if end else now, pod.disruption, text, Cost.LOSS)
    if end is None:
        return Trouble(pod.name, pod.node, now, "PodLost", f"pod {pod.name} ended without a word", Cost.LOSS)
    return Trouble(
        pod=pod.name,
        node=pod.node,
        time=end.time,
        reason=end.reason,
        message=end.message,
        cost=_exit_cost(policy, end),
        rank=end.rank,
        exit_code=end.exit_code,
    )


def _exit_cost(policy: FailurePolicy, end: Exit) -> Cost:
    if end.outcome in ("left", "finished"):
        return Cost.LOSS  # it was asked to stop, by a deletion that is no longer to be seen
    if end.outcome in ("retry", "nodeFault") or end.reason in FREE_EXIT_REASONS:
        return Cost.FREE
    if end.outcome is None and end.exit_code in KILLED and end.reason != "OOMKilled":
        return Cost.FREE
    return _cost(policy, end.reason, end.exit_code)


def _cost(policy: FailurePolicy, reason: str, exit_code: int | None) -> Cost:
    if reason == "InvalidArguments" or exit_code in policy.fatal_exit_codes:
        return Cost.FATAL
    if reason in (PEER_LOST, "RendezvousFailed") or exit_code in policy.free_exit_codes:
        return Cost.FREE
    return Cost.COUNTED


def retry_at(job: TrainJob) -> datetime | None:
    """Return when the next round may follow the last failure; None if there was none.

    The wait doubles with every failure up to `failurePolicy.maxBackoffSeconds`.
    """
    last = job.status.last_failure
    if last is None or last.time is None:
        return None
    policy = job.spec.failure_policy
    failures = job.status.failures.counted + job.status.failures.free
    wait = policy.backoff_seconds * 2.0 ** min(max(failures - 1, 0), 30)
    return last.time + timedelta(seconds=min(wait, policy.max_backoff_seconds))
