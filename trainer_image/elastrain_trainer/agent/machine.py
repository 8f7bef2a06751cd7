"""What an agent does next: a pure function from its state and what happened to its new state and the effects.

The main loop (`main`) feeds events and carries effects out. An agent acts only for the highest round it has
heard of; what was asked of it (leave, another round) waits until its workers have ended.
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
class State:
    """All that an agent knows of its own doing."""

    mode: Mode = Mode.READY
    round: int = 0  # the highest round that it acted for
    workers: bool = False  # whether any worker may be alive
    stopping: bool = False  # whether they were asked to end
    next: Round | None = None  # what to start when they have
    leaving: Done | Leave | None = None  # why to exit when they have
    failure: Failure | None = None


@dataclass(frozen=True)
class WorkersEnded:
    """All workers of this pod have ended; `failure` is None if all of them ended with 0."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Terminated:
    """The agent was sent SIGTERM or SIGINT."""


Event = Round | Leave | Done | WorkersEnded | Terminated


@dataclass(frozen=True)
class Start:
    """Start the workers of a round."""

    round: Round


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


Effect = Start | Stop | Kill | Tell | Exit


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
        case Terminated():
            if state.stopping and state.leaving:
                return state, (Kill(),)
            return _told_to_go(state, Leave("the pod is being deleted"))
        case WorkersEnded():
            return _ended(state, event)


def _told_round(state: State, told: Round) -> tuple[State, tuple[Effect, ...]]:
    newest = max(state.round, state.next.number if state.next else 0)
    if told.number <= newest or state.leaving:
        return state, ()
    if not state.workers:
        return _start(told)
    if state.stopping:
        return replace(state, next=told), ()
    return replace(state, stopping=True, next=told), (Stop(),)


def _told_to_go(state: State, why: Leave | Done) -> tuple[State, tuple[Effect, ...]]:
    if not state.workers:
        return _exit(replace(state, leaving=why))
    if state.stopping:
        return replace(state, leaving=why, next=None), ()
    return replace(state, leaving=why, next=None, stopping=True), (Stop(),)


def _ended(state: State, event: WorkersEnded) -> tuple[State, tuple[Effect, ...]]:
    idle = replace(state, workers=False, stopping=False)
    if state.leaving:
        return _exit(idle)
    if state.next:
        return _start(state.next)
    if event.failure:
        return replace(idle, mode=Mode.FAILED, failure=event.failure), (Tell(),)
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
