"""The fake API server over HTTP on loopback, with the discovery that kopf begins with."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from tests.faults.fake_apiserver import Answers, FakeApiServer, Lost, Silent, When, status

from elastrain.kubernetes.errors import Unreachable
from elastrain.kubernetes.transport import Request

KINDS = {
    "api/v1": [("namespaces", "Namespace", False), ("pods", "Pod", True), ("services", "Service", True)],
    "apis/apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False)],
    "apis/elastrain.dev/v1alpha1": [("trainjobs", "TrainJob", True)],
}


class FakeHttp:
    """Serves a fake on a port of its own while in context."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)

    async def __aenter__(self) -> str:
        """Return the server's address."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        path = http.path.strip("/")
        if http.method == "GET" and (found := _discovery(path)) is not None:
            return web.json_response(found)
        request = Request(http.method, http.path, dict(http.query), await http.read() or None, http.content_type)
        self.server.requests.append(request)
        fault = self.server.faults(request)
        if fault is not None and fault.when is When.DONE:
            self.server.handle(request)
        match fault:
            case Lost():
                _break(http)
            case Silent():
                await asyncio.Event().wait()
            case Answers(code, after):
                headers = {} if after is None else {"Retry-After": str(after)}
                return web.json_response(status(code, "InternalError", "a fault"), status=code, headers=headers)
        if "watch" in http.query and http.query["watch"] != "false":
            return await self._watch(http, request)
        code, body = self.server.handle(request)
        return web.json_response(body, status=code)

    async def _watch(self, http: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(http)
        try:
            async for line in self.server.watch(request):
                await response.write(line + b"\n")
        except Unreachable:
            _break(http)
        except ConnectionResetError:
            pass
        return response


def _break(http: web.Request) -> None:
    assert http.transport is not None
    http.transport.abort()
    raise ConnectionResetError


def _discovery(path: str) -> dict[str, Any] | None:
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        groups = [name.split("/")[1:] for name in KINDS if name.startswith("apis/")]
        return {"kind": "APIGroupList", "groups": [_group(group, version) for group, version in groups]}
    for prefix, kinds in KINDS.items():
        parts = prefix.split("/")
        if path == prefix:
            return {
                "kind": "APIResourceList",
                "groupVersion": "/".join(parts[1:]),
                "resources": [
                    {
                        "name": plural,
                        "singularName": kind.lower(),
                        "kind": kind,
                        "namespaced": namespaced,
                        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
                    }
                    for plural, kind, namespaced in kinds
                ],
            }
        if len(parts) == 3 and path == "/".join(parts[:2]):
            return {"kind": "APIGroup", **_group(parts[1], parts[2])}
    return None


def _group(group: str, version: str) -> dict[str, Any]:
    found = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [found], "preferredVersion": found}
