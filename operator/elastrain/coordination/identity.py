"""Who is spoken of: a job by its key, a caller by the pod that its token is bound to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobKey:
    """The namespace and name of a TrainJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Caller:
    """The pod that a token is bound to."""

    namespace: str
    pod: str
    pod_uid: str
