"""The TrainJob resource: its models, and nothing that talks to a cluster.

The models are the source of truth; the CRD and its reference are generated from them.
"""

from elastrain.api.status import (
    CheckpointStatus,
    Condition,
    FailureCounts,
    Goodput,
    LastFailure,
    LostSeconds,
    NodeCounts,
    NodeStrikes,
    Progress,
    RoundStatus,
    TrainJobStatus,
)
from elastrain.api.trainjob import (
    GROUP,
    KIND,
    MANAGER,
    PLURAL,
    TRAINER,
    VERSION,
    Checkpoint,
    FailurePolicy,
    ObjectMeta,
    PodTemplate,
    Scaling,
    Scheduling,
    TrainJob,
    TrainJobSpec,
)
from elastrain.api.types import CleanPodPolicy, ConditionType, Gang, Phase, Reason, ScalingMode
from elastrain.api.unsupported import unsupported

__all__ = [
    "GROUP",
    "KIND",
    "MANAGER",
    "PLURAL",
    "TRAINER",
    "VERSION",
    "Checkpoint",
    "CheckpointStatus",
    "CleanPodPolicy",
    "Condition",
    "ConditionType",
    "FailureCounts",
    "FailurePolicy",
    "Gang",
    "Goodput",
    "LastFailure",
    "LostSeconds",
    "NodeCounts",
    "NodeStrikes",
    "ObjectMeta",
    "Phase",
    "PodTemplate",
    "Progress",
    "Reason",
    "RoundStatus",
    "Scaling",
    "ScalingMode",
    "Scheduling",
    "TrainJob",
    "TrainJobSpec",
    "TrainJobStatus",
    "unsupported",
]
