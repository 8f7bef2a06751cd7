"""What the API server's refusals mean; the texts are those of Kubernetes 1.36."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.kubernetes.values import job

from elastrain.api import Reason
from elastrain.kubernetes.errors import (
    ApiError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
    error_of,
)
from elastrain.kubernetes.refusals import refusal_of

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def answer(status: int, reason: str, message: str, *causes: str) -> ApiError:
    body = {"reason": reason, "message": message, "details": {"causes": [{"reason": cause} for cause in causes]}}
    return error_of(status, body, where="POST /api/v1/namespaces/default/pods")


@pytest.mark.parametrize(
    ("error", "reason", "permanent"),
    [
        (
            answer(403, "Forbidden", 'pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1'),
            Reason.QUOTA_EXCEEDED,
            False,
        ),
        (
            answer(403, "Forbidden", 'pods "a" is forbidden: failed quota: q: must specify limits.cpu for: trainer'),
            Reason.QUOTA_EXCEEDED,
            False,
        ),
        (
            answer(403, "Forbidden", 'pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged'),
            Reason.PODS_REFUSED,
            False,
        ),
        (
            answer(403, "Forbidden", "unable to create new content", "NamespaceTerminating"),
            Reason.NAMESPACE_TERMINATING,
            False,
        ),
        (
            answer(422, "Invalid", 'Pod "a" is invalid: spec.containers[0].image: Required value'),
            Reason.INVALID_TEMPLATE,
            True,
        ),
        (
            answer(400, "BadRequest", 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal'),
            Reason.INVALID_TEMPLATE,
            True,
        ),
        (
            answer(500, "InternalError", 'failed calling webhook "x.y": connection refused'),
            Reason.PODS_REFUSED,
            False,
        ),
    ],
)
def test_refusals(error: ApiError, reason: Reason, permanent: bool) -> None:
    found = refusal_of(error, job().model, NOW)
    assert found is not None
    assert (found.reason, found.permanent, found.generation, found.time) == (reason, permanent, 3, NOW)
    assert found.message == error.message


@pytest.mark.parametrize(
    "error",
    [Unreachable("no answer"), ServerError("etcd", status=500), TooManyRequests("slow"), Conflict("x"), NotFound("x")],
)
def test_what_may_pass_is_no_refusal(error: ApiError) -> None:
    assert refusal_of(error, job().model, NOW) is None
