"""The status of a TrainJob: what the operator says of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

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
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Reason
    message: MessageString = Field("", description="The same in a sentence, with pod, node, rank and exit code.")
    observed_generation: int | None = Field(None, description="The revision of the spec that it speaks of.")
    last_transition_time: Time | None = Field(None, description="When its status last changed.")


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
    continuing: Annotated[tuple[Name, ...], Field(max_length=5000)] = Field(
        (), description="Members that keep their workers; all others start them anew."
    )
    leavers: Annotated[tuple[Name, ...], Field(max_length=5000)] = Field(
        (), description="Pods that train on until this round has formed, then end."
    )
    previous: int = Field(
        0, ge=0, description="The round whose workers go on into this one until it has formed; 0: none."
    )
    world_size: int = Field(0, description="Training processes in all members.")
    start_time: Time | None = Field(None, description="When it was published.")
    rendezvous_port: int = Field(
        0, ge=0, le=65535, description="Port on the first joining member where torchrun meets."
    )
    store_port: int = Field(0, ge=0, le=65535, description="Port on the first member for the process group's store.")


class NodeStrikes(Model):
    """Failures that happened on one Kubernetes node."""

    node: ShortString = Field(description="The Kubernetes node.")
    count: int = Field(ge=1, description="Failures on it.")


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

    time: Time = Field(description="When it happened.")
    round: int = Field(0, description="The round that it broke; 0: the pod had not taken part in one yet.")
    pod: Name = Field(description="The pod whose worker failed first.")
    node: ShortString | None = Field(None, description="The Kubernetes node of that pod.")
    rank: int | None = Field(None, description="The rank that failed first.")
    reason: Name = Field(description="The kind of failure, in one word.")
    exit_code: int | None = Field(None, description="Negative: the number of the signal.")
    message: MessageString = Field("", description="The exception or the last lines, cut to 1 KiB.")


class Progress(Model):
    """How far training is, by the newest report; it never falls back."""

    step: int = Field(0, description="Optimizer steps done.")
    total_steps: int | None = Field(None, description="Optimizer steps to do in all.")
    epoch: float | None = Field(None, description="Passes over the data done.")
    percent: int | None = Field(None, ge=0, le=100, description="How much of all steps is done.")
    samples_per_second: float | None = Field(None, description="Samples learned from in a second, in all workers.")
    estimated_seconds_remaining: int | None = Field(None, description="Seconds to the end at the present speed.")
    metrics: Annotated[dict[Name, Annotated[str, Field(max_length=64)]], Field(max_length=64)] = Field(
        default_factory=dict, description="The newest metrics that the script reported."
    )
    time: Time | None = Field(None, description="When it was reported.")


class CheckpointStatus(Model):
    """The newest complete checkpoint."""

    step: int = Field(description="Optimizer steps that are in it.")
    path: Annotated[str, Field(max_length=1024)] = Field(description="Its folder, as pods see it.")
    time: Time | None = Field(None, description="When it was complete.")


class LostSeconds(Model):
    """Seconds in which nothing was learned, by what they went to."""

    starting: float = Field(0.0, description="Until the first round trained.")
    scaling: float = Field(0.0, description="Standing still for a planned change of members.")
    recovering: float = Field(0.0, description="Standing still after a failure or a loss.")
    redone: float = Field(0.0, description="Learning again what a failure had undone.")
    checkpointing: float = Field(0.0, description="Standing still for checkpoints.")
    waiting: float = Field(0.0, description="Without enough pods: queued, pending or suspended.")


class Goodput(Model):
    """Where the time since the job's creation went."""

    productive_seconds: float = Field(0.0, description="Seconds in which something was learned that lasted.")
    lost_seconds: LostSeconds = Field(default_factory=LostSeconds)
    ratio: float = Field(0.0, description="Productive seconds by all seconds.")
    time: Time | None = Field(None, description="The instant up to which it is accounted.")


_TYPES, _REASONS, _PHASES = frozenset(ConditionType), frozenset(Reason), frozenset(Phase)


def _known_conditions(value: object) -> object:
    """Leave out what a newer release wrote in words that this one does not know: a job outlives a rollback."""
    if not isinstance(value, list):
        return value
    return [
        item
        for item in value
        if not isinstance(item, dict) or (item.get("type") in _TYPES and item.get("reason") in _REASONS)
    ]


def _known_phase(value: object) -> object:
    return value if isinstance(value, str) and value in _PHASES else None


class TrainJobStatus(Model):
    """What the operator says of a job."""

    observed_generation: int | None = Field(None, description="The revision of the spec that this describes.")
    phase: Annotated[Phase | None, BeforeValidator(_known_phase)] = Field(
        None, description="One word for people, derived from the conditions."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), BeforeValidator(_known_conditions)] = Field(
        (),
        description="What is true of the job now; the part of the status that programs should read.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
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
