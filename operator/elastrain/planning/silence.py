"""Which pods have not been heard of for so long that they are taken for lost.

Silence alone does not tell who is cut off: if nobody is heard of, it may be the coordinator. So it needs a witness:
another pod of the job that is heard, or the API server, for which the pod is not ready either.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api import TrainJob
from elastrain.planning.observed import Observed, Pod, PodPhase

MISSED_POLLS = 3
"""So many polls of a member may be missed when the group is broken, before it is taken for lost."""


def poll_seconds(job: TrainJob) -> float:
    """Return after how long at most an agent is to ask again, so that its silence is noticed."""
    return min(max(job.spec.failure_policy.node_loss_seconds / 5, 1.0), 25.0)


def with_silent(job: TrainJob, observed: Observed, now: datetime) -> Observed:
    """Return what is known with the lost pods marked as silent, and without what their agents said before.

    Args:
        job: the job, with its present round.
        observed: what is known of its pods and agents.
        now: the present moment.

    """
    lost = {pod.uid for pod in observed.pods if _is_lost(job, pod, observed, now)}
    if not lost:
        return observed
    return replace(
        observed,
        pods=tuple(replace(pod, silent=True) if pod.uid in lost else pod for pod in observed.pods),
        agents={uid: agent for uid, agent in observed.agents.items() if uid not in lost},
    )


def silence_until(job: TrainJob, observed: Observed, now: datetime) -> datetime | None:
    """Return when to look again for pods that are not heard of; None if there are none to listen for."""
    dues = [lost_at(job, pod, observed) for pod in observed.pods if not pod.silent]
    return min((max(due, now + timedelta(seconds=poll_seconds(job))) for due in dues if due), default=None)


def lost_at(job: TrainJob, pod: Pod, observed: Observed) -> datetime | None:
    """Return from when on a pod is taken for lost if it is not heard of before; None if it need not be heard.

    A step is done by all members together, so that the progress of a round is a sign of life of each. When others
    have lost their connections to somebody, it is most likely the one who is not heard of.
    """
    current, since = job.status.round, observed.listening_since
    heard = observed.heard.get(pod.uid)
    member = current is not None and pod.name in (*current.members, *current.leavers)
    if since is None or pod.phase is not PodPhase.RUNNING or not (heard or member):
        return None
    last = max(heard or since, since)
    progress = observed.progress
    if current and member and progress and progress.round == current.number:
        last = max(last, progress.time)
    seconds = float(job.spec.failure_policy.node_loss_seconds)
    if current and member and any(agent.stalled == current.number for agent in observed.agents.values()):
        seconds = min(seconds, MISSED_POLLS * poll_seconds(job))
    return last + timedelta(seconds=seconds)


def _is_lost(job: TrainJob, pod: Pod, observed: Observed, now: datetime) -> bool:
    due = lost_at(job, pod, observed)
    if due is None or due > now:
        return False
    recent = now - timedelta(seconds=job.spec.failure_policy.node_loss_seconds)
    return not pod.ready or any(time > recent for uid, time in observed.heard.items() if uid != pod.uid)
