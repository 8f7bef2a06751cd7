"""Bytes to the API server and back, over one pool of connections.

The client above it knows what they mean and when to ask again. Tests put an API server in memory in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from elastrain.kubernetes.credentials import Credentials
from elastrain.kubernetes.errors import Unreachable

CONNECTIONS = 100
CONNECT_SECONDS = 10.0
LONGEST_LINE = 16 * 1024 * 1024
"""An object has at most 1.5 MB in etcd; as JSON of a watch event several times that at the worst."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `path` begins with / and has no query."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; the names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on: lines as they come. One that is no success has its body as its lines."""

    status: int
    lines: AsyncIterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries requests; whatever keeps an answer from coming is raised as `Unreachable`."""

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Send a request and return the whole answer, within `timeout` seconds."""
        ...

    def stream(self, request: Request, *, inactivity: float) -> AbstractAsyncContextManager[Stream]:
        """Send a request and read its answer line by line.

        No byte for `inactivity` seconds is a lost connection.
        """
        ...


class HttpTransport:
    """The transport over HTTP; `close` it at the end."""

    def __init__(self, credentials: Credentials, session: aiohttp.ClientSession) -> None:
        self._credentials = credentials
        self._session = session

    @classmethod
    async def open(cls, credentials: Credentials) -> HttpTransport:
        """Return a transport with a pool of connections of its own."""
        return cls(credentials, open_session(credentials))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Send a request and return the whole answer, within `timeout` seconds."""
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_SECONDS))
        try:
            async with self._open(request, limits) as answer:
                return Response(answer.status, await answer.read(), _lower(answer))
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise _unreachable(request, error) from error

    @asynccontextmanager
    async def stream(self, request: Request, *, inactivity: float) -> AsyncIterator[Stream]:
        """Send a request and read its answer line by line."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=inactivity)
        try:
            async with self._open(request, limits) as answer:
                yield Stream(answer.status, _lines(answer), _lower(answer))
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(request, error) from error

    def _open(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            request.method,
            self._credentials.server + request.path,
            params=request.query,
            data=request.body,
            headers={"Content-Type": request.content_type} if request.body is not None else None,
            timeout=limits,
            server_hostname=self._credentials.tls_server_name,
        )


def open_session(credentials: Credentials) -> aiohttp.ClientSession:
    """Return a session that logs in with the newest credentials at every request; its caller closes it."""

    async def log_in(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        value = credentials.authorization()
        if value:
            request.headers["Authorization"] = value
        return await handler(request)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=credentials.tls or True),
        headers={"Accept": "application/json", "User-Agent": "elastrain"},
        middlewares=(log_in,),
        proxy=credentials.proxy,
        raise_for_status=False,
    )


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines of any length: the reader of aiohttp refuses those that exceed its buffer."""
    rest = bytearray()
    async for chunk in answer.content.iter_any():
        rest += chunk
        if b"\n" in chunk:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield line
        elif len(rest) > LONGEST_LINE:
            raise aiohttp.ClientPayloadError(f"a line of a watch has more than {LONGEST_LINE} bytes")
    if rest:
        yield bytes(rest)


def _lower(answer: aiohttp.ClientResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _unreachable(request: Request, error: Exception) -> Unreachable:
    return Unreachable(f"{request.method} {request.path}: {type(error).__name__}: {error}".rstrip(": "))
