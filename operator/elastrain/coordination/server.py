"""The HTTP side of the coordinator: routes, who may ask, and errors as docs/protocol.md has them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web

from elastrain.coordination import messages
from elastrain.coordination.answers import Answer
from elastrain.coordination.authentication import Authentication, ReviewUnavailable
from elastrain.coordination.identity import Caller, JobKey
from elastrain.coordination.jobs import Closing, Jobs, UnknownJob

log = logging.getLogger(__name__)

IDENTITY_HEADER = "Elastrain-Coordinator"
AUDIENCE = "elastrain.dev"
BODY_SECONDS = 10.0  # to send a body of at most 64 KiB
TOKEN_CHARACTERS = 7 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: HTTPStatus, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after


async def serve(
    application: web.Application, *, port: int, context: ssl.SSLContext, host: str | None = None
) -> web.AppRunner:
    """Serve the application; the runner's `cleanup` ends it.

    Args:
        application: of `Coordinator.application`.
        port: to listen on; 0: one that is free, to be found in the runner's `addresses`.
        context: of `server_context`.
        host: an address to listen on; None: all, of both IP families.

    """
    # A poll whose client went away is cancelled: it would wait for nobody.
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=context).start()
    return runner


def application(
    *,
    identity: str,
    authentication: Authentication,
    jobs: Jobs,
    healthy: Callable[[], str | None],
    serving: Callable[[], bool],
) -> web.Application:
    """Return the application of `Coordinator.application`."""
    served = web.Application(middlewares=[_as_json], client_max_size=messages.BODY_BYTES)
    agents = _Agents(authentication, jobs, serving)
    job = "/namespaces/{namespace}/trainjobs/{job}"
    served.router.add_get(f"/v1{job}/round", agents.round)
    served.router.add_post(f"/v1{job}/reports", agents.report)
    served.router.add_post(f"/apis/trainer.kubeflow.org/v1alpha1{job}/status", agents.kubeflow_status)

    async def live(_request: web.Request) -> web.Response:
        sick = healthy()
        return web.Response(status=503 if sick else 200, text=sick or "ok")

    async def ready(_request: web.Request) -> web.Response:
        sick = healthy()
        return web.Response(status=503 if sick else 200, text=sick or ("leads" if serving() else "stands by"))

    served.router.add_get("/livez", live)
    served.router.add_get("/readyz", ready)

    async def identify(_request: web.Request, response: web.StreamResponse) -> None:
        response.headers[IDENTITY_HEADER] = identity

    async def close(_application: web.Application) -> None:
        jobs.close()
        await authentication.close()

    served.on_response_prepare.append(identify)
    served.on_shutdown.append(close)
    return served


class _Agents:
    """The requests of agents."""

    def __init__(self, authentication: Authentication, jobs: Jobs, serving: Callable[[], bool]) -> None:
        self._authentication, self._jobs, self._serving = authentication, jobs, serving

    async def round(self, request: web.Request) -> web.Response:
        caller, key = await self._admit(request)
        after = _after(request)
        try:
            found = await self._jobs.ask(caller, key, after)
        except UnknownJob:
            raise Refused(HTTPStatus.NOT_FOUND, f"no TrainJob {key} is known here; it may have been deleted") from None
        if found is None:
            return web.Response(status=204)
        return web.Response(body=_encoded(found), content_type="application/json")

    async def report(self, request: web.Request) -> web.Response:
        caller, key = await self._admit(request)
        self._jobs.take(caller, key, messages.read_report(await _body(request)))
        return web.Response(status=204)

    async def kubeflow_status(self, request: web.Request) -> web.Response:
        caller, key = await self._admit(request)
        self._jobs.take_kubeflow(caller, key, messages.read_kubeflow_status(await _body(request)))
        return web.json_response({"version": messages.VERSION})

    async def _admit(self, request: web.Request) -> tuple[Caller, JobKey]:
        """Return who asks and for which job, once that is allowed."""
        if not self._serving():
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "this replica does not coordinate; ask again",
                retry_after=1,
            )
        key = JobKey(request.match_info["namespace"], request.match_info["job"])
        caller = await self._authentication.caller(_token(request))
        if caller is None:
            raise _unauthorized()
        if not self._jobs.belongs(caller, key):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"pod {caller.namespace}/{caller.pod} is not known to be of TrainJob {key}; ask for its own",
            )
        wait = self._jobs.spend(caller, key)
        if wait:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"too many requests of pod {caller.pod} of TrainJob {key}; wait as Retry-After says",
                retry_after=wait,
            )
        return caller, key


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARACTERS:
        raise _unauthorized()
    return token


def _unauthorized() -> Refused:
    return Refused(
        HTTPStatus.UNAUTHORIZED,
        f"Authorization: the token is not good; send the pod's projected token with the audience {AUDIENCE}",
    )


def _after(request: web.Request) -> int:
    text = request.query.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Refused(HTTPStatus.BAD_REQUEST, "after: not the number of a round; send a whole number")
    return int(text)


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Refused(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s; send it again"
        ) from None


@lru_cache(maxsize=64)  # all members of a round get the same bytes
def _encoded(found: Answer) -> bytes:
    return json.dumps(messages.command(found), ensure_ascii=False, separators=(",", ":")).encode()


@web.middleware
async def _as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into errors of the protocol."""
    try:
        return await handler(request)
    except Refused as refused:
        return _error(refused)
    except messages.NotAMessage as error:
        return _error(Refused(HTTPStatus.BAD_REQUEST, str(error)))
    except (ReviewUnavailable, Closing) as error:
        sentence = f"{error}; ask again"
        return _error(Refused(HTTPStatus.SERVICE_UNAVAILABLE, sentence, retry_after=1))
    except web.HTTPRequestEntityTooLarge:
        sentence = f"the body is larger than {messages.BODY_BYTES} bytes; send less"
        return _error(Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence))
    except web.HTTPException as error:
        sentence = f"{request.method} {request.path[:200]}: {error.reason}; see docs/protocol.md"
        return _error(Refused(HTTPStatus(error.status), sentence))
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return _error(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the coordinator, see its log; ask again"))


def _error(refused: Refused) -> web.Response:
    headers = {}
    if refused.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(refused.retry_after))
    if refused.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(messages.refusal(refused.sentence), status=refused.status, headers=headers)
