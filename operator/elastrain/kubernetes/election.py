"""Which replica acts: a Lease that one of them holds and renews.

The client library's election cannot create its Lease and keeps leading after a dropped connection, so this is
our own, after the rules of client-go's: the times of other machines are never compared with ours, a change is
timed by when we saw it; whoever could not renew for `deadline` seconds stops, before anyone may take over at
`duration`. The end of `hold` has to be the end of the process: nothing else surely stops what was begun.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elastrain.kubernetes.client import LEASES, Client
from elastrain.kubernetes.errors import ApiError, NotFound

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """The times of a lease in seconds.

    `duration` without a renewal frees it; its holder gives up after `deadline`; `retry` lies between two tries.
    A successor sees the last renewal at most `retry` late, so it leads `duration + retry` after a crash at the
    latest: 14 s by these.
    """

    duration: float = 12.0
    deadline: float = 8.0
    retry: float = 2.0


class Elector:
    """One candidate for a Lease."""

    def __init__(self, client: Client, *, namespace: str, name: str, identity: str, terms: Terms | None = None) -> None:
        """Prepare a candidate.

        Args:
            client: asks.
            namespace: where the Lease is.
            name: of the Lease; made if it does not exist.
            identity: differs from that of every other process, also of earlier ones in the same pod.
            terms: the times.

        """
        self._client = client
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._terms = terms or Terms()
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._free_at = float("inf")  # when the present holder's time is over, if it is not renewed
        self._renewed_at = 0.0  # before the request that renewed it was sent

    async def acquire(self) -> None:
        """Return once the Lease is ours."""
        while True:
            began = asyncio.get_running_loop().time()
            if await self._try(self._terms.deadline):
                self._renewed_at = began
                log.info("%s leads now", self._identity)
                return
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(min(self._terms.retry, max(self._free_at - now, 0.1)))

    async def hold(self) -> None:
        """Renew the Lease; return when it is another's or has not been renewed in time."""
        now, terms = asyncio.get_running_loop().time, self._terms
        while (left := self._renewed_at + terms.deadline - now()) > 0:
            began = now()
            renewed = await self._try(left)
            if renewed:
                self._renewed_at = began
            elif renewed is False:
                log.error("%s lost the Lease %s/%s to another", self._identity, self._namespace, self._name)
                return
            await asyncio.sleep(min(terms.retry, max(0.0, self._renewed_at + terms.deadline - now())))
        log.error(
            "%s has not renewed the Lease %s/%s for %g s", self._identity, self._namespace, self._name, terms.deadline
        )

    async def release(self) -> None:
        """Free the Lease if it is ours, so that a successor need not wait until it ends."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._terms.retry):
                lease = await self._request("GET", self._name)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._request("PUT", self._name, lease)

    async def _try(self, seconds: float) -> bool | None:
        """Try once to get or renew it; return whether it is ours, or None if that could not be told."""
        try:
            async with asyncio.timeout(seconds):
                return await self._attempt()
        except (ApiError, TimeoutError) as error:
            log.warning("Lease %s/%s: %s: %s", self._namespace, self._name, type(error).__name__, error)
            return None

    async def _attempt(self) -> bool:
        """Read the Lease; if it is free, ours or over, write it. The version read makes the write exclusive."""
        try:
            lease = await self._request("GET", self._name)
        except NotFound:
            await self._request("POST", None, self._new())
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        mark = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        now = asyncio.get_running_loop().time()
        if mark != self._seen:
            self._seen, self._seen_at = mark, now
        lasts = float(spec.get("leaseDurationSeconds") or self._terms.duration)
        self._free_at = self._seen_at + lasts
        if holder not in ("", self._identity) and now < self._free_at:
            return False
        lease["spec"] = self._spec(spec, taken=holder != self._identity)
        await self._request("PUT", self._name, lease)
        return True

    def _new(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}, taken=True),
        }

    def _spec(self, before: dict[str, Any], *, taken: bool) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._terms.duration)),
            "acquireTime": now if taken else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": transitions + (1 if taken and before else 0),
        }

    async def _request(self, method: str, name: str | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
        path = LEASES.path(self._namespace, name)
        return await self._client.request(method, path, body=body, timeout=self._terms.deadline, attempts=1)
