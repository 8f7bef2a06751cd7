"""What an agent does next: a pure function from its state and what happened to its new state and the effects.

The main loop (`main`) feeds events and carries effects out. An agent acts only for the highest round it has
heard of; what was asked of it (leave, another round) waits until its workers have ended, or until they have gone
into the round in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from elastrain_trainer.agent.protocol import Done, Failure, Leave, Round


class Mode(StrEnum):
    """The states of docs/protocol.md."""

    READY = "ready"
    RUNNING = "running"
    FAILED = "failed"
    FINISHED = "finished"
    LEFT = "left"


class ExitCode:
    """How the agent ends."""

    OK = 0
    USER_ERROR = 81
    RETRY = 82
    NODE_FAULT = 83
    HANG = 84


@dataclass(frozen=True)
class Sessions:
    """What the sessions of this pod's workers say together; also the event that they say something new."""

    open: bool = False  # whether every worker has one, and can go on into the next round
    formed: int = 0  # the newest round that trains, or trained, in place
    stalled: int = 0  # the round whose group is broken while they wait for the next; 0: none


@dataclass(frozen=True)
class State:
    """All that an agent knows of its own doing."""

    mode: Mode = Mode.READY
    round: int = 0  # the highest round that it acted for
    workers: bool = False  # whether any worker may be alive
    stopping: bool = False  # whether they were asked to end
    next: Round | None = None  # what to start when they have
    leaving: Done | Leave | None = None  # why to exit when they have
    departing: bool = False  # whether they end by themselves once the round is complete, and then the pod
    terminated: bool = False  # whether the pod was sent SIGTERM while they could leave with a round
    sessions: Sessions = Sessions()
    failure: Failure | None = None

    @property
    def going(self) -> bool:
        """Whether this pod is to end however its workers do."""
        return bool(self.leaving) or self.departing or self.terminated


@dataclass(frozen=True)
class WorkersEnded:
    """All workers of this pod have ended; `failure` is None if all of them ended with 0."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Terminated:
    """The agent was sent SIGTERM or SIGINT."""


@dataclass(frozen=True)
class GraceOver:
    """No round without this pod came in time after SIGTERM."""


Event = Round | Leave | Done | Sessions | WorkersEnded | Terminated | GraceOver


@dataclass(frozen=True)
class Start:
    """Start the workers of a round."""

    round: Round


@dataclass(frozen=True)
class Regroup:
    """Tell the sessions of the workers of a round: they go on into it, or end once it is complete."""

    round: Round


@dataclass(frozen=True)
class Grace:
    """Wait for a round without this pod, not for long; then comes `GraceOver`."""


@dataclass(frozen=True)
class Stop:
    """Ask the workers to end; those that do not in time are killed."""


@dataclass(frozen=True)
class Kill:
    """Kill all workers now."""


@dataclass(frozen=True)
class Tell:
    """Report the state to the coordinator."""


@dataclass(frozen=True)
class Exit:
    """End the agent."""

    code: int
    outcome: str
    failure: Failure | None = None


Effect = Start | Regroup | Grace | Stop | Kill | Tell | Exit


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Return what follows from one event.

    Args:
        state: what the agent knows.
        event: what happened.

    Returns:
        The new state, and what to do, in this order.

    """
    match event:
        case Round():
            return _told_round(state, event)
        case Leave() | Done():
            return _told_to_go(state, event)
        case Sessions():
            if event == state.sessions or not state.workers:
                return state, ()
            return replace(state, sessions=event), (Tell(),)
        case Terminated():
            return _terminated(state)
        case GraceOver():
            return _told_to_go(state, _DELETED) if state.terminated and not state.leaving else (state, ())
        case WorkersEnded():
            return _ended(state, event)


_DELETED = Leave("the pod is being deleted")
_WITHOUT = Failure("WorkerFailed", "the workers cannot go on in place: they have no open session", "")


def _told_round(state: State, told: Round) -> tuple[State, tuple[Effect, ...]]:
    newest = max(state.round, state.next.number if state.next else 0)
    if told.number <= newest or state.leaving:
        return state, ()
    if not told.joins:
        return _told_to_go_on(state, told)
    if state.terminated:
        return state, ()
    if not state.workers:
        return _start(told)
    if state.stopping:
        return replace(state, next=told), ()
    return replace(state, stopping=True, next=told), (Stop(),)


def _told_to_go_on(state: State, told: Round) -> tuple[State, tuple[Effect, ...]]:
    """Go into the round in place; workers that cannot are ended, which the round will hear as their failure."""
    if state.workers and state.sessions.open and not state.stopping:
        return replace(state, round=told.number, departing=told.leaves), (Regroup(told), Tell())
    if told.leaves:
        return _told_to_go(state, Leave(told.reason))
    if not state.workers and state.mode is Mode.FINISHED:
        return replace(state, round=told.number), (Tell(),)  # there was nothing left to do in the round before
    if not state.workers:
        return replace(state, mode=Mode.FAILED, round=told.number, failure=state.failure or _WITHOUT), (Tell(),)
    effects = () if state.stopping else (Stop(),)
    return replace(state, round=told.number, stopping=True, next=None), effects


def _terminated(state: State) -> tuple[State, tuple[Effect, ...]]:
    if state.stopping and state.leaving:
        return state, (Kill(),)
    if state.workers and state.sessions.open and not (state.stopping or state.terminated):
        return replace(state, terminated=True), (Tell(), Grace())
    return _told_to_go(state, _DELETED)


def _told_to_go(state: State, why: Leave | Done) -> tuple[State, tuple[Effect, ...]]:
    if not state.workers:
        return _exit(replace(state, leaving=why))
    if state.stopping:
        return replace(state, leaving=why, next=None), ()
    return replace(state, leaving=why, next=None, stopping=True), (Stop(),)


def _ended(state: State, event: WorkersEnded) -> tuple[State, tuple[Effect, ...]]:
    idle = replace(state, workers=False, stopping=False, sessions=Sessions())
    if state.going:
        return _exit(replace(idle, leaving=state.leaving or _DELETED))
    if state.next:
        return _start(state.next)
    failure = event.failure or (_WITHOUT if state.stopping else None)
    if failure:
        return replace(idle, mode=Mode.FAILED, failure=failure), (Tell(),)
    return replace(idle, mode=Mode.FINISHED), (Tell(),)


def _start(told: Round) -> tuple[State, tuple[Effect, ...]]:
    running = State(mode=Mode.RUNNING, round=told.number, workers=True)
    return running, (Start(told), Tell())


def _exit(state: State) -> tuple[State, tuple[Effect, ...]]:
    gone = replace(state, mode=Mode.LEFT)
    if isinstance(state.leaving, Done):
        if state.leaving.complete:
            return gone, (Exit(ExitCode.OK, "finished"),)
        if state.failure:
            return gone, (Exit(ExitCode.USER_ERROR, "userError", state.failure),)
        return gone, (Exit(ExitCode.OK, "left"),)
    return gone, (Tell(), Exit(ExitCode.OK, "left"))
