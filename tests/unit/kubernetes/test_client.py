"""Requests are sent again where that may help, and answers become typed errors."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from tests.faults import virtual_time

from elastrain.kubernetes import errors
from elastrain.kubernetes.client import PODS, TRAINJOBS, Client
from elastrain.kubernetes.transport import Request, Response


class Script:
    """A transport that answers from a list and notes when it was asked."""

    def __init__(self, *answers: Response | errors.ApiError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, Request]] = []

    async def send(self, request: Request, *, timeout: float) -> Response:
        self.asked.append((asyncio.get_running_loop().time(), request))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, errors.ApiError):
            raise answer
        return answer

    def stream(self, request: Request, *, inactivity: float) -> Any:
        raise NotImplementedError


def response(status: int, body: Any = None, **headers: str) -> Response:
    return Response(status, json.dumps(body or {}).encode(), headers)


def get(script: Script) -> Any:
    return virtual_time.run(Client(script, jitter=lambda: 0.0).get(PODS, "default", "a"))


def waits(script: Script) -> list[float]:
    times = [time for time, _ in script.asked]
    return [round(later - earlier, 3) for earlier, later in pairwise(times)]


def test_an_answer_is_returned() -> None:
    script = Script(response(200, {"kind": "Pod"}))
    assert get(script) == {"kind": "Pod"}
    assert script.asked[0][1].path == "/api/v1/namespaces/default/pods/a"


def test_waits_between_attempts_double() -> None:
    script = Script(errors.Unreachable("x"))
    with pytest.raises(errors.Unreachable):
        get(script)
    assert waits(script) == [0.1, 0.2, 0.4, 0.8]  # half of 0.2, 0.4 ..., by the jitter of 0


def test_retry_after_is_honoured_and_bounded() -> None:
    script = Script(response(429, **{"retry-after": "7"}), response(429, **{"retry-after": "9999"}), response(200))
    get(script)
    assert waits(script) == [7.0, 30.0]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_asked_again(status: int) -> None:
    script = Script(response(status), response(200, {"ok": 1}))
    assert get(script) == {"ok": 1}


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (410, "Gone", errors.Gone),
        (422, "Invalid", errors.Invalid),
    ],
)
def test_what_cannot_pass_is_raised_at_once(status: int, reason: str, kind: type[errors.ApiError]) -> None:
    script = Script(response(status, {"reason": reason, "message": "why"}))
    with pytest.raises(kind) as caught:
        get(script)
    assert (type(caught.value), caught.value.message, len(script.asked)) == (kind, "why", 1)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff"])
def test_an_answer_that_is_no_object_is_the_servers_fault(body: bytes) -> None:
    script = Script(Response(200, body, {}))
    with pytest.raises(errors.ServerError):
        get(script)
    with pytest.raises(errors.ServerError):
        get(Script(Response(502, body, {})))


def test_a_status_is_written_on_the_version_that_it_follows_from() -> None:
    script = Script(response(200))
    client = Client(script)
    patch = {"status": {"phase": "Running"}}
    virtual_time.run(client.patch(TRAINJOBS, "default", "sft", patch, subresource="status", version="41"))
    request = script.asked[0][1]
    assert request.path == "/apis/elastrain.dev/v1alpha1/namespaces/default/trainjobs/sft/status"
    assert request.content_type == "application/merge-patch+json"
    assert json.loads(request.body or b"") == {**patch, "metadata": {"resourceVersion": "41"}}


def test_a_deletion_names_the_uid() -> None:
    script = Script(response(200))
    virtual_time.run(Client(script).delete(PODS, "default", "a", uid="u1"))
    assert json.loads(script.asked[0][1].body or b"") == {
        "preconditions": {"uid": "u1"},
        "propagationPolicy": "Background",
    }
