"""How TrainJobs become known: kopf's watch, and a list from time to time.

kopf does the one thing that it does best, and only by `on.event`, which writes nothing to users' objects: no
finalizer, no annotation, no status. It tells nothing of an object that was deleted while its stream was down;
the list does. What is heard goes into the `Jobs`, and the job's key into the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from elastrain.api import GROUP, PLURAL, VERSION
from elastrain.kubernetes.cache import Key
from elastrain.kubernetes.client import TRAINJOBS, Client
from elastrain.kubernetes.credentials import Credentials
from elastrain.kubernetes.errors import ApiError
from elastrain.kubernetes.jobs import Jobs, key_of
from elastrain.kubernetes.transport import open_session

log = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0


class TrainJobs:
    """Keeps the known jobs up to date."""

    def __init__(self, jobs: Jobs, *, changed: Callable[[Key], None], gone: Callable[[Key, str], None]) -> None:
        """Prepare, without asking yet.

        Args:
            jobs: what is kept up to date.
            changed: has a job looked at.
            gone: drops a job, by its key and uid, that does not exist any more.

        """
        self._jobs = jobs
        self._changed = changed
        self._gone = gone

    def hear(self, kind: str | None, obj: Mapping[str, Any]) -> None:
        """Take over an event of a watch."""
        key = key_of(obj)
        if kind == "DELETED":
            self._gone(key, obj["metadata"]["uid"])
            self._changed(key)  # there may be another of this name by now
        elif self._jobs.put(obj):
            self._changed(key)

    async def sweep(self, client: Client, namespace: str | None) -> None:
        """List the jobs once, so that none that is missed stays so."""
        known = {job.key: job.uid for job in self._jobs.all() if namespace in (None, job.key.namespace)}
        async for page in client.list(TRAINJOBS, namespace):
            for obj in page.items:
                if known.get(key_of(obj)) == obj["metadata"]["uid"]:
                    del known[key_of(obj)]
                self.hear(None, obj)
        for key, uid in known.items():  # they were there before the list was made, and are not in it
            self._gone(key, uid)
            self._changed(key)

    async def keep_sweeping(
        self, client: Client, namespaces: Sequence[str | None], seconds: float = SWEEP_SECONDS
    ) -> None:
        """Sweep at intervals until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            for namespace in namespaces:
                try:
                    await self.sweep(client, namespace)
                except ApiError as error:
                    log.warning("listing TrainJobs of %s: %s", namespace or "all namespaces", error.message)


async def run_kopf(
    trainjobs: TrainJobs,
    credentials: Credentials,
    *,
    namespaces: Sequence[str | None],
    stop: asyncio.Event,
    handle_signals: Callable[[], None],
) -> None:
    """Watch TrainJobs by kopf until `stop` is set; raises when its streams cannot go on.

    kopf takes the loop for its own: it puts its own signal handlers in place, and at its end it waits for, and
    cancels, every task in the loop that it does not know to be somebody else's. Both are undone here.

    Args:
        trainjobs: is told of what happens.
        credentials: for the API server.
        namespaces: to watch; [None]: all.
        stop: ends it.
        handle_signals: puts our signal handlers in place again.

    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=open_session(credentials))

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def heard(event: Any, **_: Any) -> None:
        trainjobs.hear(event["type"], event["object"])

    named = [namespace for namespace in namespaces if namespace is not None]
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=_settings(),
        # Its own would ask for the name of the user, who has none in a container.
        identity="elastrain",  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not named,
        namespaces=named,
        stop_flag=stop,
    )
    handle_signals()
    await kopf.run_tasks(tasks, ignored=_AllTasks())


class _AllTasks(frozenset[Any]):
    """Whatever runs in the loop and is not a task of kopf's own making is none of its business."""

    def __contains__(self, _task: object) -> bool:
        return True


class _NoDiffs(kopf.DiffBaseStorage):
    """Remembers nothing: `on.event` needs no difference, and making one for each event costs half of its time."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:  # noqa: ARG002
        return {}

    def fetch(self, *, body: Any) -> Any:  # noqa: ARG002
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:  # noqa: ARG002
        return None


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no watch of CRDs and namespaces
    settings.posting.enabled = False  # events are our own (`events`)
    settings.peering.standalone = True  # the Lease decides who acts (`election`)
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = 30
    return settings
