"""Fields that are checked and documented but change nothing yet; a job that sets one is told so by an event."""

from __future__ import annotations

from collections.abc import Callable

from elastrain.api.trainjob import TrainJobSpec
from elastrain.api.types import Gang, ScalingMode

FIELDS: tuple[tuple[str, Callable[[TrainJobSpec], bool], str], ...] = (
    ("spec.spares", lambda s: s.spares > 0, "no spare pods are kept"),
    (
        "spec.scheduling.gang",
        lambda s: s.scheduling.gang not in (Gang.AUTO, Gang.NONE),
        "pods are scheduled one by one",
    ),
    (
        "spec.scaling.mode",
        lambda s: s.scaling.mode is ScalingMode.IN_PLACE,
        "every change of size restarts the workers",
    ),
    (
        "spec.failurePolicy.hangSeconds",
        lambda s: s.failure_policy.hang_seconds != "auto",
        "workers that stand still are not detected",
    ),
    (
        "spec.failurePolicy.nodeLossSeconds",
        lambda s: s.failure_policy.node_loss_seconds != 15,
        "a lost node is noticed when its pods are deleted",
    ),
    ("spec.failurePolicy.nodeStrikes", lambda s: s.failure_policy.node_strikes != 2, "no node is avoided"),
    (
        "spec.globalBatchSize",
        lambda s: s.global_batch_size is not None,
        "it reaches the script as ELASTRAIN_GLOBAL_BATCH_SIZE and is kept only by a script that reads it",
    ),
)


def unsupported(spec: TrainJobSpec) -> tuple[str, ...]:
    """Return a sentence for each field that is set and has no effect in this release."""
    return tuple(f"{field} is set and has no effect yet: {what}" for field, is_set, what in FIELDS if is_set(spec))
