"""Where the time of a job went: each second belongs to exactly one account, chosen by the phase it was spent in.

The accounts are brought up to date whenever the status is written for another reason, so that telling the time
never costs a write of its own. Their sum is the time from the job's creation to `goodput.time`.
"""

from __future__ import annotations

from datetime import datetime

from elastrain.api import Goodput, LostSeconds, Phase, TrainJobStatus

_ACCOUNTS = {
    Phase.PENDING: "starting",
    Phase.STARTING: "starting",
    Phase.SCALING: "scaling",
    Phase.RECOVERING: "recovering",
    Phase.SUSPENDED: "waiting",
}


def accounted(status: TrainJobStatus, created: datetime, now: datetime) -> Goodput:
    """Return the goodput with all time up to now booked.

    Args:
        status: the status on record; its phase is the one that the unaccounted time was spent in.
        created: when the job was created.
        now: the present moment.

    """
    before = status.goodput or Goodput(time=created)
    since = before.time or created
    elapsed = max((now - since).total_seconds(), 0.0)
    productive, lost = before.productive_seconds, before.lost_seconds
    phase = status.phase or Phase.PENDING
    if phase is Phase.RUNNING:
        productive += elapsed
    elif account := _ACCOUNTS.get(phase):
        lost = lost.model_copy(update={account: round(getattr(lost, account) + elapsed, 3)})
    total = productive + sum(lost.model_dump().values())
    return Goodput(
        productive_seconds=round(productive, 3),
        lost_seconds=lost,
        ratio=round(productive / total, 4) if total else 0.0,
        time=max(now, since),
    )


def active_seconds(goodput: Goodput) -> float:
    """Return the seconds since the job first ran, without those in which it was suspended or started."""
    lost: LostSeconds = goodput.lost_seconds
    return goodput.productive_seconds + lost.scaling + lost.recovering + lost.redone + lost.checkpointing
