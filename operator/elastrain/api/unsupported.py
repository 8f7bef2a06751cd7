"""Fields that are checked and documented but change nothing yet; a job that sets one is told so by an event."""

from __future__ import annotations

from collections.abc import Callable

from elastrain.api.trainjob import FailurePolicy, TrainJobSpec
from elastrain.api.types import Gang

_POLICY = FailurePolicy()

FIELDS: tuple[tuple[str, Callable[[TrainJobSpec], bool], str], ...] = (
    ("spec.spares", lambda s: s.spares > 0, "no spare pods are kept"),
    (
        "spec.scheduling.gang",
        lambda s: s.scheduling.gang not in (Gang.AUTO, Gang.NONE),
        "pods are scheduled one by one",
    ),
    (
        "spec.failurePolicy.hangSeconds",
        lambda s: s.failure_policy.hang_seconds != _POLICY.hang_seconds,
        "workers that stand still are not detected",
    ),
    (
        "spec.failurePolicy.nodeStrikes",
        lambda s: s.failure_policy.node_strikes != _POLICY.node_strikes,
        "no node is avoided",
    ),
    (
        "spec.checkpoint.everySeconds",
        lambda s: s.checkpoint is not None and s.checkpoint.every_seconds is not None,
        "it reaches the script as ELASTRAIN_CHECKPOINT_EVERY_SECONDS and is kept only by a script that reads it",
    ),
    (
        "spec.checkpoint.everySteps",
        lambda s: s.checkpoint is not None and s.checkpoint.every_steps is not None,
        "it reaches the script as ELASTRAIN_CHECKPOINT_EVERY_STEPS and is kept only by a script that reads it",
    ),
    (
        "spec.globalBatchSize",
        lambda s: s.global_batch_size is not None,
        "it reaches the script as ELASTRAIN_GLOBAL_BATCH_SIZE and is kept only by a script that reads it",
    ),
)


def unsupported(spec: TrainJobSpec) -> tuple[str, ...]:
    """Return a sentence for each field that is set and has no effect in this release."""
    return tuple(f"{field} is set and has no effect yet: {what}" for field, is_set, what in FIELDS if is_set(spec))
