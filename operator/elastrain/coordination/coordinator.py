"""The coordinator as its composer sees it: publish directives, read what agents reported, serve HTTP.

The state is in `jobs`, who a token belongs to in `authentication`, the HTTP side in `server`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from aiohttp import web

from elastrain.coordination.authentication import Authenticate, Authentication
from elastrain.coordination.identity import Caller, JobKey
from elastrain.coordination.jobs import POLL_SECONDS, PROGRESS_SECONDS, Jobs
from elastrain.coordination.server import application
from elastrain.planning import Agent, CheckpointReport, Directive, ProgressReport


class Coordinator:
    """Holds what agents are told and what they report; one for each process, used from one event loop."""

    def __init__(
        self,
        *,
        identity: str,
        authenticate: Authenticate,
        membership: Callable[[Caller], JobKey | None],
        wake: Callable[[JobKey], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        poll_seconds: float = POLL_SECONDS,
        progress_seconds: float = PROGRESS_SECONDS,
    ) -> None:
        """Make a coordinator that knows no job yet.

        Args:
            identity: differs from that of every other process, also of earlier ones.
            authenticate: the pod that a token is bound to, or None if the token is not good. Raises
                `ReviewUnavailable` if that cannot be told now. Asked once a minute for each good token.
            membership: the job that a pod belongs to by its uid and owner, or None. A pod that is left from
                an earlier job of the same name belongs to none.
            wake: has a job looked at soon. Called for a job that agents ask about before it was published,
                too: if there is no such job, the answer is `forget`.
            clock: the time of day, for what people read.
            poll_seconds: how long a request for the round waits.
            progress_seconds: the least time between two wakes for progress alone.

        """
        self._identity = identity
        self._authentication = Authentication(authenticate)
        self._jobs = Jobs(
            membership=membership,
            wake=wake,
            clock=clock,
            poll_seconds=poll_seconds,
            progress_seconds=progress_seconds,
        )

    def publish(self, key: JobKey, directive: Directive) -> None:
        """Tell the job's agents what holds from now on; those that wait hear at once what is new to them."""
        self._jobs.publish(key, directive)

    def forget(self, key: JobKey) -> None:
        """Drop a job that is gone; agents that ask for it are told so."""
        self._jobs.forget(key)

    def agents(self, key: JobKey) -> Mapping[str, Agent]:
        """Return the newest state of each of the job's agents, by pod uid."""
        return self._jobs.agents(key)

    def heard(self, key: JobKey) -> tuple[datetime | None, Mapping[str, datetime]]:
        """Return since when all agents of the job could be heard, and when each last was, by pod uid."""
        return self._jobs.heard(key)

    def progress(self, key: JobKey) -> ProgressReport | None:
        """Return the newest progress of the newest round that reported some."""
        return self._jobs.progress(key)

    def checkpoint(self, key: JobKey) -> CheckpointReport | None:
        """Return the newest complete checkpoint that was reported."""
        return self._jobs.checkpoint(key)

    def application(self, *, healthy: Callable[[], str | None], serving: Callable[[], bool]) -> web.Application:
        """Return the HTTP application of docs/protocol.md, with `/livez` and `/readyz`.

        Args:
            healthy: None, or why the process must be restarted; says nothing of the API server.
            serving: whether this process is the one to ask; else agents are answered 503.

        """
        return application(
            identity=self._identity,
            authentication=self._authentication,
            jobs=self._jobs,
            healthy=healthy,
            serving=serving,
        )
