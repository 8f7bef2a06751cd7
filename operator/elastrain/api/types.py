"""The vocabulary of the models: base class, bounded types, enumerations and the closed list of reasons."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """The base of all models: frozen, camelCase on the wire, unknown fields ignored on reading.

    A newer API server may send fields that this release does not know; unknown fields of users are refused by
    the API server itself.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=False,
    )

    def to_json(self) -> dict[str, Any]:
        """Return it as the JSON object that the API server stores: aliases, absent values left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _parse_time(value: object) -> object:
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _format_time(value: datetime) -> str:
    utc = value.astimezone(UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S") + (f".{utc.microsecond:06d}Z" if utc.microsecond else "Z")


Time = Annotated[
    datetime,
    BeforeValidator(_parse_time),
    PlainSerializer(_format_time, return_type=str, when_used="json"),
    Field(json_schema_extra={"type": "string", "format": "date-time"}),
]
"""An instant, RFC 3339 in UTC on the wire; fractions of a second only where there are any."""

Raw = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object that is passed through as it is."""

Quantity = Annotated[
    int | Annotated[str, Field(max_length=64)], Field(json_schema_extra={"x-kubernetes-int-or-string": True})
]
"""An amount of a resource, such as 8 or "64Gi"."""

Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
"""Amounts by name of the resource."""


def whole(quantity: int | str) -> int:
    """Return how many whole pieces a quantity is; 0 where it is none that the API server takes for a count."""
    match = re.fullmatch(r"(\d+)([km]?)", str(quantity))
    if match is None:
        return 0
    number = int(match[1])
    return {"": number, "k": number * 1000, "m": number // 1000}[match[2]]


ShortString = Annotated[str, Field(max_length=253)]
MessageString = Annotated[str, Field(max_length=1024)]
Name = Annotated[str, Field(max_length=63)]


class Phase(StrEnum):
    """One word for people, derived from the conditions; programs should read those."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SCALING = "Scaling"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """What conditions speak of."""

    SUSPENDED = "Suspended"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """The closed list of reasons of conditions."""

    # Running
    PODS_PENDING = "PodsPending"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    INVALID_TEMPLATE = "InvalidTemplate"
    PODS_REFUSED = "PodsRefused"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    NAME_CONFLICT = "NameConflict"
    STARTING = "Starting"
    TRAINING = "Training"
    SCALING = "Scaling"
    RECOVERING = "Recovering"
    SUSPENDING = "Suspending"
    # Suspended
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    # Degraded
    AS_WANTED = "AsWanted"
    FEWER_NODES = "FewerNodes"
    # Complete and Failed
    FINISHED = "Finished"
    NOT_FINISHED = "NotFinished"
    NOT_FAILED = "NotFailed"
    MAX_FAILURES_EXCEEDED = "MaxFailuresExceeded"
    FATAL_EXIT_CODE = "FatalExitCode"
    INVALID_ARGUMENTS = "InvalidArguments"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    START_TIMEOUT_EXCEEDED = "StartTimeoutExceeded"


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when the job ends."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class ScalingMode(StrEnum):
    """How a round is changed."""

    AUTO = "Auto"
    IN_PLACE = "InPlace"
    RESTART = "Restart"


class Gang(StrEnum):
    """Who schedules the pods of a job together."""

    AUTO = "Auto"
    NONE = "None"
    NATIVE = "Native"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KAI = "KAI"
