"""What the planner may ask for: a closed union of frozen values that an adapter carries out.

All actions are idempotent by name or uid, so that a plan whose execution was cut short is simply made again.
An adapter writes the status first: a round's number and a failure's count must be on record before anything
follows from them. Then it hands the directive to the coordinator and carries the actions out, in any order: no
round waits until a thousand pods are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from elastrain.api import TrainJobStatus


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the job's headless Service."""


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod `<job>-<index>-<attempt>` from the job's present template."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete one pod, only while it still has this uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the TrainJob itself, in the background."""


class EventType(StrEnum):
    """The two types of Kubernetes events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell people of a transition, once, by an event on the TrainJob."""

    type: EventType
    reason: str
    message: str


Action = CreateService | CreatePod | DeletePod | DeleteJob | EmitEvent


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host name and a port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a round; its rank among the nodes is its place in `Round.members`."""

    pod: str
    address: str
    joining: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A round as it is published to the agents."""

    number: int
    reason: str
    rendezvous_id: str
    processes_per_node: int
    members: tuple[Member, ...]
    rendezvous: Endpoint  # of the joining members' torchrun, hosted by the first of them
    store: Endpoint  # of the round's process group, hosted by the first member
    leavers: tuple[str, ...] = ()  # pods that train on in the round before until this one is complete, then end
    previous: int = 0  # the round that trains until this one has formed; 0: none. Not told to agents


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended."""

    complete: bool
    message: str


@dataclass(frozen=True, slots=True)
class Directive:
    """What the coordinator tells the agents of one job until it is given another one.

    An agent asks with the number of the last round it heard of. It is told that the job is done if there is an
    outcome; else to leave if its pod is in `leaving`; else the round, if that is newer and has its pod as a
    member or a leaver; else it waits.
    """

    round: Round | None = None
    leaving: Mapping[str, str] = field(default_factory=dict)  # pod name -> reason
    outcome: Outcome | None = None
    poll_seconds: float = 25.0  # how long a question waits for news before it is answered with none


@dataclass(frozen=True, slots=True)
class Plan:
    """All that follows from one look at a job.

    `next_look` is when the job must be looked at again even if nothing happens; None: not needed.
    """

    status: TrainJobStatus
    actions: tuple[Action, ...] = ()
    directive: Directive = field(default_factory=Directive)
    next_look: datetime | None = None
