"""A cluster for the whole operator: the fake API server over HTTP, kubelets and agents played by hand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import trustme
from tests.faults import objects
from tests.faults.fake_apiserver import FakeApiServer
from tests.faults.fake_http import FakeHttp

from elastrain.api.crd import crd
from elastrain.kubernetes.client import Client
from elastrain.kubernetes.credentials import Credentials
from elastrain.kubernetes.election import Terms
from elastrain.kubernetes.transport import HttpTransport
from elastrain.operator import Operator, Options

Json = dict[str, Any]


@dataclass
class Cluster:
    """The server, and what kubelets and agents do."""

    server: FakeApiServer
    address: str
    tls: Path
    trust: ssl.SSLContext

    def apply(self, name: str = "sft", **spec: Any) -> Json:
        return self.server.put(objects.TRAINJOBS.format("default"), objects.trainjob(name, **spec))

    def job(self, name: str = "sft") -> Json:
        return self.server.get("trainjobs", "default", name)

    def phase(self, name: str = "sft") -> str:
        return str((self.job(name).get("status") or {}).get("phase"))

    def pods(self, job: str = "sft") -> list[Json]:
        found = [p for p in self.server.objects("pods") if p["metadata"]["labels"].get("elastrain.dev/job") == job]
        return sorted(found, key=lambda p: p["metadata"]["name"])

    def run_pod(self, pod: Json, address: str) -> str:
        """Have a pod run, as its kubelet does, and return its token."""
        meta = pod["metadata"]
        self.server.put(
            objects.PODS.format("default"), {**pod, "spec": {**pod["spec"], "nodeName": f"node-{address[-1]}"}}
        )
        self.server.set_status("pods", "default", meta["name"], {"phase": "Running", "podIP": address})
        token = f"token-of-{meta['uid']}"
        self.server.tokens[token] = {
            "authenticated": True,
            "audiences": ["elastrain.dev"],
            "user": {
                "username": "system:serviceaccount:default:default",
                "extra": {
                    "authentication.kubernetes.io/pod-name": [meta["name"]],
                    "authentication.kubernetes.io/pod-uid": [meta["uid"]],
                },
            },
        }
        return token

    async def quiet(self, operator: Operator) -> None:
        """Wait until the operator knows a job and has nothing to do."""
        async with asyncio.timeout(20):
            while not operator.jobs.all() or not operator.queue.idle:  # noqa: ASYNC110 - an operator tells nobody
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def operator(self, code: int = 0, **options: Any) -> AsyncIterator[Operator]:
        """Run an operator; at the end it is told to stop, and has to end with the code."""
        credentials = Credentials(self.address)
        transport = await HttpTransport.open(credentials)
        given = Options(
            **{
                "coordinator_url": "https://localhost:1",
                "tls_dir": self.tls,
                "port": 0,
                "terms": Terms(duration=3, deadline=2, retry=0.2),
                **options,
            }
        )
        operator = Operator(given, credentials, Client(transport))
        task = asyncio.create_task(operator.run())
        try:
            yield operator
            operator.stop.set()
            async with asyncio.timeout(20):
                assert await task == code
        finally:
            operator.stop.set()
            await asyncio.wait([task], timeout=20)
            await transport.close()


@asynccontextmanager
async def fake_cluster(folder: Path, server: FakeApiServer | None = None) -> AsyncIterator[Cluster]:
    """Start a cluster without an operator, with the CRD."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    authority.cert_pem.write_to_path(folder / "ca.crt")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = server or FakeApiServer()
    server.put("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
    async with FakeHttp(server) as address:
        yield Cluster(server, address, folder, trust)


@dataclass
class Agent:
    """What an agent says and hears, by hand."""

    session: aiohttp.ClientSession
    url: str
    token: str

    async def round(self, after: int = 0) -> Json:
        """Ask until there is something to hear."""
        async with asyncio.timeout(20):
            while True:
                async with self.session.get(
                    f"{self.url}/round", params={"after": str(after)}, headers=self._login()
                ) as answer:
                    if answer.status == 200:
                        return dict(await answer.json())
                    assert answer.status in (204, 403, 503), await answer.text()
                await asyncio.sleep(0.05)

    async def report(self, state: str, round_number: int, **more: Any) -> None:
        ports = {"rendezvous": 40001, "store": 40002}
        body = {"version": 1, "type": "state", "state": state, "round": round_number, "ports": ports, **more}
        async with self.session.post(f"{self.url}/reports", json=body, headers=self._login()) as answer:
            assert answer.status == 204, await answer.text()

    def _login(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}
