"""The coordinator: the HTTP service by which agents learn of rounds and report (docs/protocol.md).

It knows no Kubernetes: who a token belongs to, which job a pod is of, and who is to look at a job again are
functions that its composer gives it. It decides nothing: what agents are told is the planner's `Directive`,
what they report is kept for the planner to observe. It keeps nothing that cannot be rebuilt.
"""

from elastrain.coordination.answers import Answer, Leave, answer
from elastrain.coordination.authentication import Authenticate, ReviewUnavailable
from elastrain.coordination.coordinator import Coordinator
from elastrain.coordination.identity import Caller, JobKey
from elastrain.coordination.server import serve
from elastrain.coordination.tls import server_context

__all__ = [
    "Answer",
    "Authenticate",
    "Caller",
    "Coordinator",
    "JobKey",
    "Leave",
    "ReviewUnavailable",
    "answer",
    "serve",
    "server_context",
]
