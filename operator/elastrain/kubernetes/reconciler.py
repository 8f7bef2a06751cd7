"""One look at one job: gather what is known, plan, carry the plan out. Called by the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from elastrain.api import TrainJob
from elastrain.kubernetes.cache import Cache, Key
from elastrain.kubernetes.client import TRAINJOBS, Client
from elastrain.kubernetes.errors import Conflict, NotFound
from elastrain.kubernetes.events import Events
from elastrain.kubernetes.executor import Executor
from elastrain.kubernetes.jobs import Job, Jobs, Unreadable
from elastrain.planning import (
    Agent,
    CheckpointReport,
    CreatePod,
    CreateService,
    Directive,
    EmitEvent,
    EventType,
    Observed,
    Plan,
    ProgressReport,
    Refusal,
    plan,
)

log = logging.getLogger(__name__)

SOON = 0.05
"""Seconds; a look that asks for another at once gets it after this, so that none turns into a busy loop."""


class Agents(Protocol):
    """The coordinator, as far as looking at a job needs it."""

    def publish(self, key: Key, directive: Directive) -> None:
        """Tell the job's agents what holds from now on."""

    def forget(self, key: Key) -> None:
        """Drop a job that is gone."""

    def agents(self, key: Key) -> Mapping[str, Agent]:
        """Return the newest state of the job's agents by pod uid."""
        ...

    def heard(self, key: Key) -> tuple[datetime | None, Mapping[str, datetime]]:
        """Return since when all agents of the job could be heard, and when each last was, by pod uid."""
        ...

    def progress(self, key: Key) -> ProgressReport | None:
        """Return the newest progress."""
        ...

    def checkpoint(self, key: Key) -> CheckpointReport | None:
        """Return the newest complete checkpoint."""
        ...


class Reconciler:
    """Looks at jobs; `look` must not be called twice at once for the same key."""

    def __init__(
        self,
        client: Client,
        *,
        jobs: Jobs,
        pods: Cache[Any],
        services: Cache[Any],
        agents: Agents,
        executor: Executor,
        events: Events,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        planner: Callable[[TrainJob, Observed, datetime], Plan] = plan,
    ) -> None:
        """Make a reconciler.

        Args:
            client: reads jobs that are not known yet, and those that changed under a write.
            jobs: the known jobs.
            pods: their pods.
            services: their Services.
            agents: what their agents report and are told.
            executor: carries plans out.
            events: tells people of jobs that cannot be read.
            clock: the time of day.
            planner: decides.

        """
        self._client = client
        self._jobs, self._pods, self._services = jobs, pods, services
        self._agents = agents
        self._executor = executor
        self._events = events
        self._clock = clock
        self._plan = planner
        self._refusals: dict[str, Refusal] = {}  # by job uid

    async def look(self, key: Key) -> float | None:
        """Look at a job and do what is due.

        Returns:
            After how many seconds to look again even if nothing happens; None: not needed.

        Raises:
            ApiError: something due could not be done; look again later.

        """
        job = self._jobs.get(key) or await self._fetch(key)
        if job is None:
            self._agents.forget(key)
            return None
        if isinstance(job, Unreadable):
            await self._complain(job)
            return None
        now = self._clock()
        made = self._plan(job.model, self._observe(job), now)
        try:
            await self._executor.write_status(job, made.status)
        except NotFound:
            self._gone(job)
            return None
        except Conflict:
            # The status was planned from an older version than the server has: plan again from that one.
            await self._fetch(key)
            return 0.0
        self._agents.publish(key, made.directive)
        refusal = await self._executor.act(job, made.actions)
        if refusal is not None:
            self._refusals[job.uid] = refusal
            return 0.0
        if any(isinstance(action, CreateService | CreatePod) for action in made.actions):
            self._refusals.pop(job.uid, None)
        await self._executor.renew_certificates(job)
        return None if made.next_look is None else max(SOON, (made.next_look - self._clock()).total_seconds())

    def forget(self, key: Key, uid: str) -> None:
        """Drop what is kept of a job that is gone."""
        self._refusals.pop(uid, None)
        if self._jobs.remove(key, uid):
            self._agents.forget(key)

    def _gone(self, job: Job) -> None:
        self.forget(job.key, job.uid)

    async def _fetch(self, key: Key) -> Job | Unreadable | None:
        try:
            self._jobs.put(await self._client.get(TRAINJOBS, key.namespace, key.name))
        except NotFound:
            known = self._jobs.get(key)
            if known is not None:
                self.forget(key, known.uid)
        return self._jobs.get(key)

    def _observe(self, job: Job) -> Observed:
        key = job.key
        since, heard = self._agents.heard(key)
        return Observed(
            pods=tuple(entry.value[0] for entry in self._pods.of(job.owner).values()),
            agents=self._agents.agents(key),
            heard=heard,
            listening_since=since,
            service_exists=any(entry.value == key.name for entry in self._services.of(job.owner).values()),
            template_hash=job.template_hash,
            refusal=self._refusals.get(job.uid),
            progress=self._agents.progress(key),
            checkpoint=self._agents.checkpoint(key),
        )

    async def _complain(self, job: Unreadable) -> None:
        """Say that a job cannot be read; its pods, if any, are left as they are."""
        text = (
            f"this release of elastrain cannot read the TrainJob: {job.problem}; "
            "apply the CRD of this release (elastrain crd) and correct the TrainJob"
        )
        log.error("%s: %s", job.key, text)
        await self._events.emit(job.key, job.uid, EmitEvent(EventType.WARNING, "Unreadable", text))
