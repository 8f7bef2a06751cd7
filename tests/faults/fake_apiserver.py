"""A fake API server in memory: real revisions, selectors, paging and watches, and faults on demand.

Not a mock of our client: it knows nothing of what is asked next. It keeps to what the API promises (revisions
that order all writes, 409 on stale versions, 410 after compaction, watches that resume from a revision) and,
where it was told to, breaks what the API does not promise (answers, connections, time). `transport` puts it
under a client without sockets; `fake_http` serves it to kopf.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, TypeVar

from elastrain.kubernetes.errors import Unreachable
from elastrain.kubernetes.transport import Request, Response, Stream

Json = dict[str, Any]
T = TypeVar("T")
Admit = Callable[[str, str, Json], tuple[int, Json] | None]


class When(Enum):
    """Whether a request with a fault is carried out all the same."""

    UNDONE = auto()
    DONE = auto()


@dataclass(frozen=True)
class Lost:
    """The connection breaks."""

    when: When = When.UNDONE


@dataclass(frozen=True)
class Silent:
    """No answer comes until the client's patience ends."""

    when: When = When.UNDONE


@dataclass(frozen=True)
class Answers:
    """The server answers with an error."""

    status: int
    retry_after: int | None = None
    when: When = When.UNDONE


Fault = Lost | Silent | Answers
Faults = Callable[[Request], Fault | None]


@dataclass(frozen=True)
class Change:
    """One write in the history of a kind of objects."""

    revision: int
    before: Json | None
    after: Json | None


class Break(Enum):
    """What happens to the streams that are open."""

    CUT = auto()  # the connection breaks
    END = auto()  # the server ends it in good order
    STALL = auto()  # nothing comes any more
    ERROR = auto()  # an ERROR event, of status 500
    EXPIRE = auto()  # an ERROR event, of status 410


def status(code: int, reason: str, message: str, *, causes: tuple[str, ...] = ()) -> Json:
    """Return a metav1.Status."""
    found: Json = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    if causes:
        found["details"] = {"causes": [{"reason": cause} for cause in causes]}
    return found


@dataclass(eq=False)
class _Open:
    """A watch that is open."""

    broken: Break | None = None
    bookmarks: int = 0


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, body: Json) -> None:
        super().__init__(body["message"])
        self.body = body


@dataclass
class FakeApiServer:
    """The server; every kind of objects is served, under its path."""

    faults: Faults = lambda _request: None
    admit: Admit = lambda _method, _plural, _obj: None
    page: int = 500
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    revision: int = 100
    compacted: int = 0
    requests: list[Request] = field(default_factory=list)
    tokens: dict[str, Json] = field(default_factory=dict)
    terminating: set[str] = field(default_factory=set)
    _kinds: dict[tuple[str, str], dict[tuple[str, str], Json]] = field(default_factory=dict)
    _history: dict[tuple[str, str], list[Change]] = field(default_factory=dict)
    _open: set[_Open] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # What tests see and do beside the API

    def objects(self, plural: str) -> list[Json]:
        """Return all objects of a kind."""
        return [obj for (_, name), found in self._kinds.items() if name == plural for obj in found.values()]

    def get(self, plural: str, namespace: str, name: str) -> Json:
        """Return one object."""
        return next(
            obj
            for obj in self.objects(plural)
            if (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) == (namespace, name)
        )

    def history(self, plural: str) -> list[Change]:
        """Return all writes to a kind of objects since the last compaction."""
        return [change for kind, changes in self._history.items() if kind[1] == plural for change in changes]

    def writes(self, method: str = "", plural: str = "") -> list[Request]:
        """Return the requests that write, of a method and kind."""
        return [
            r
            for r in self.requests
            if r.method != "GET" and r.method.startswith(method) and (not plural or f"/{plural}" in r.path)
        ]

    def put(self, path: str, obj: Json) -> Json:
        """Create or replace an object behind the API's back, as another client does."""
        kind, namespace, _, _ = _parse(path)
        name = obj["metadata"]["name"]
        old = self._kinds.get(kind, {}).get((namespace, name))
        if old is None:
            return self._create(kind, namespace, obj)
        return self._write(kind, old, {**copy.deepcopy(obj), "metadata": {**old["metadata"], **obj["metadata"]}})

    def set_status(self, plural: str, namespace: str, name: str, value: Json) -> None:
        """Write a status, as a kubelet does."""
        kind, obj = self._find(plural, namespace, name)
        self._write(kind, obj, {**copy.deepcopy(obj), "status": value})

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Remove an object at once, as a kubelet does when a pod has ended."""
        kind, obj = self._find(plural, namespace, name)
        self._record(kind, obj, None)

    def finish_deletions(self) -> None:
        """Remove all objects that are being deleted, as kubelets do in time."""
        for (_, plural), found in list(self._kinds.items()):
            for obj in list(found.values()):
                if obj["metadata"].get("deletionTimestamp"):
                    self.remove(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def collect_garbage(self) -> None:
        """Delete objects whose owner does not exist, as the garbage collector does."""
        uids = {obj["metadata"]["uid"] for found in self._kinds.values() for obj in found.values()}
        for (_, plural), found in list(self._kinds.items()):
            for obj in list(found.values()):
                owners = obj["metadata"].get("ownerReferences") or ()
                if owners and all(owner["uid"] not in uids for owner in owners):
                    self.remove(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def compact(self) -> None:
        """Forget the history: a watch from any earlier revision gets 410."""
        self.compacted = self.revision
        self._history.clear()

    def break_streams(self, how: Break) -> None:
        """Do something to all streams that are open."""
        for stream in self._open:
            stream.broken = how
        self._tell()

    def bookmark(self) -> None:
        """Send a bookmark on all streams, as the API server does every minute."""
        for stream in self._open:
            stream.bookmarks += 1
        self._tell()

    async def until(self, what: Callable[[], T], seconds: float = 20.0) -> T:
        """Wait until something is true of the server, and return it."""
        async with asyncio.timeout(seconds):
            while not (found := what()):
                await self._news.wait()
            return found

    @property
    def streams(self) -> int:
        """How many watches are open and not broken."""
        return sum(stream.broken is None for stream in self._open)

    # The API

    def handle(self, request: Request) -> tuple[int, Json]:
        """Carry out a request that is no watch."""
        try:
            return self._handle(request)
        except Refused as refused:
            return refused.body["code"], refused.body

    async def watch(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the lines of a watch; raises Unreachable where the connection breaks."""
        kind, namespace, _, _ = _parse(request.path)
        selector = request.query.get("labelSelector", "")
        seen = int(request.query.get("resourceVersion") or self.revision)
        ends = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds") or 300)
        mine, bookmarks = _Open(), 0
        self._open.add(mine)
        try:
            while True:
                match mine.broken:
                    case Break.CUT:
                        raise Unreachable("the connection was cut")
                    case Break.END:
                        return
                    case Break.STALL:
                        await asyncio.Event().wait()
                    case Break.ERROR:
                        yield _line("ERROR", status(500, "InternalError", "etcdserver: leader changed"))
                        return
                    case Break.EXPIRE:
                        yield _line("ERROR", status(410, "Expired", "too old resource version"))
                        return
                if seen < self.compacted:
                    yield _line("ERROR", status(410, "Expired", f"too old resource version: {seen}"))
                    return
                for change in [c for c in self._history.get(kind, ()) if c.revision > seen]:
                    seen = change.revision
                    event = _event(change, namespace, selector)
                    if event:
                        yield event
                if bookmarks < mine.bookmarks:
                    bookmarks = mine.bookmarks
                    seen = max(seen, self.revision)
                    yield _line("BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})
                    continue
                left = ends - asyncio.get_running_loop().time()
                if left <= 0:
                    return
                try:
                    async with asyncio.timeout(left):
                        await self._news.wait()
                except TimeoutError:
                    return
        finally:
            self._open.discard(mine)

    def _handle(self, request: Request) -> tuple[int, Json]:
        kind, namespace, name, subresource = _parse(request.path)
        body: Json = json.loads(request.body) if request.body else {}
        if kind[1] == "tokenreviews":
            found = self.tokens.get(body["spec"]["token"], {"authenticated": False})
            return 201, {**body, "status": found}
        if request.method == "GET":
            return (
                (200, self._list(kind, namespace, request.query))
                if name is None
                else (
                    200,
                    copy.deepcopy(self._stored(kind, namespace, name)),
                )
            )
        if request.method == "POST":
            self._admit("POST", kind, body)
            return 201, self._create(kind, namespace, body)
        assert name is not None
        old = self._stored(kind, namespace, name)
        if request.method == "DELETE":
            return 200, self._delete(kind, old, body)
        new = merged(old, body) if request.method == "PATCH" else copy.deepcopy(body)
        return 200, self._update(kind, old, new, subresource)

    def _admit(self, method: str, kind: tuple[str, str], body: Json) -> None:
        refusal = self.admit(method, kind[1], body)
        if refusal:
            raise Refused({"code": refusal[0], **refusal[1]})

    def _stored(self, kind: tuple[str, str], namespace: str, name: str) -> Json:
        try:
            return self._kinds[kind][namespace, name]
        except KeyError:
            raise Refused(status(404, "NotFound", f'{kind[1]} "{name}" not found')) from None

    def _find(self, plural: str, namespace: str, name: str) -> tuple[tuple[str, str], Json]:
        for kind, found in self._kinds.items():
            if kind[1] == plural and (namespace, name) in found:
                return kind, found[namespace, name]
        raise KeyError(f"{plural} {namespace}/{name}")

    def _list(self, kind: tuple[str, str], namespace: str, query: Mapping[str, str]) -> Json:
        begin, revision = 0, self.revision
        if "continue" in query:
            begin, revision = json.loads(query["continue"])
            if revision < self.compacted:
                raise Refused(status(410, "Expired", "the continue token is too old"))
        objects = [obj for obj in self._at(kind, revision) if _matches(obj, namespace, query.get("labelSelector", ""))]
        size = min(int(query.get("limit") or self.page), self.page)
        end = begin + size
        metadata: Json = {"resourceVersion": str(revision)}
        if end < len(objects):
            metadata["continue"] = json.dumps([end, revision])
        return {"kind": "List", "metadata": metadata, "items": copy.deepcopy(objects[begin:end])}

    def _at(self, kind: tuple[str, str], revision: int) -> list[Json]:
        """Return all objects as they were at a revision."""
        found = {obj["metadata"]["uid"]: obj for obj in self._kinds.get(kind, {}).values()}
        for change in reversed(self._history.get(kind, ())):
            if change.revision <= revision:
                break
            if change.after is not None:
                found.pop(change.after["metadata"]["uid"], None)
            if change.before is not None:
                found[change.before["metadata"]["uid"]] = change.before
        return sorted(found.values(), key=lambda obj: (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))

    def _create(self, kind: tuple[str, str], namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if namespace in self.terminating:
            what = f"unable to create new content in namespace {namespace} because it is being terminated"
            text = f'{kind[1]} "{name}" is forbidden: {what}'
            raise Refused(status(403, "Forbidden", text, causes=("NamespaceTerminating",)))
        if (namespace, name) in self._kinds.get(kind, {}):
            raise Refused(status(409, "AlreadyExists", f'{kind[1]} "{name}" already exists'))
        obj = copy.deepcopy(body)
        obj["metadata"] = {
            **obj["metadata"],
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": self.clock().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if namespace:
            obj["metadata"]["namespace"] = namespace
        return self._record(kind, None, obj)

    def _update(self, kind: tuple[str, str], old: Json, new: Json, subresource: str | None) -> Json:
        wanted = new["metadata"].get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            raise Refused(status(409, "Conflict", "the object has been modified; apply your changes to the latest"))
        if subresource == "status":
            new = {**copy.deepcopy(old), "status": new.get("status")}
        elif kind[1] == "trainjobs":
            new = {**new, **({"status": old["status"]} if "status" in old else {})}
        self._admit("PUT", kind, new)
        return self._write(kind, old, new)

    def _write(self, kind: tuple[str, str], old: Json, new: Json) -> Json:
        new["metadata"] = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
        if new == old:
            return copy.deepcopy(old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self._record(kind, old, new)

    def _delete(self, kind: tuple[str, str], old: Json, options: Json) -> Json:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != old["metadata"]["uid"]:
            raise Refused(status(409, "Conflict", "the UID in the precondition does not match"))
        graceful = kind[1] == "pods" and (old.get("spec") or {}).get("nodeName")
        if not graceful:
            self._record(kind, old, None)
            return copy.deepcopy(old)
        if old["metadata"].get("deletionTimestamp"):
            return copy.deepcopy(old)
        new = copy.deepcopy(old)
        new["metadata"]["deletionTimestamp"] = self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._write(kind, old, new)

    def _record(self, kind: tuple[str, str], before: Json | None, after: Json | None) -> Json:
        self.revision += 1
        known = after if after is not None else before
        assert known is not None
        at = (known["metadata"].get("namespace", ""), known["metadata"]["name"])
        if after is None:
            del self._kinds[kind][at]
        else:
            after["metadata"] = {**after["metadata"], "resourceVersion": str(self.revision)}
            self._kinds.setdefault(kind, {})[at] = after
        self._history.setdefault(kind, []).append(Change(self.revision, before, after))
        self._tell()
        return copy.deepcopy(known)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Under a client

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Carry out a request, with the fault that is due."""
        self.requests.append(request)
        fault = self.faults(request)
        await asyncio.sleep(0)
        if fault is None:
            return _response(*self.handle(request))
        if fault.when is When.DONE:
            self.handle(request)
        match fault:
            case Lost():
                raise Unreachable(f"{request.method} {request.path}: the connection was lost")
            case Silent():
                await asyncio.sleep(timeout)
                raise Unreachable(f"{request.method} {request.path}: no answer within {timeout:g} s")
            case Answers(code, after):
                reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(code, "InternalError")
                headers = {} if after is None else {"retry-after": str(after)}
                return _response(code, status(code, reason, f"a fault: {code}"), headers)

    @asynccontextmanager
    async def stream(self, request: Request, *, inactivity: float) -> AsyncIterator[Stream]:
        """Open a watch, with the fault that is due."""
        self.requests.append(request)
        fault = self.faults(request)
        await asyncio.sleep(0)
        match fault:
            case Lost():
                raise Unreachable("the connection was lost")
            case Silent():
                await asyncio.sleep(inactivity)
                raise Unreachable("no answer")
            case Answers(code, _):

                async def error() -> AsyncIterator[bytes]:
                    yield json.dumps(status(code, "Expired" if code == 410 else "InternalError", "a fault")).encode()

                yield Stream(code, error())
                return
        lines = self.watch(request)
        try:
            yield Stream(200, _impatient(lines, inactivity))
        finally:
            await lines.aclose()  # type: ignore[attr-defined]


async def _impatient(lines: AsyncIterator[bytes], inactivity: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(inactivity):
                line = await anext(lines)
        except TimeoutError:
            raise Unreachable(f"nothing came for {inactivity:g} s") from None
        except StopAsyncIteration:
            return
        yield line


def merged(old: Any, patch: Any) -> Any:
    """Return the result of a JSON merge patch, written after the pseudo-code of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _parse(path: str) -> tuple[tuple[str, str], str, str | None, str | None]:
    """Return kind, namespace, name and subresource of a path."""
    parts = path.strip("/").split("/")
    cut = 2 if parts[0] == "api" else 3
    prefix, rest = "/".join(parts[:cut]), parts[cut:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, *more = rest
    return (prefix, plural), namespace, more[0] if more else None, more[1] if len(more) > 1 else None


def _matches(obj: Json, namespace: str, selector: str) -> bool:
    if namespace and obj["metadata"].get("namespace") != namespace:
        return False
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equal, value = term.partition("=")
        if name not in labels or (equal and labels[name] != value):
            return False
    return True


def _event(change: Change, namespace: str, selector: str) -> bytes | None:
    was = change.before is not None and _matches(change.before, namespace, selector)
    now = change.after is not None and _matches(change.after, namespace, selector)
    if now:
        return _line("MODIFIED" if was and change.before else "ADDED", change.after or {})
    if not was:
        return None
    # An object that is gone, or that the selector no longer matches, is told as deleted in the version of that.
    last = change.after or change.before or {}
    return _line("DELETED", {**last, "metadata": {**last["metadata"], "resourceVersion": str(change.revision)}})


def _line(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def _response(code: int, body: Json, headers: Mapping[str, str] | None = None) -> Response:
    return Response(code, json.dumps(body).encode(), headers or {})
