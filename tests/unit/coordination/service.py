"""The world that a coordinator is told of, and a client of the coordinator."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import trustme

from elastrain.coordination import Caller, Coordinator, JobKey, ReviewUnavailable

GOLDEN = Path(__file__).parents[2] / "golden" / "protocol"
JOB = JobKey("default", "sft")
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
DEADLINE = 20.0  # seconds; only a hang reaches it


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@dataclass
class World:
    """What the coordinator is told of the cluster: tokens, pods and their jobs; and whom it woke."""

    callers: dict[str, Caller] = field(default_factory=dict)  # by token
    pods: dict[str, JobKey] = field(default_factory=dict)  # by uid
    woken: list[JobKey] = field(default_factory=list)
    reviews: list[str] = field(default_factory=list)
    reviewable: bool = True
    serving: bool = True
    sick: str | None = None
    now: datetime = START
    woke: asyncio.Event = field(default_factory=asyncio.Event)

    def pod(self, name: str, job: JobKey = JOB) -> str:
        """Add a pod of the job and return its token."""
        token = f"token-of-{job}-{name}"
        self.callers[token] = Caller(job.namespace, name, f"uid-of-{job}-{name}")
        self.pods[f"uid-of-{job}-{name}"] = job
        return token

    async def authenticate(self, token: str) -> Caller | None:
        self.reviews.append(token)
        await asyncio.sleep(0)
        if not self.reviewable:
            raise ReviewUnavailable("the API server does not answer")
        return self.callers.get(token)

    def membership(self, caller: Caller) -> JobKey | None:
        return self.pods.get(caller.pod_uid)

    def wake(self, key: JobKey) -> None:
        self.woken.append(key)
        self.woke.set()

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def wakes(self, count: int) -> None:
        """Wait until there were that many wakes."""
        async with asyncio.timeout(DEADLINE):
            while len(self.woken) < count:
                self.woke.clear()
                await self.woke.wait()


@dataclass
class Service:
    coordinator: Coordinator
    session: aiohttp.ClientSession
    url: str

    async def ask(
        self, token: str, after: int | str = 0, job: JobKey = JOB, session: aiohttp.ClientSession | None = None
    ) -> tuple[int, Any]:
        path = f"{self.url}/v1/namespaces/{job.namespace}/trainjobs/{job.name}/round"
        async with (session or self.session).get(
            path, params={"after": str(after)}, headers={"Authorization": f"Bearer {token}"}
        ) as response:
            return response.status, await response.json() if response.status != 204 else None

    async def report(self, token: str, body: Any, job: JobKey = JOB) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"{self.url}/v1/namespaces/{job.namespace}/trainjobs/{job.name}/reports"
        return await self._post(path, token, data)

    async def kubeflow(self, token: str, body: Any, job: JobKey = JOB) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        base = f"{self.url}/apis/trainer.kubeflow.org/v1alpha1"
        return await self._post(f"{base}/namespaces/{job.namespace}/trainjobs/{job.name}/status", token, data)

    async def _post(self, path: str, token: str, data: bytes) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with self.session.post(path, data=data, headers=headers) as response:
            return response.status, await response.json() if response.status != 204 else None


def write_certificate(authority: trustme.CA, folder: Path) -> None:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
