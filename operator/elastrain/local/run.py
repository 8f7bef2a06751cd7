"""One job on this machine: looks at it whenever something happens, and carries out what the planner says."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import trustme

from elastrain.api import TrainJob
from elastrain.api.environment import environment
from elastrain.coordination import Caller, Coordinator, JobKey, serve, server_context
from elastrain.local.nodes import Nodes
from elastrain.planning import CreatePod, CreateService, DeleteJob, DeletePod, Directive, EmitEvent, Endpoint, plan
from elastrain.planning.observed import Observed

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often processes are looked at: their end wakes nobody."""


class Run:
    """A job whose pods are processes of this machine.

    The status is written to `status.json` in the run's folder before anything follows from it, as on a cluster.
    """

    def __init__(
        self,
        job: TrainJob,
        folder: Path,
        *,
        variables: Mapping[str, str] | None = None,
        tell: Callable[[EmitEvent], None] = lambda _event: None,
    ) -> None:
        """Prepare a run; `main` runs it.

        Args:
            job: what to run; the image of its template is not used.
            folder: for the pods' folders and logs, and for the status.
            variables: what the pods find in their environment besides what the template says.
            tell: called with each event.

        """
        now = datetime.now(UTC)
        metadata = job.metadata.model_copy(
            update={"uid": job.metadata.uid or secrets.token_hex(8), "generation": 1, "creation_timestamp": now}
        )
        self.job = job.model_copy(update={"metadata": metadata})
        self.folder = folder
        self._variables = dict(variables or {})
        self._tell = tell
        self._key = JobKey(metadata.namespace, metadata.name)
        self._news = asyncio.Event()
        self._over = False
        self._authority = trustme.CA()
        self._url = ""
        self._listen()
        self.nodes = Nodes(folder, self._authority.cert_pem.bytes())

    def _listen(self) -> None:
        self.coordinator = Coordinator(
            identity=secrets.token_hex(8),
            authenticate=self._authenticate,
            membership=self._membership,
            wake=lambda _key: self._news.set(),
        )

    async def _authenticate(self, token: str) -> Caller | None:
        node = self.nodes.of_token(token)
        return Caller(self._key.namespace, node.pod.name, node.pod.uid) if node else None

    def _membership(self, caller: Caller) -> JobKey | None:
        known = caller.pod in self.nodes and self.nodes[caller.pod].pod.uid == caller.pod_uid
        return self._key if known else None

    async def main(self) -> None:
        """Run the job until `stop`, or until it is deleted because its time to live is over."""
        tls = self.folder / "tls"
        tls.mkdir(parents=True, exist_ok=True)
        certificate = self._authority.issue_cert("localhost")
        certificate.cert_chain_pems[0].write_to_path(tls / "tls.crt")
        (tls / "tls.key").touch(mode=0o600)
        certificate.private_key_pem.write_to_path(tls / "tls.key")
        application = self.coordinator.application(healthy=lambda: None, serving=lambda: True)
        server = await serve(application, host="127.0.0.1", port=0, context=server_context(tls))
        self._url = f"https://localhost:{server.addresses[0][1]}"
        try:
            while not self._over:
                until = self._look()
                await self._wait(until)
        finally:
            for node in self.nodes:
                self.nodes.kill(node.pod.name)
                node.process.wait()
            await server.cleanup()

    def stop(self) -> None:
        """End the run with all its processes, at once."""
        self._over = True
        self._news.set()

    def edit(self, **spec: Any) -> None:
        """Change the spec, by the names that a manifest uses.

        Raises:
            pydantic.ValidationError: the changed spec is not valid; nothing has changed.

        """
        body = self.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        body["spec"].update(spec)
        body["metadata"]["generation"] += 1
        self.job = TrainJob.model_validate(body)
        self._news.set()

    def delete_pod(self, name: str, *, grace: float | None = None) -> None:
        """Delete a pod, as a person or a drain does; `grace` 0 is a power cut."""
        if grace == 0:
            self.nodes.kill(name)
            grace = 0.0
        seconds = float(self.job.spec.scaling.leave_seconds) if grace is None else grace
        self.nodes.delete(name, datetime.now(UTC) + timedelta(seconds=seconds))
        self._news.set()

    async def _wait(self, until: datetime | None) -> None:
        while not self._news.is_set():
            now = datetime.now(UTC)
            if self.nodes.look(now) or (until and until <= now):
                return
            seconds = LOOK_SECONDS if until is None else min(max((until - now).total_seconds(), 0.0), LOOK_SECONDS)
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                continue
        self._news.clear()

    def _look(self) -> datetime | None:
        now = datetime.now(UTC)
        self.nodes.look(now)
        made = plan(self.job, self._observe(), now)
        changed = made.status != self.job.status
        if changed:
            self._write(made.status.model_dump_json(by_alias=True, exclude_none=True))
            self.job = self.job.model_copy(update={"status": made.status})
        self.coordinator.publish(self._key, self._addressed(made.directive))
        for action in made.actions:
            self._act(action)
        # What was written is looked at once more, as on a cluster.
        return now if changed or made.actions else made.next_look

    def _observe(self) -> Observed:
        since, heard = self.coordinator.heard(self._key)
        return Observed(
            pods=self.nodes.pods,
            agents=self.coordinator.agents(self._key),
            heard=heard,
            listening_since=since,
            service_exists=True,
            template_hash=self._digest,
            progress=self.coordinator.progress(self._key),
            checkpoint=self.coordinator.checkpoint(self._key),
        )

    @property
    def _digest(self) -> str:
        spec = self.job.spec.model_dump(mode="json", include={"template", "procs_per_node", "global_batch_size"})
        return sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

    def _write(self, status: str) -> None:
        """Replace the status file, whole or not at all."""
        part = self.folder / "status.json.part"
        part.write_text(status)
        part.replace(self.folder / "status.json")

    def _addressed(self, directive: Directive) -> Directive:
        """Return a directive whose hosts are addresses: there is no name service for local pods."""
        told = directive.round
        if told is None:
            return directive
        addresses = {member.pod: member.address for member in told.members}

        def local(endpoint: Endpoint) -> Endpoint:
            return Endpoint(addresses[endpoint.host.split(".", 1)[0]], endpoint.port)

        return replace(directive, round=replace(told, rendezvous=local(told.rendezvous), store=local(told.store)))

    def _act(self, action: object) -> None:
        match action:
            case CreatePod(index, attempt):
                self._start(index, attempt)
            case DeletePod(name, uid):
                if name in self.nodes and self.nodes[name].pod.uid == uid:
                    self.delete_pod(name)
            case EmitEvent():
                self._tell(action)
            case CreateService():
                pass
            case DeleteJob():
                self.stop()
            case _:
                raise AssertionError(action)

    def _start(self, index: int, attempt: int) -> None:
        folder = self.nodes.make_folder(f"{self.job.metadata.name}-{index}-{attempt}")
        trainer = next(c for c in self.job.spec.template.spec.containers if c.name == "trainer")
        own = {variable.name: str((variable.model_extra or {}).get("value") or "") for variable in trainer.env or ()}
        fixed = environment(self.job, index, url=self._url, credentials=str(folder))
        argv = list((trainer.model_extra or {}).get("args") or ())
        log.info("starting %s: %s", folder.name, " ".join([sys.executable, *argv]))
        self.nodes.start(folder, index, attempt, self._digest, argv, {**fixed, **self._variables, **own})
