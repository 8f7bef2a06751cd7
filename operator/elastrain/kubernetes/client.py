"""The verbs of the Kubernetes API as plain JSON, with retries and typed errors.

Typed clients validate a pod into models on the way out and in, at fifteen times the cost; the few fields that
this operator writes are made by `manifests` and proved against a real API server instead.

Every request may be sent again safely: objects are created by name, status is written on a stated version,
deletions state a uid. So a request whose answer was lost ends in AlreadyExists, Conflict or NotFound, which
callers have to understand anyway.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from elastrain.kubernetes.errors import ApiError, ServerError, Transient, error_of
from elastrain.kubernetes.transport import Request, Transport

Json = dict[str, Any]

MANAGER = "elastrain"
"""The name under which this operator's writes are recorded in managedFields."""

SECONDS = 30.0
PAGE = 500
WATCH_SECONDS = 300
INACTIVITY_SECONDS = 70.0
"""Bookmarks come at least once a minute, so a stream that is silent for longer is a lost one."""

ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
LONGEST_RETRY_AFTER = 30.0


class Resource(NamedTuple):
    """Where a kind of objects is found: `prefix` as in /api/v1, `plural` as in pods."""

    prefix: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, or of a collection if no name is given."""
        parts = [self.prefix, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


PODS = Resource("/api/v1", "pods")
SERVICES = Resource("/api/v1", "services")
EVENTS = Resource("/api/v1", "events")
NAMESPACES = Resource("/api/v1", "namespaces")
TRAINJOBS = Resource("/apis/elastrain.dev/v1alpha1", "trainjobs")
NETWORK_POLICIES = Resource("/apis/networking.k8s.io/v1", "networkpolicies")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("/apis/authentication.k8s.io/v1", "tokenreviews")
CRDS = Resource("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions")


class WatchEvent(NamedTuple):
    """ADDED, MODIFIED, DELETED or BOOKMARK, with the object."""

    type: str
    object: Json


class Page(NamedTuple):
    """One page of a list, and the revision that the whole list is of."""

    items: list[Json]
    version: str


class Client:
    """Talks to one API server.

    All methods raise `ApiError`: of its subclasses, `Transient` only after having asked `attempts` times.
    """

    def __init__(self, transport: Transport, *, jitter: Callable[[], float] = random.random) -> None:
        """Use a transport.

        Args:
            transport: carries the requests.
            jitter: returns numbers in [0, 1) that spread the waits between attempts.

        """
        self._transport = transport
        self._jitter = jitter

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Return an object."""
        return await self.request("GET", resource.path(namespace, name))

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        """Create an object by its name and return it as stored."""
        return await self.request("POST", resource.path(namespace), body=body, query={"fieldManager": MANAGER})

    async def replace(self, resource: Resource, body: Json) -> Json:
        """Replace an object, of the version that `body` has, and return it as stored."""
        at = resource.path(body["metadata"].get("namespace"), body["metadata"]["name"])
        return await self.request("PUT", at, body=body, query={"fieldManager": MANAGER})

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Json,
        *,
        subresource: str | None = None,
        version: str | None = None,
    ) -> Json:
        """Apply a JSON merge patch and return the object as stored.

        Args:
            resource: the kind of object.
            namespace: where it is.
            name: which it is.
            patch: the patch (RFC 7386).
            subresource: such as status.
            version: the resourceVersion that the object must still have; else `Conflict`.

        """
        if version is not None:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=patch,
            query={"fieldManager": MANAGER},
            content_type="application/merge-patch+json",
        )

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str) -> Json:
        """Delete an object in the background, only while it has this uid; else `Conflict`."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        return await self.request("DELETE", resource.path(namespace, name), body=options)

    async def list(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Page]:
        """Yield a consistent list page by page; `Gone` if it took so long that its revision is no longer kept."""
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        version = ""
        while True:
            found = await self.request("GET", resource.path(namespace), query=query)
            metadata = found["metadata"]
            version = version or metadata["resourceVersion"]
            yield Page(found.get("items") or [], version)
            if not metadata.get("continue"):
                return
            query = {**query, "continue": metadata["continue"]}

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        selector: str = "",
        version: str,
        seconds: int = WATCH_SECONDS,
        inactivity: float = INACTIVITY_SECONDS,
    ) -> AsyncIterator[WatchEvent]:
        """Yield what happens after a revision, until the server ends the stream; never asked again here.

        Args:
            resource: the kind of objects.
            namespace: where they are; None: everywhere.
            selector: of labels.
            version: the revision after which to begin.
            seconds: how long the server keeps the stream open.
            inactivity: seconds without a byte after which the stream is given up as `Unreachable`.

        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            **({"labelSelector": selector} if selector else {}),
        }
        request = Request("GET", resource.path(namespace), query)
        async with self._transport.stream(request, inactivity=inactivity) as stream:
            if stream.status != 200:
                raise _error(request, stream.status, b"".join([line async for line in stream.lines]), stream.headers)
            async for line in stream.lines:
                if not line.strip():
                    continue
                event = _decoded(request, line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise error_of(int(status.get("code") or 500), status, where=f"watch {request.path}")
                yield WatchEvent(event["type"], event["object"])

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: float = SECONDS,
        attempts: int = ATTEMPTS,
    ) -> Json:
        """Send a request, again if that may help, and return the answer's object.

        Args:
            method: the HTTP method.
            path: without the query.
            query: of the URL.
            body: sent as JSON.
            content_type: of the body.
            timeout: seconds for each attempt.
            attempts: how often to ask at the most.

        """
        encoded = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        request = Request(method, path, query or {}, encoded, content_type)
        for attempt in range(1, attempts + 1):
            try:
                return await self._once(request, timeout)
            except Transient as error:
                if attempt == attempts:
                    raise
                await asyncio.sleep(self._wait(attempt, error.retry_after))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, request: Request, timeout: float) -> Json:
        answer = await self._transport.send(request, timeout=timeout)
        if answer.status >= 300:
            raise _error(request, answer.status, answer.body, answer.headers)
        return _decoded(request, answer.body)

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        if retry_after is not None:
            return min(retry_after, LONGEST_RETRY_AFTER) * (1 + self._jitter() / 4)
        return float(min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * (0.5 + self._jitter() / 2))


def _decoded(request: Request, text: bytes) -> Json:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ServerError(f"{request.method} {request.path}: the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ServerError(f"{request.method} {request.path}: the answer is not a JSON object")
    return found


def _error(request: Request, status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    where = f"{request.method} {request.path}"
    try:
        found = json.loads(body)
    except ValueError:
        found = {}
    after = headers.get("retry-after", "")
    return error_of(
        status,
        found if isinstance(found, dict) else {},
        where=where,
        retry_after=float(after) if after.isascii() and after.isdigit() else None,
    )
