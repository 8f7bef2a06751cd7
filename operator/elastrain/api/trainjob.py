"""The TrainJob: what users write. The CRD is generated from these models (`crd`), never edited by hand."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from elastrain.api.status import TrainJobStatus
from elastrain.api.types import CleanPodPolicy, Gang, Model, Quantities, Raw, ScalingMode, ShortString, Time, whole

GROUP, VERSION, KIND, PLURAL = "elastrain.dev", "v1alpha1", "TrainJob", "trainjobs"
MANAGER = "elastrain.dev/operator"
"""The value of spec.managedBy that names this operator, as its absence does."""

TRAINER = "trainer"
"""The name of the container that trains."""

ACCELERATORS = ("/gpu", "/tpu", "/gaudi", "/neuron", "/neuroncore", "/npu", "/xpu", "/dcu", "/mlu",
                "gpu.intel.com/i915", "gpu.intel.com/xe")  # fmt: skip
"""Endings of the names of extended resources that count training devices."""

LARGEST = 2**31 - 1
"""The largest number where nothing smaller bounds it: integers of the API fit into 32 bits."""

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


_OPEN: dict[str, JsonValue] = {"x-kubernetes-preserve-unknown-fields": True}


class EnvName(Model):
    """An environment variable, typed as far as the rules look."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_OPEN)
    name: ShortString = Field(description="Its name.")


class Resources(Model):
    """Resources of a container."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_OPEN)
    limits: Quantities | None = Field(None, description="The most it may use.")
    requests: Quantities | None = Field(None, description="What the scheduler sets aside for it.")


class Container(Model):
    """A container, typed as far as the operator looks."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_OPEN)
    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description="Its name; trainer: the one that trains."
    )
    image: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Its image.")
    env: Annotated[tuple[EnvName, ...], Field(max_length=512)] | None = Field(
        None, description="Environment variables; those of torchrun and of elastrain are refused in the trainer."
    )
    resources: Resources | None = None
    volume_mounts: Annotated[tuple[Raw, ...], Field(max_length=256)] | None = Field(
        None, description="Volumes that it sees."
    )


class PodSpec(Model):
    """A pod's spec, typed as far as the operator looks; all other fields are kept as they are."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_OPEN)
    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=32)] = Field(
        description="The containers, one of them named trainer.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    volumes: Annotated[tuple[Raw, ...], Field(max_length=256)] | None = Field(None, description="Volumes of the pod.")
    restart_policy: Annotated[str, Field(max_length=16)] | None = Field(
        None, description="Never, or left out: the operator restarts training itself."
    )


class TemplateMeta(Model):
    """Labels and annotations for the pods."""

    labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, Annotated[str, Field(max_length=262_144)]] = Field(
        default_factory=dict, description="Annotations."
    )


class PodTemplate(Model):
    """The pod template, passed through untouched but for what the operator adds."""

    metadata: TemplateMeta = Field(default_factory=TemplateMeta)
    spec: PodSpec

    @property
    def trainer(self) -> Container | None:
        """The container that trains; the API server refuses a template without one."""
        return next((container for container in self.spec.containers if container.name == TRAINER), None)


class Checkpoint(Model):
    """Where and when checkpoints are written."""

    path: Annotated[str, Field(min_length=2, max_length=1024)] = Field(
        description="An absolute folder that the template mounts from storage shared by all pods."
    )
    every_seconds: Seconds | None = Field(None, description="Seconds between two checkpoints.")
    every_steps: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Optimizer steps between two checkpoints."
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(2, description="How many of the newest complete ones stay.")


class Scaling(Model):
    """How a running job changes its size."""

    mode: ScalingMode = Field(
        ScalingMode.AUTO,
        description="InPlace: workers live through a change of size; Restart: they are started anew; "
        "Auto: in place where the script can.",
    )
    settle_seconds: NonNegativeSeconds = Field(
        2, description="How long newcomers are gathered before one round takes them all."
    )
    leave_seconds: Seconds = Field(120, description="How long a leaving pod may take to reach a step boundary.")


class FailurePolicy(Model):
    """Which failures count, how many are allowed, and how they are waited out."""

    max_failures: Annotated[int, Field(ge=0, le=100_000)] = Field(
        3, description="Failures of the script that are allowed; the next one fails the job."
    )
    window_seconds: Seconds | None = Field(
        None, description="The count begins anew when this long has passed since the last failure."
    )
    backoff_seconds: NonNegativeSeconds = Field(1, description="Wait after the first failure; doubles with each.")
    max_backoff_seconds: NonNegativeSeconds = Field(300, description="The longest wait after a failure.")
    fatal_exit_codes: ExitCodes = Field((), description="Exit codes that fail the job at once.")
    free_exit_codes: ExitCodes = Field((), description="Exit codes that do not count.")
    node_loss_seconds: Seconds = Field(15, description="Silence after which a node is taken for lost.")
    hang_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | Literal["auto"] = Field(
        "auto", description="Standstill after which workers are taken for hanging."
    )
    node_strikes: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="Failures on one Kubernetes node after which it is avoided."
    )


class Scheduling(Model):
    """Who schedules the pods together."""

    gang: Gang = Field(
        Gang.AUTO,
        description="Auto: the queue's if a Kueue queue is named by label, else scheduling.k8s.io where it is served, "
        "else none. None: pods are scheduled one by one. Native: scheduling.k8s.io. Else the scheduler of that name.",
    )


def _nested(model: type[Model]) -> Any:
    """A field whose default, in the schema too, is the model with its own defaults, so that rules find them all."""
    return Field(default_factory=model, json_schema_extra={"default": model().to_json()})


class TrainJobSpec(Model):
    """What a training job should be."""

    nodes: Count = Field(1, description="Pods wanted; may be changed at any time.")
    min_nodes: Count | None = Field(
        None, description="Fewest pods that may train; absent: spec.nodes, also when that changes."
    )
    max_nodes: Count | None = Field(None, description="Upper bound for scaling.")
    node_multiple: Count = Field(
        1, description="Node counts must be a multiple of this, as tensor or expert parallel groups need."
    )
    procs_per_node: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        "auto",
        description="torchrun processes in a pod; auto: the accelerators that the trainer asks for, else 1.",
    )
    template: PodTemplate = Field(description="The pods, with a container named trainer.")
    global_batch_size: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Samples in one optimizer step, kept constant at every size."
    )
    checkpoint: Checkpoint | None = Field(
        None, description="Where and when checkpoints are written; absent: never, and a loss of all nodes starts anew."
    )
    scaling: Scaling = _nested(Scaling)
    failure_policy: FailurePolicy = _nested(FailurePolicy)
    spares: Annotated[int, Field(ge=0, le=5000)] = Field(
        0, description="Pods kept ready outside the round, to take a lost node's place."
    )
    suspend: bool = Field(
        False, description="No pods while true; training goes on from the newest checkpoint afterwards."
    )
    active_deadline_seconds: Seconds | None = Field(
        None, description="Longest time from the first Running, not counting suspension."
    )
    start_timeout_seconds: Seconds | None = Field(
        None, description="Longest time below minNodes before the job fails, not counting suspension."
    )
    ttl_seconds_after_finished: NonNegativeSeconds | None = Field(
        None, description="Delete the job this long after its end."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        CleanPodPolicy.RUNNING, description="Which pods are deleted at the end: those still Running, All, or None."
    )
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        None, description=f"The controller that owns the job; absent or {MANAGER}: this operator. Immutable."
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
        trainer = self.template.trainer
        if trainer is None or trainer.resources is None:
            return 1
        asked = {**(trainer.resources.requests or {}), **(trainer.resources.limits or {})}
        return sum(whole(quantity) for name, quantity in asked.items() if name.endswith(ACCELERATORS)) or 1


class TrainJob(Model):
    """A training job that may change its size while it runs."""

    api_version: Literal["elastrain.dev/v1alpha1"] = "elastrain.dev/v1alpha1"
    kind: Literal["TrainJob"] = "TrainJob"
    metadata: ObjectMeta
    spec: TrainJobSpec
    status: TrainJobStatus = Field(default_factory=TrainJobStatus)
