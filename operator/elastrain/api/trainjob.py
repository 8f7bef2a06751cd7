"""The TrainJob: what users write. The CRD is generated from these models (`crd`), never edited by hand."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from elastrain.api.status import TrainJobStatus
from elastrain.api.types import CleanPodPolicy, Gang, Model, ScalingMode, ShortString, Time

GROUP, VERSION, KIND, PLURAL = "elastrain.dev", "v1alpha1", "TrainJob", "trainjobs"
MANAGER = "elastrain.dev/operator"
"""The value of spec.managedBy that names this operator, as its absence does."""

TRAINER = "trainer"
"""The name of the container that trains."""

ACCELERATORS = ("/gpu", "/tpu", "/gaudi", "/neuron", "/neuroncore", "/npu", "/xpu", "/dcu")
"""Endings of resource names that count training devices."""

Count = Annotated[int, Field(ge=1, le=5000)]
Seconds = Annotated[int, Field(ge=1, le=315_360_000)]
NonNegativeSeconds = Annotated[int, Field(ge=0, le=315_360_000)]
ExitCodes = Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(max_length=64)]


class ObjectMeta(Model):
    """The part of the object's metadata that decisions need."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class EnvName(Model):
    """An environment variable, typed as far as the rules look."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    name: ShortString


class Container(Model):
    """A container, typed as far as the rules look."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    name: Annotated[str, Field(min_length=1, max_length=63)]
    image: Annotated[str, Field(max_length=1024)] | None = None
    env: Annotated[tuple[EnvName, ...], Field(max_length=512)] | None = None


class PodSpec(Model):
    """A pod's spec, typed as far as the rules look."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=32)]
    restart_policy: Annotated[str, Field(max_length=16)] | None = None


class TemplateMeta(Model):
    """Labels and annotations for the pods."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodTemplate(Model):
    """The pod template, passed through untouched but for what the operator adds."""

    metadata: TemplateMeta = Field(default_factory=TemplateMeta)
    spec: PodSpec

    @property
    def trainer(self) -> dict[str, Any]:
        """The container that trains, as JSON."""
        for container in self.spec.containers:
            if container.name == TRAINER:
                return container.to_json()
        return {}


class Checkpoint(Model):
    """Where and when checkpoints are written."""

    path: Annotated[str, Field(min_length=2, max_length=1024)] = Field(
        description="An absolute folder that the template mounts from storage shared by all pods."
    )
    every_seconds: Seconds | None = None
    every_steps: Annotated[int, Field(ge=1)] | None = None
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(2, description="How many of the newest complete ones stay.")


class Scaling(Model):
    """How a running job changes its size."""

    mode: ScalingMode = ScalingMode.AUTO
    settle_seconds: NonNegativeSeconds = Field(
        2, description="How long newcomers are gathered before one round takes them all."
    )
    leave_seconds: Seconds = Field(120, description="How long a leaving pod may take to reach a step boundary.")


class FailurePolicy(Model):
    """Which failures count, how many are allowed, and how they are waited out."""

    max_failures: Annotated[int, Field(ge=0, le=100_000)] = Field(
        3, description="Failures of the script that may happen before the job fails."
    )
    window_seconds: Seconds | None = Field(
        None, description="The count begins anew when this long has passed since the last failure."
    )
    backoff_seconds: NonNegativeSeconds = Field(1, description="Wait after the first failure; doubles with each.")
    max_backoff_seconds: NonNegativeSeconds = 300
    fatal_exit_codes: ExitCodes = Field((), description="Exit codes that fail the job at once.")
    free_exit_codes: ExitCodes = Field((), description="Exit codes that do not count.")
    node_loss_seconds: Seconds = Field(15, description="Silence after which a node is taken for lost.")
    hang_seconds: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Standstill after which workers are taken for hanging."
    )
    node_strikes: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="Failures on one Kubernetes node after which it is avoided."
    )


class Scheduling(Model):
    """Who schedules the pods together."""

    gang: Gang = Gang.AUTO


def _nested(model: type[Model]) -> Any:
    """A field whose default, in the schema too, is the model with its own defaults, so that rules find them all."""
    return Field(default_factory=model, json_schema_extra={"default": model().to_json()})


class TrainJobSpec(Model):
    """What a training job should be."""

    nodes: Count = Field(1, description="Pods wanted; may be changed at any time.")
    min_nodes: Count | None = Field(
        None, description="Fewest pods that may train; absent: as spec.nodes, and follows it."
    )
    max_nodes: Count | None = Field(None, description="Upper bound for scaling.")
    node_multiple: Count = Field(1, description="Node counts must be a multiple of this.")
    procs_per_node: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        "auto",
        description="torchrun processes in a pod; auto: the accelerators that the trainer asks for, else 1.",
    )
    template: PodTemplate = Field(description="The pods, with a container named trainer.")
    global_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Samples in one optimizer step, kept constant at every size."
    )
    checkpoint: Checkpoint | None = None
    scaling: Scaling = _nested(Scaling)
    failure_policy: FailurePolicy = _nested(FailurePolicy)
    spares: Annotated[int, Field(ge=0, le=5000)] = Field(0, description="Pods kept warm outside the round.")
    suspend: bool = Field(False, description="No pods while true.")
    active_deadline_seconds: Seconds | None = Field(
        None, description="Longest time from the first Running, not counting suspension."
    )
    start_timeout_seconds: Seconds | None = Field(
        None, description="Longest time below minNodes before the job fails, not counting suspension."
    )
    ttl_seconds_after_finished: NonNegativeSeconds | None = Field(
        None, description="Delete the job this long after its end."
    )
    clean_pod_policy: CleanPodPolicy = Field(CleanPodPolicy.RUNNING, description="Which pods go when the job ends.")
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        None, description="Another controller owns this job; immutable."
    )
    scheduling: Scheduling = _nested(Scheduling)

    @property
    def is_ours(self) -> bool:
        """Whether this operator owns the job."""
        return self.managed_by in (None, MANAGER)

    @property
    def effective_min_nodes(self) -> int:
        """Fewest pods that may train."""
        return self.min_nodes if self.min_nodes is not None else self.wanted_nodes

    @property
    def wanted_nodes(self) -> int:
        """The largest valid count of nodes that is at most spec.nodes."""
        return self.nodes - self.nodes % self.node_multiple

    @cached_property
    def processes_per_node(self) -> int:
        """Training processes in one pod."""
        if isinstance(self.procs_per_node, int):
            return self.procs_per_node
        resources = self.template.trainer.get("resources") or {}
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return sum(int(count) for name, count in asked.items() if name.endswith(ACCELERATORS)) or 1


class TrainJob(Model):
    """A training job that may change its size while it runs."""

    api_version: Literal["elastrain.dev/v1alpha1"] = "elastrain.dev/v1alpha1"
    kind: Literal["TrainJob"] = "TrainJob"
    metadata: ObjectMeta
    spec: TrainJobSpec
    status: TrainJobStatus = Field(default_factory=TrainJobStatus)
