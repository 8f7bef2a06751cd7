"""Carries out plans: writes the status, then creates and deletes.

A plan may be cut short anywhere; the next look at the job makes what is missing of it again. Nothing here
decides: what the API server refuses becomes a `Refusal` that the planner is told of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, assert_never

from elastrain.api import TrainJobStatus
from elastrain.kubernetes import manifests
from elastrain.kubernetes.cache import Cache
from elastrain.kubernetes.client import NETWORK_POLICIES, PODS, SERVICES, TRAINJOBS, Client, Json, Resource
from elastrain.kubernetes.errors import AlreadyExists, ApiError, Conflict, NotFound
from elastrain.kubernetes.events import Events
from elastrain.kubernetes.jobs import Job, Jobs
from elastrain.kubernetes.manifests import Coordination
from elastrain.kubernetes.network_policy import network_policy
from elastrain.kubernetes.observe import owner_of
from elastrain.kubernetes.refusals import name_conflict, refusal_of
from elastrain.planning import Action, CreatePod, CreateService, DeleteJob, DeletePod, EmitEvent, Refusal

T = TypeVar("T")

CONCURRENT = 64
"""Requests under way at once, of all jobs; one job's batches are no larger, so that it holds nobody up for long."""


def merge_patch(before: Json, after: Json) -> Json:
    """Return the JSON merge patch (RFC 7386) that makes the one of the other; {} if they are equal."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif name not in before or old != value:
            patch[name] = value
    return patch


@dataclass(frozen=True, slots=True)
class Settings:
    """What objects are made with."""

    coordination: Callable[[], Coordination]
    network_policy: bool = False


class Executor:
    """Carries out plans of any job; may be used by several tasks at once, for different jobs."""

    def __init__(
        self,
        client: Client,
        *,
        jobs: Jobs,
        pods: Cache[Any],
        services: Cache[Any],
        events: Events,
        settings: Settings,
        clock: Callable[[], datetime],
    ) -> None:
        """Make an executor.

        Args:
            client: writes.
            jobs: is given the answers to status writes.
            pods: is given the answers to creations and deletions of pods.
            services: is given the answers to creations of Services.
            events: tells people.
            settings: what objects are made with.
            clock: the time of day.

        """
        self._client = client
        self._jobs, self._pods, self._services = jobs, pods, services
        self._events = events
        self._settings = settings
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENT)

    async def write_status(self, job: Job, status: TrainJobStatus) -> None:
        """Write the status, if it is another, onto the very version of the job that it follows from.

        Raises:
            Conflict: the job has changed since; look at it again.

        """
        if status == job.model.status:
            return
        patch = merge_patch(dict(job.status), status.to_json())
        if not patch:
            return
        key = job.key
        stored = await self._client.patch(
            TRAINJOBS, key.namespace, key.name, {"status": patch}, subresource="status", version=str(job.version)
        )
        self._jobs.put(stored)

    async def act(self, job: Job, actions: Sequence[Action]) -> Refusal | None:
        """Carry out actions, in parallel but for creations, which begin slowly.

        Returns:
            The first refusal of a creation; the creations after it were not tried.

        Raises:
            ApiError: something could not be done though it was tried again; look at the job again later.

        """
        creations: list[CreateService | CreatePod] = []
        others: list[Awaitable[None]] = []
        for action in actions:
            match action:
                case CreateService() | CreatePod():
                    creations.append(action)
                case DeletePod():
                    others.append(self._delete_pod(job, action))
                case DeleteJob():
                    others.append(self._delete_job(job))
                case EmitEvent():
                    others.append(self._events.emit(job.key, job.uid, action))
                case _:
                    assert_never(action)
        results = await _all([self._create(job, creations), *map(self._bounded, others)])
        return results[0]

    async def renew_certificates(self, job: Job) -> None:
        """Give pods that were made with other certificates of the coordinator the present ones."""
        to = self._settings.coordination()
        stale = [
            entry.value[0].name
            for entry in self._pods.of(job.owner).values()
            if entry.value[1] != to.ca_digest and not entry.value[0].deleting and not entry.value[0].ended
        ]
        await _all([self._bounded(self._annotate(job, name, to)) for name in stale])

    async def _bounded(self, awaitable: Awaitable[None]) -> None:
        async with self._slots:
            await awaitable

    async def _create(self, job: Job, creations: Sequence[CreateService | CreatePod]) -> Refusal | None:
        """Create in batches of 1, 2, 4 ..., so that what is refused is refused once, not a thousand times."""
        begin, size = 0, 1
        while begin < len(creations):
            batch = creations[begin : begin + size]
            for refusal in await _all([self._create_one(job, creation) for creation in batch]):
                if refusal is not None:
                    return refusal
            begin += size
            size = min(size * 2, CONCURRENT)
        return None

    async def _create_one(self, job: Job, creation: CreateService | CreatePod) -> Refusal | None:
        async with self._slots:
            try:
                if isinstance(creation, CreateService):
                    return await self._create_service(job)
                return await self._create_pod(job, creation)
            except ApiError as error:
                refusal = refusal_of(error, job.model, self._clock())
                if refusal is None:
                    raise
                return refusal

    async def _create_service(self, job: Job) -> Refusal | None:
        if self._settings.network_policy:
            # Before the Service: where that exists, the policy has been made.
            with suppress(AlreadyExists):
                await self._client.create(NETWORK_POLICIES, network_policy(job.model), namespace=job.key.namespace)
        return await self._own(job, SERVICES, manifests.service(job.model), self._services)

    async def _create_pod(self, job: Job, creation: CreatePod) -> Refusal | None:
        body = manifests.pod(
            job.model,
            job.template,
            job.template_hash,
            creation.index,
            creation.attempt,
            self._settings.coordination(),
        )
        return await self._own(job, PODS, body, self._pods)

    async def _own(self, job: Job, resource: Resource, body: Json, cache: Cache[Any]) -> Refusal | None:
        """Create an object, or find that it has been created for this job before."""
        name = body["metadata"]["name"]
        try:
            stored = await self._client.create(resource, body, namespace=job.key.namespace)
        except AlreadyExists:
            try:
                stored = await self._client.get(resource, job.key.namespace, name)
            except NotFound as error:
                raise Conflict(f"{body['kind']} {name} was just deleted", status=409) from error
            owner = owner_of(stored)
            if owner is None or owner.uid != job.uid:
                whose = f"an earlier TrainJob {owner.key.name}" if owner else None
                return name_conflict(body["kind"], name, job.model, self._clock(), owner=whose)
        cache.insert(stored)
        return None

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        try:
            left = await self._client.delete(PODS, job.key.namespace, action.name, uid=action.uid)
        except (NotFound, Conflict):  # gone, or another pod has the name by now
            self._pods.remove(action.uid)
        else:
            if left.get("kind") == "Pod":
                self._pods.insert(left)

    async def _delete_job(self, job: Job) -> None:
        with suppress(NotFound, Conflict):  # gone, or another one has its name
            await self._client.delete(TRAINJOBS, job.key.namespace, job.key.name, uid=job.uid)

    async def _annotate(self, job: Job, name: str, to: Coordination) -> None:
        patch = {"metadata": {"annotations": {manifests.COORDINATOR_CA: to.ca}}}
        with suppress(NotFound):
            self._pods.insert(await self._client.patch(PODS, job.key.namespace, name, patch))


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Await all to their ends, then raise the first exception, if any: none is left running behind its caller."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise failures[0]
    return [result for result in results if not isinstance(result, BaseException)]
