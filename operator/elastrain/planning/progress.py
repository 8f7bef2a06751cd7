"""What people are told of the progress of training: it never falls back, and what is left is estimated.

Reports come from rank 0 of a round. After a restart the steps since the last checkpoint are done again; the
highest step ever reported stays on record until it is passed.
"""

from __future__ import annotations

from elastrain.api import CheckpointStatus, Progress, TrainJob
from elastrain.planning.observed import Observed


def progressed(job: TrainJob, observed: Observed, complete: bool) -> Progress | None:
    """Return the progress with the newest report taken in.

    Args:
        job: the job with the progress on record.
        observed: holds the newest report, if there is one.
        complete: whether the job is complete; then nothing is left.

    """
    before, report = job.status.progress, observed.progress
    progress = before
    if report and (before is None or before.time is None or report.time > before.time):
        step = max(report.step, before.step if before else 0)
        progress = Progress(
            step=step,
            total_steps=report.total_steps,
            epoch=report.epoch,
            percent=_percent(step, report.total_steps, before.percent if before else None),
            samples_per_second=report.samples_per_second,
            estimated_seconds_remaining=_remaining(before, report.step, report.total_steps, report.time.timestamp()),
            metrics=dict(report.metrics),
            time=report.time,
        )
    if complete and progress:
        return progress.model_copy(update={"percent": 100, "estimated_seconds_remaining": 0})
    return progress


def _percent(step: int, total: int | None, before: int | None) -> int | None:
    if not total:
        return before
    return max(min(100 * step // total, 99), before or 0)  # 100 is for a job that is complete


def _remaining(before: Progress | None, step: int, total: int | None, time: float) -> int | None:
    """Estimate from the rate since the last report; None without two reports of a growing step."""
    if not total or before is None or before.time is None or step <= before.step:
        return before.estimated_seconds_remaining if before else None
    rate = (step - before.step) / max(time - before.time.timestamp(), 1e-3)
    return round(max(total - step, 0) / rate)


def checkpointed(job: TrainJob, observed: Observed) -> CheckpointStatus | None:
    """Return the newest complete checkpoint; a report of a round that is over is refused."""
    before, report = job.status.checkpoint, observed.checkpoint
    current = job.status.round
    oldest = (current.previous or current.number) if current else 0
    if report is None or report.round < oldest or (before and before.time and report.time <= before.time):
        return before
    return CheckpointStatus(step=report.step, path=report.path, time=report.time)
