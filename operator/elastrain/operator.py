"""The operator as a process: what it is made of, in which order it begins, and how it ends.

It reads the cluster, serves the coordinator's address and waits for the Lease; then, as the leader, it looks at
jobs. kopf comes last because its end has to be the process's. Whatever part ends, the process ends, and what
follows it begins from what the cluster holds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastrain.coordination import Caller, Coordinator, JobKey, ReviewUnavailable, serve, server_context
from elastrain.kubernetes.authenticate import review
from elastrain.kubernetes.authority import Authority
from elastrain.kubernetes.cache import Cache, Key
from elastrain.kubernetes.client import PODS, SERVICES, Client
from elastrain.kubernetes.credentials import Credentials, load_credentials
from elastrain.kubernetes.election import Elector, Terms
from elastrain.kubernetes.errors import ApiError
from elastrain.kubernetes.events import Events
from elastrain.kubernetes.executor import Executor, Settings
from elastrain.kubernetes.jobs import Jobs
from elastrain.kubernetes.leader import mark
from elastrain.kubernetes.manifests import JOB_LABEL
from elastrain.kubernetes.observe import pod_entry, service_entry
from elastrain.kubernetes.parts import Parts
from elastrain.kubernetes.queue import Queue
from elastrain.kubernetes.reconciler import Reconciler
from elastrain.kubernetes.reflector import Reflector
from elastrain.kubernetes.schema import check_crd
from elastrain.kubernetes.trainjobs import TrainJobs, run_kopf
from elastrain.kubernetes.transport import HttpTransport
from elastrain.planning import Agent, CheckpointReport, Directive, ProgressReport

log = logging.getLogger(__name__)

STUCK_SECONDS = 600.0
"""A reflector hears a bookmark or tries anew within two minutes; one that has done neither for so long is stuck."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator is started (`elastrain operator --help`)."""

    coordinator_url: str
    tls_dir: Path
    port: int = 8443
    lease_name: str = "elastrain"
    lease_namespace: str = "default"
    pod_name: str = ""
    namespaces: tuple[str, ...] = ()
    workers: int = 16
    network_policy: bool = False
    terms: Terms = field(default_factory=Terms)

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """The namespaces that are looked after; (None,): all."""
        return self.namespaces or (None,)


class _Agents:
    """The coordinator under the keys of the Kubernetes side."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def publish(self, key: Key, directive: Directive) -> None:
        self._coordinator.publish(JobKey(*key), directive)

    def forget(self, key: Key) -> None:
        self._coordinator.forget(JobKey(*key))

    def agents(self, key: Key) -> Mapping[str, Agent]:
        return self._coordinator.agents(JobKey(*key))

    def heard(self, key: Key) -> tuple[datetime | None, Mapping[str, datetime]]:
        return self._coordinator.heard(JobKey(*key))

    def progress(self, key: Key) -> ProgressReport | None:
        return self._coordinator.progress(JobKey(*key))

    def checkpoint(self, key: Key) -> CheckpointReport | None:
        return self._coordinator.checkpoint(JobKey(*key))


class Operator:
    """The parts and how they are wired."""

    def __init__(self, options: Options, credentials: Credentials, client: Client) -> None:
        """Wire the parts; nothing runs yet."""
        self.options, self._credentials, self._client = options, credentials, client
        self.identity = f"{options.pod_name or 'elastrain'}_{secrets.token_hex(8)}"
        self.leads = False
        self.addresses: tuple[Any, ...] = ()  # where the coordinator listens
        self.stop = asyncio.Event()
        authority = Authority(options.coordinator_url, options.tls_dir)
        self.jobs = Jobs()
        self.queue: Queue[Key] = Queue(lambda key: self.reconciler.look(key), workers=options.workers)
        self.pods = Cache(pod_entry, self._changed)
        self.services = Cache(service_entry, self._changed)
        self.reflectors = [
            Reflector(client, resource, cache, namespace=scope, selector=JOB_LABEL)
            for scope in options.scopes
            for resource, cache in ((PODS, self.pods), (SERVICES, self.services))
        ]
        self.coordinator = Coordinator(
            identity=self.identity,
            authenticate=self._authenticate,
            membership=self._membership,
            wake=lambda key: self._changed(Key(key.namespace, key.name)),
        )
        events = Events(client, instance=self.identity)
        executor = Executor(
            client,
            jobs=self.jobs,
            pods=self.pods,
            services=self.services,
            events=events,
            settings=Settings(authority, options.network_policy),
            clock=lambda: datetime.now(UTC),
        )
        self.reconciler = Reconciler(
            client,
            jobs=self.jobs,
            pods=self.pods,
            services=self.services,
            agents=_Agents(self.coordinator),
            executor=executor,
            events=events,
        )
        self.trainjobs = TrainJobs(self.jobs, changed=self._changed, gone=self.reconciler.forget)
        self.elector = Elector(
            client,
            namespace=options.lease_namespace,
            name=options.lease_name,
            identity=self.identity,
            terms=options.terms,
        )

    async def run(self) -> int:
        """Run until told to stop or a part ends; return the exit code: 0 only if it was told."""
        await check_crd(self._client)
        await self._mark(leads=False)  # what an earlier process in this pod may have left
        parts = Parts(self.stop)
        try:
            for reflector in self.reflectors:
                parts.start(reflector.run(), f"the reflector of {reflector.name}")
            if await parts.outlive(asyncio.gather(*(reflector.wait() for reflector in self.reflectors))):
                await self._serve(parts)
        finally:
            await parts.end()
        return parts.code

    async def _serve(self, parts: Parts) -> None:
        application = self.coordinator.application(healthy=self.sick, serving=lambda: self.leads)
        context = server_context(self.options.tls_dir)
        runner = await serve(application, port=self.options.port, context=context)
        self.addresses = tuple(runner.addresses)
        log.info("%s stands by, serving %s", self.identity, self.addresses)
        try:
            if await parts.outlive(self.elector.acquire()):
                await self._lead(parts)
        finally:
            await runner.cleanup()

    async def _lead(self, parts: Parts) -> None:
        self.leads = True
        try:
            await self._mark(leads=True)
            parts.start(self.elector.hold(), "the hold of the Lease")
            parts.start(self.queue.run(), "the queue")
            parts.start(self.trainjobs.keep_sweeping(self._client, self.options.scopes), "the sweep of TrainJobs")
            watch = run_kopf(
                self.trainjobs,
                self._credentials,
                namespaces=self.options.scopes,
                stop=self.stop,
                handle_signals=self.handle_signals,
            )
            parts.start(watch, "kopf")
            await parts.outlive(self.stop.wait())
        finally:
            self.leads = False
            self.stop.set()
            await parts.end()  # nothing may be written once the Lease is free
            await self.elector.release()
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._mark(leads=False)

    async def _mark(self, *, leads: bool) -> None:
        await mark(self._client, self.options.lease_namespace, self.options.pod_name, leads=leads)

    def handle_signals(self) -> None:
        """Have SIGTERM and SIGINT end the process in good order."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop.set)

    def sick(self) -> str | None:
        """Return why the process must be restarted, if it must."""
        for reflector in self.reflectors:
            if reflector.synced and reflector.idle_seconds() > STUCK_SECONDS:
                return f"{reflector.name}: nothing heard and nothing tried for {reflector.idle_seconds():.0f} s"
        return None

    def _changed(self, key: Key) -> None:
        if self.leads:
            self.queue.add(key)

    async def _authenticate(self, token: str) -> Caller | None:
        try:
            found = await review(self._client, token)
        except ApiError as error:
            raise ReviewUnavailable(f"the token cannot be reviewed now: {error.message}") from error
        return Caller(found.namespace, found.pod, found.pod_uid) if found else None

    def _membership(self, caller: Caller) -> JobKey | None:
        """Return the job whose pod a caller is; a pod of an earlier job of the name is of none."""
        entry = self.pods.get(caller.pod_uid)
        if entry is None:
            return None
        job = self.jobs.get(entry.owner.key)
        if job is not None and job.uid != entry.owner.uid:
            return None
        return JobKey(*entry.owner.key)


async def run(options: Options) -> int:
    """Run the operator; return the process's exit code: 0 only if it was told to stop.

    Raises:
        NoCluster: no cluster is configured.
        UnusableCRD: the CRD is missing or too old.
        OSError: the TLS files cannot be read, or the port not be bound.

    """
    credentials = load_credentials()
    transport = await HttpTransport.open(credentials)
    try:
        operator = Operator(options, credentials, Client(transport))
        operator.handle_signals()
        return await operator.run()
    finally:
        await transport.close()
