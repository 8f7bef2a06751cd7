"""What the planner is told of the world: frozen values, gathered by an adapter and judged by nobody else.

The Kubernetes adapter fills them from its caches and from what agents reported to the coordinator. Nothing
here is decided; decisions are in the sibling modules, what to do about them in `actions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class PodPhase(StrEnum):
    """The phase of a pod as the API server has it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class AgentState(StrEnum):
    """What an agent is doing, in its own words (docs/protocol.md)."""

    READY = "ready"  # waits for a round, has no workers
    RUNNING = "running"  # has workers in `round`
    FAILED = "failed"  # its workers of `round` ended in failure; waits for the next round
    FINISHED = "finished"  # its workers of `round` all ended with 0, unasked; waits for the word
    LEFT = "left"  # about to exit because it was told to leave


@dataclass(frozen=True, slots=True)
class Ports:
    """Free ports that an agent holds for the next round."""

    rendezvous: int
    store: int


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """How the first worker of a pod to fail ended.

    `reason` is one of docs/protocol.md: WorkerFailed, OOMKilled, PeerLost (the error is that of a broken
    connection to another member), RendezvousFailed, InvalidArguments. `exit_code` is negative for a signal.
    """

    reason: str
    message: str
    time: datetime
    rank: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """The newest report of one pod's agent; `since` is when the coordinator first saw this state."""

    pod_uid: str
    state: AgentState
    round: int  # the round that `state` speaks of; 0 before the first
    ports: Ports
    since: datetime
    failure: WorkerFailure | None = None
    in_place: bool = False  # whether its workers can go on into the next round as they are
    formed: int = 0  # the newest round that they have trained in, if so
    stalled: int = 0  # the round whose group is broken while they wait for the next; 0: none
    stalled_since: datetime | None = None  # when the coordinator first heard of that


@dataclass(frozen=True, slots=True)
class Exit:
    """How the trainer container ended.

    `outcome` and `round` come from the agent's termination message: finished, left, retry, userError,
    nodeFault, hang; None when the message is not the agent's (an image without an agent, a killed container).
    """

    exit_code: int
    reason: str  # the kubelet's: Completed, Error, OOMKilled, StartError, ContainerCannotRun ...
    message: str
    time: datetime
    outcome: str | None = None
    round: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod that exists does not run yet: the scheduler's or the kubelet's reason and text."""

    reason: str  # Unschedulable, ErrImagePull, ImagePullBackOff, InvalidImageName, CreateContainerConfigError
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the job, reduced to what decisions need."""

    name: str
    uid: str
    index: int
    attempt: int
    template_hash: str
    phase: PodPhase
    created: datetime
    deleting: bool = False
    address: str | None = None
    node: str | None = None
    obstacle: Obstacle | None = None
    exit: Exit | None = None
    # A reason of the cluster's for the end of this pod: Evicted, PreemptionByScheduler, DeletionByTaintManager,
    # NodeLost, UnexpectedAdmissionError, Preempting, Shutdown ...; None when the pod ended by itself.
    disruption: str | None = None
    ready: bool = True  # by its Ready condition, which falls when its node is not heard of by the API server
    silent: bool = False  # not heard of by the coordinator for too long; set by `silence`
    lingers: bool = False  # the trainer has ended, but another container runs on and the node's devices stay taken

    @property
    def ended(self) -> bool:
        """Whether its trainer will never run again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's answer to the latest attempt to create something for this job, if it was a refusal.

    `reason` is a Reason of the API's closed list: QuotaExceeded, InvalidTemplate, PodsRefused,
    NamespaceTerminating, NameConflict. A permanent one is not tried again before the spec changes.
    """

    reason: str
    message: str
    time: datetime
    permanent: bool
    generation: int  # metadata.generation of the job that was refused


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The newest progress that rank 0 of a round reported."""

    round: int
    time: datetime
    step: int
    total_steps: int | None = None
    epoch: float | None = None
    samples_per_second: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The newest complete checkpoint that a round published."""

    round: int
    time: datetime
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is known of one job's surroundings at one moment."""

    pods: tuple[Pod, ...] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)  # by pod uid
    heard: Mapping[str, datetime] = field(default_factory=dict)  # when an agent last asked or reported, by pod uid
    listening_since: datetime | None = None  # from when on the coordinator could hear of all agents
    service_exists: bool = False
    template_hash: str = ""  # of the job's present spec
    refusal: Refusal | None = None
    progress: ProgressReport | None = None
    checkpoint: CheckpointReport | None = None
