"""What a refusal to create something means for the job: a reason of the API's closed list, or nothing; pure."""

from __future__ import annotations

from datetime import datetime

from elastrain.api import Reason, TrainJob
from elastrain.kubernetes.errors import ApiError, Forbidden, Invalid, ServerError
from elastrain.planning import Refusal


def refusal_of(error: ApiError, job: TrainJob, now: datetime) -> Refusal | None:
    """Return the refusal that an answer is; None if asking again will show whether it can be done.

    Args:
        error: the answer to a creation.
        job: the job that it was for.
        now: the present moment.

    """
    reason = _reason(error)
    if reason is None:
        return None
    return Refusal(
        reason=reason,
        message=error.message[:1024],
        time=now,
        # The same object would be refused again; everything else may change by itself.
        permanent=reason is Reason.INVALID_TEMPLATE,
        generation=job.metadata.generation,
    )


def name_conflict(kind: str, name: str, job: TrainJob, now: datetime, *, owner: str | None) -> Refusal:
    """Return the refusal of a name that an object of somebody else has.

    Args:
        kind: the kind of object, for people.
        name: its name.
        job: the job that it was for.
        now: the present moment.
        owner: who controls the object, if anybody does.

    """
    whose = f"belongs to {owner}" if owner else "is not of this job"
    return Refusal(
        reason=Reason.NAME_CONFLICT,
        message=f"{kind} {name} exists and {whose}; waiting for it to be deleted",
        time=now,
        permanent=False,
        generation=job.metadata.generation,
    )


def _reason(error: ApiError) -> Reason | None:
    match error:
        case Invalid():
            return Reason.INVALID_TEMPLATE
        case Forbidden():
            if "NamespaceTerminating" in error.causes or "is being terminated" in error.message:
                return Reason.NAMESPACE_TERMINATING
            # "exceeded quota: ..." or "failed quota: ...: must specify limits.cpu ...", of the quota plug-in
            if "quota: " in error.message:
                return Reason.QUOTA_EXCEEDED
            return Reason.PODS_REFUSED
        case ServerError() if "webhook" in error.message:
            return Reason.PODS_REFUSED
    return None
