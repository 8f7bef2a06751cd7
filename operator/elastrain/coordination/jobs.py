"""What is told to and known of each job's agents: the directives published, the reports that came.

Everything is in memory and can be rebuilt: directives by planning again, reports because agents repeat them
to a coordinator with a new id. The HTTP side is in `server`, the bodies are in `messages`, the
whole is put together in `coordinator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from elastrain.coordination.answers import Answer, answer
from elastrain.coordination.identity import Caller, JobKey
from elastrain.coordination.limits import TokenBucket
from elastrain.coordination.messages import (
    CheckpointBody,
    KubeflowStatus,
    PhaseBody,
    ProgressBody,
    Report,
    StateReport,
)
from elastrain.planning import Agent, CheckpointReport, Directive, ProgressReport

POLL_SECONDS = 25.0
PULSE_SECONDS, STANDSTILL_SECONDS = 1.0, 2.0
PROGRESS_SECONDS = 5.0  # between two looks at a job because of progress alone
# A pod's own share of its job's requests, so that one in a loop does not starve its peers: a poll and a
# report at every change, progress each second, and room for a burst.
POD_RATE, POD_BURST = 5.0, 40.0


class UnknownJob(LookupError):
    """There is no such job (any more)."""


class Closing(Exception):
    """The coordinator is being shut down."""

    def __str__(self) -> str:
        return "this replica is being shut down"


@dataclass(slots=True, eq=False)
class _Poll:
    """A request for the round that waits; its end is an answer, or None for nothing to tell."""

    pod: str
    after: int
    end: asyncio.Future[Answer | Exception | None]

    def finish(self, result: Answer | Exception | None) -> None:
        if not self.end.done():
            self.end.set_result(result)


@dataclass(slots=True, eq=False)
class _Job:
    since: datetime  # from when on its agents could be heard
    directive: Directive | None = None
    heard: dict[str, datetime] = field(default_factory=dict)  # when each last asked or reported, by pod uid
    polls: dict[str, _Poll] = field(default_factory=dict)  # by pod uid: the newest of each
    callers: dict[str, Caller] = field(default_factory=dict)  # by pod uid
    shares: dict[str, TokenBucket] = field(default_factory=dict)  # by pod uid
    agents: dict[str, Agent] = field(default_factory=dict)  # by pod uid
    progress: ProgressReport | None = None
    checkpoint: CheckpointReport | None = None
    progress_told: float = float("-inf")  # when the job was last looked at because of progress, loop time
    progress_timer: asyncio.TimerHandle | None = None

    def oldest_round(self) -> int:
        """The number of the oldest round whose progress and checkpoints count."""
        published = self.directive.round if self.directive else None
        return (published.previous or published.number) if published else 0


class Jobs:
    """The agents of all jobs, as far as they are known; used from one event loop."""

    def __init__(
        self,
        *,
        membership: Callable[[Caller], JobKey | None],
        wake: Callable[[JobKey], None],
        clock: Callable[[], datetime],
        poll_seconds: float,
        progress_seconds: float,
    ) -> None:
        """Know no job yet; the arguments are those of `Coordinator`."""
        self._membership = membership
        self._wake = wake
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._progress_seconds = progress_seconds
        self._jobs: dict[JobKey, _Job] = {}
        self._closing = False
        self._pulse: asyncio.TimerHandle | None = None

    def publish(self, key: JobKey, directive: Directive) -> None:
        """Tell the job's agents what holds from now on; those that wait hear at once what is new to them."""
        job = self._jobs.setdefault(key, _Job(self._clock()))
        self._drop_lost_pods(key, job)
        if directive == job.directive:
            return
        job.directive = directive
        for poll in tuple(job.polls.values()):
            found = answer(directive, poll.pod, poll.after)
            if found is not None:
                poll.finish(found)

    def forget(self, key: JobKey) -> None:
        """Drop a job that is gone; agents that ask for it are told so."""
        job = self._jobs.pop(key, None)
        if job is None:
            return
        if job.progress_timer:
            job.progress_timer.cancel()
        for poll in tuple(job.polls.values()):
            poll.finish(UnknownJob(key))

    def agents(self, key: JobKey) -> Mapping[str, Agent]:
        """Return the newest state of each of the job's agents, by pod uid."""
        job = self._jobs.get(key)
        return MappingProxyType(dict(job.agents)) if job else MappingProxyType({})

    def heard(self, key: JobKey) -> tuple[datetime | None, Mapping[str, datetime]]:
        """Return since when all agents of the job could be heard, and when each last was, by pod uid."""
        job = self._jobs.get(key)
        return (job.since, MappingProxyType(dict(job.heard))) if job else (None, MappingProxyType({}))

    def progress(self, key: JobKey) -> ProgressReport | None:
        """Return the newest progress of the newest round that reported some."""
        job = self._jobs.get(key)
        return job.progress if job else None

    def checkpoint(self, key: JobKey) -> CheckpointReport | None:
        """Return the newest complete checkpoint that was reported."""
        job = self._jobs.get(key)
        return job.checkpoint if job else None

    def belongs(self, caller: Caller, key: JobKey) -> bool:
        """Return whether the caller is a pod of that very job."""
        return caller.namespace == key.namespace and self._membership(caller) == key

    def spend(self, caller: Caller, key: JobKey) -> float:
        """Count a request of the pod; return 0, or after how many seconds it may ask again."""
        job = self._enter(caller, key)
        share = job.shares.setdefault(caller.pod_uid, TokenBucket(POD_RATE, POD_BURST))
        return share.take(asyncio.get_running_loop().time())

    async def ask(self, caller: Caller, key: JobKey, after: int) -> Answer | None:
        """Return what the pod is to be told, waiting for it; None if there was nothing in time.

        Raises:
            UnknownJob: there is no such job (any more).
            Closing: the coordinator is being shut down.

        """
        job = self._enter(caller, key)
        found = answer(job.directive, caller.pod, after) if job.directive else None
        if found is not None:
            return found
        if self._closing:
            raise Closing
        poll = _Poll(caller.pod, after, asyncio.get_running_loop().create_future())
        if earlier := job.polls.get(caller.pod_uid):
            earlier.finish(None)  # its connection is lost or about to be: an agent asks once at a time
        job.polls[caller.pod_uid] = poll
        try:
            seconds = job.directive.poll_seconds if job.directive else self._poll_seconds
            async with asyncio.timeout(min(seconds, self._poll_seconds)):
                end = await poll.end
        except TimeoutError:
            end = None
        finally:
            if job.polls.get(caller.pod_uid) is poll:
                del job.polls[caller.pod_uid]
        if isinstance(end, Exception):
            raise end
        return end

    def take(self, caller: Caller, key: JobKey, report: Report) -> None:
        """Keep what an agent reports and have the job looked at if that tells something new."""
        job = self._enter(caller, key)
        match report:
            case StateReport():
                self._take_state(caller, key, job, report)
            case ProgressBody():
                self._take_progress(key, job, report.report(self._clock()))
            case CheckpointBody():
                self._take_checkpoint(key, job, report.report(self._clock()))
            case PhaseBody():
                pass  # nothing is decided by it: time limits are the agent's

    def take_kubeflow(self, caller: Caller, key: JobKey, status: KubeflowStatus) -> None:
        """Keep the progress that the Transformers callback reports."""
        job = self._enter(caller, key)
        agent = job.agents.get(caller.pod_uid)
        number = agent.round if agent else job.oldest_round()
        before = job.progress if job.progress and job.progress.round == number else None
        self._take_progress(key, job, status.report(number, before, self._clock()))

    def close(self) -> None:
        """End all that waits, so that a shutdown does not wait for the longest poll."""
        self._closing = True
        if self._pulse:
            self._pulse.cancel()
        for job in self._jobs.values():
            if job.progress_timer:
                job.progress_timer.cancel()
            for poll in tuple(job.polls.values()):
                poll.finish(Closing())

    def _enter(self, caller: Caller, key: JobKey) -> _Job:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(self._clock())
            self._wake(key)  # it will be published, or forgotten if it does not exist
        job.callers[caller.pod_uid] = caller
        job.heard[caller.pod_uid] = self._clock()
        if self._pulse is None:
            self._beat(asyncio.get_running_loop().time())
        return job

    def _beat(self, due: float) -> None:
        """Notice when this process stood still, so that nobody is blamed for what it did not hear then."""
        loop = asyncio.get_running_loop()
        if loop.time() > due + STANDSTILL_SECONDS:
            for job in self._jobs.values():
                job.since = self._clock()
        self._pulse = loop.call_later(PULSE_SECONDS, self._beat, loop.time() + PULSE_SECONDS)

    def _drop_lost_pods(self, key: JobKey, job: _Job) -> None:
        lost = [uid for uid, caller in job.callers.items() if not self.belongs(caller, key)]
        for uid in lost:
            del job.callers[uid]
            job.agents.pop(uid, None)
            job.heard.pop(uid, None)
            job.shares.pop(uid, None)

    def _take_state(self, caller: Caller, key: JobKey, job: _Job, report: StateReport) -> None:
        before = job.agents.get(caller.pod_uid)
        if before and report.round < before.round:
            return  # overtaken on its way by a newer one
        now = Agent(
            caller.pod_uid,
            report.state,
            report.round,
            report.ports,
            since=self._clock(),
            failure=report.failure,
            in_place=report.in_place,
            formed=report.formed,
            stalled=report.stalled,
            stalled_since=self._clock() if report.stalled else None,
        )
        if before and (before.state, before.round) == (now.state, now.round):
            now = replace(now, since=before.since)
        if before and before.stalled == now.stalled:
            now = replace(now, stalled_since=before.stalled_since)
        if now != before:
            job.agents[caller.pod_uid] = now
            self._wake(key)

    def _take_progress(self, key: JobKey, job: _Job, report: ProgressReport) -> None:
        if report.round < job.oldest_round():
            return
        job.progress = report
        loop = asyncio.get_running_loop()
        due = job.progress_told + self._progress_seconds
        if job.progress_timer is None:
            job.progress_timer = loop.call_at(max(due, loop.time()), self._tell_progress, key, job)

    def _tell_progress(self, key: JobKey, job: _Job) -> None:
        job.progress_timer = None
        job.progress_told = asyncio.get_running_loop().time()
        self._wake(key)

    def _take_checkpoint(self, key: JobKey, job: _Job, report: CheckpointReport) -> None:
        if report.round < job.oldest_round():
            return
        before = job.checkpoint
        if before and (before.round, before.step, before.path) == (report.round, report.step, report.path):
            return
        job.checkpoint = report
        self._wake(key)
