"""The planner: from a job and what is observed of it to what should be done, as a pure function.

`plan` is the only entrance. What goes in is in `observed`, what comes out in `actions`; an adapter (the
Kubernetes executor, the local runner) gathers the one and carries out the other.
"""

from elastrain.planning.actions import (
    Action,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    Directive,
    EmitEvent,
    Endpoint,
    EventType,
    Member,
    Outcome,
    Plan,
    Round,
)
from elastrain.planning.observed import (
    Agent,
    AgentState,
    CheckpointReport,
    Exit,
    Observed,
    Obstacle,
    Pod,
    PodPhase,
    Ports,
    ProgressReport,
    Refusal,
    WorkerFailure,
)
from elastrain.planning.plan import plan

__all__ = [
    "Action",
    "Agent",
    "AgentState",
    "CheckpointReport",
    "CreatePod",
    "CreateService",
    "DeleteJob",
    "DeletePod",
    "Directive",
    "EmitEvent",
    "Endpoint",
    "EventType",
    "Exit",
    "Member",
    "Observed",
    "Obstacle",
    "Outcome",
    "Plan",
    "Pod",
    "PodPhase",
    "Ports",
    "ProgressReport",
    "Refusal",
    "Round",
    "WorkerFailure",
    "plan",
]
