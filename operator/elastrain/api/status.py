"""The status of a TrainJob: what the operator says of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from elastrain.api.types import (
    ConditionType,
    MessageString,
    Model,
    Name,
    Phase,
    Reason,
    ShortString,
    Time,
)


class Condition(Model):
    """One condition, as metav1.Condition."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: MessageString = ""
    observed_generation: int | None = None
    last_transition_time: Time | None = None


class NodeCounts(Model):
    """How many nodes are wanted, are ready and train."""

    wanted: int = Field(0, description="The largest valid count that is at most spec.nodes.")
    ready: int = Field(0, description="Pods whose agents could take part in a round.")
    training: int = Field(0, description="Members of the round that trains.")
    summary: str | None = Field(None, max_length=32, description="training/wanted, for the printed column.")


class RoundStatus(Model):
    """The present round; without members while the job is suspended."""

    number: int = Field(ge=0, description="Grows with every round, never falls.")
    reason: Name = Field("", description="Why this round was begun.")
    members: Annotated[tuple[Name, ...], Field(max_length=5000)] = Field(
        (), description="Pod names in the order of node ranks."
    )
    world_size: int = Field(0, description="Training processes in all members.")
    start_time: Time | None = Field(None, description="When it was published.")
    rendezvous_port: int = Field(0, ge=0, le=65535, description="Port on the first member where torchrun meets.")
    store_port: int = Field(0, ge=0, le=65535, description="Port on the first member for the process group's store.")


class NodeStrikes(Model):
    """Failures that happened on one Kubernetes node."""

    node: ShortString
    count: int = Field(ge=1)


class FailureCounts(Model):
    """How often the job failed, and who paid."""

    counted: int = Field(0, description="Failures that spent the budget failurePolicy.maxFailures.")
    free: int = Field(0, description="Failures that did not.")
    strikes: Annotated[tuple[NodeStrikes, ...], Field(max_length=5000)] = Field(
        (),
        description="Failures by Kubernetes node.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]},
    )


class LastFailure(Model):
    """The root cause of the last failure: the first rank that failed."""

    time: Time
    round: int = Field(0, description="The round that it broke; 0: the pod had not taken part in one yet.")
    pod: Name
    node: ShortString | None = None
    rank: int | None = None
    reason: Name
    exit_code: int | None = Field(None, description="Negative: the number of the signal.")
    message: MessageString = ""


class Progress(Model):
    """How far training is, by the newest report; it never falls back."""

    step: int = 0
    total_steps: int | None = None
    epoch: float | None = None
    percent: int | None = Field(None, ge=0, le=100)
    samples_per_second: float | None = None
    estimated_seconds_remaining: int | None = None
    metrics: Annotated[dict[Name, Annotated[str, Field(max_length=64)]], Field(max_length=64)] = Field(
        default_factory=dict, description="The newest metrics that the script reported."
    )
    time: Time | None = None


class CheckpointStatus(Model):
    """The newest complete checkpoint."""

    step: int
    path: Annotated[str, Field(max_length=1024)]
    time: Time | None = None


class LostSeconds(Model):
    """Seconds in which nothing was learned, by what they went to."""

    starting: float = 0.0
    scaling: float = 0.0
    recovering: float = 0.0
    redone: float = 0.0
    checkpointing: float = 0.0
    waiting: float = 0.0


class Goodput(Model):
    """Where the time since the job's creation went."""

    productive_seconds: float = 0.0
    lost_seconds: LostSeconds = Field(default_factory=LostSeconds)
    ratio: float = Field(0.0, description="Productive seconds by all seconds.")
    time: Time | None = Field(None, description="The instant up to which it is accounted.")


class TrainJobStatus(Model):
    """What the operator says of a job."""

    observed_generation: int | None = Field(None, description="The revision of the spec that this describes.")
    phase: Phase | None = Field(None, description="One word for people, derived from the conditions.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        (), json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    replicas: int | None = Field(None, description="Pods that exist and do not leave; for the scale subresource.")
    selector: ShortString | None = Field(None, description="Label selector of the job's pods, as a string.")
    nodes: NodeCounts | None = None
    round: RoundStatus | None = None
    failures: FailureCounts = Field(default_factory=FailureCounts)
    last_failure: LastFailure | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    goodput: Goodput | None = None
    start_time: Time | None = Field(None, description="When it first ran.")
    completion_time: Time | None = Field(None, description="When it ended.")
