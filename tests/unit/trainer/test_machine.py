"""The agent's decisions, row by row: state and event, then state and effects."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from elastrain_trainer.agent.machine import (
    Event,
    Exit,
    Grace,
    GraceOver,
    Kill,
    Mode,
    Regroup,
    Sessions,
    Start,
    State,
    Stop,
    Tell,
    Terminated,
    WorkersEnded,
    step,
)
from elastrain_trainer.agent.protocol import (
    Done,
    Endpoint,
    Failure,
    Leave,
    Member,
    ProtocolError,
    Round,
    parse,
    parse_round,
)

GOLDEN = Path(__file__).parents[2] / "golden/protocol"
FAILURE = Failure("WorkerFailed", "ValueError", "2026-01-01T00:00:00Z", 1, 1)
LEAVE = Leave("fewer nodes")


def told(number: int, members: str = "a+ b+", leavers: str = "", pod: str = "a") -> Round:
    """Return a round; a plus marks those members that join."""
    who = tuple(Member(name.rstrip("+"), name.endswith("+")) for name in members.split())
    endpoints = Endpoint("host", 1), Endpoint("host", 2)
    return Round(pod, number, "Start", f"uid-{number}", 1, who, tuple(leavers.split()), *endpoints)


READY = State()
RUNNING = State(Mode.RUNNING, round=3, workers=True)
DONE = State(Mode.FINISHED, round=3)
FAILED = State(Mode.FAILED, round=3, failure=FAILURE)
STOPPING = State(Mode.RUNNING, round=3, workers=True, stopping=True, next=told(4))

ROWS = [
    (READY, told(1), State(Mode.RUNNING, 1, workers=True), (Start(told(1)), Tell())),
    (READY, LEAVE, State(Mode.LEFT, leaving=LEAVE), (Tell(), Exit(0, "left"))),
    (RUNNING, told(3), RUNNING, ()),
    (RUNNING, told(2), RUNNING, ()),
    (RUNNING, told(4), STOPPING, (Stop(),)),
    (STOPPING, told(4), STOPPING, ()),
    (STOPPING, WorkersEnded(FAILURE), State(Mode.RUNNING, 4, workers=True), (Start(told(4)), Tell())),
    (RUNNING, WorkersEnded(FAILURE), FAILED, (Tell(),)),
    (RUNNING, WorkersEnded(), DONE, (Tell(),)),
    (FAILED, told(4), State(Mode.RUNNING, 4, workers=True), (Start(told(4)), Tell())),
    (DONE, told(4), State(Mode.RUNNING, 4, workers=True), (Start(told(4)), Tell())),
]


@pytest.mark.parametrize(("state", "event", "after", "effects"), ROWS)
def test_step(state: State, event: Event, after: State, effects: tuple[object, ...]) -> None:
    assert step(state, event) == (after, effects)


OPEN = Sessions(True, formed=3)
IN_PLACE = State(Mode.RUNNING, round=3, workers=True, sessions=OPEN)
CONTINUED = told(4, "a b+")
WITHOUT_A = told(4, "b", leavers="a")


def test_workers_with_open_sessions_go_on_in_place() -> None:
    assert step(RUNNING, OPEN) == (IN_PLACE, (Tell(),))
    assert step(IN_PLACE, OPEN) == (IN_PLACE, ())
    over, effects = step(IN_PLACE, CONTINUED)
    assert (over.mode, over.round, effects) == (Mode.RUNNING, 4, (Regroup(CONTINUED), Tell()))
    assert step(over, CONTINUED) == (over, ())
    # Workers that start anew are restarted, open session or not.
    assert step(IN_PLACE, told(4, "a+ b"))[1] == (Stop(),)


def test_a_leaver_ends_well_once_its_workers_have() -> None:
    leaving, effects = step(IN_PLACE, WITHOUT_A)
    assert effects == (Regroup(WITHOUT_A), Tell())
    assert leaving.going
    assert step(leaving, WorkersEnded())[1] == (Tell(), Exit(0, "left"))
    # Wanted again before the round was complete.
    wanted, effects = step(leaving, told(5, "a b"))
    assert not wanted.going
    assert effects == (Regroup(told(5, "a b")), Tell())


def test_who_cannot_go_on_in_place_says_so_as_a_failure_of_that_round() -> None:
    failed, effects = step(FAILED, CONTINUED)
    assert (failed.mode, failed.round, failed.failure, effects) == (Mode.FAILED, 4, FAILURE, (Tell(),))
    stopping, effects = step(RUNNING, CONTINUED)
    assert effects == (Stop(),)
    failed, effects = step(stopping, WorkersEnded())
    assert (failed.mode, failed.round, effects) == (Mode.FAILED, 4, (Tell(),))
    assert failed.failure is not None
    assert "no open session" in failed.failure.message
    assert step(RUNNING, WITHOUT_A)[1] == (Stop(),)
    assert step(READY, WITHOUT_A)[1] == (Tell(), Exit(0, "left"))


def test_a_deleted_pod_waits_a_while_for_a_round_without_it() -> None:
    waiting, effects = step(IN_PLACE, Terminated())
    assert effects == (Tell(), Grace())
    assert waiting.going
    assert step(waiting, WITHOUT_A)[1] == (Regroup(WITHOUT_A), Tell())
    stopping, effects = step(waiting, GraceOver())
    assert effects == (Stop(),)
    assert step(stopping, WorkersEnded())[1] == (Tell(), Exit(0, "left"))
    assert step(step(waiting, Terminated())[0], Terminated())[1] == (Kill(),)
    assert step(waiting, WorkersEnded(FAILURE))[1] == (Tell(), Exit(0, "left"))
    assert step(RUNNING, GraceOver()) == (RUNNING, ())


@pytest.mark.parametrize(
    ("state", "done", "exit_"),
    [
        (DONE, Done(True, ""), Exit(0, "finished")),
        (FAILED, Done(False, ""), Exit(81, "userError", FAILURE)),
        (READY, Done(False, ""), Exit(0, "left")),
    ],
)
def test_the_end_of_the_job(state: State, done: Done, exit_: Exit) -> None:
    assert step(state, done)[1] == (exit_,)


@pytest.mark.parametrize("state", [RUNNING, STOPPING])
def test_leaving_waits_for_the_workers_and_a_second_signal_kills_them(state: State) -> None:
    leaving, effects = step(state, Terminated())
    assert effects == (() if state.stopping else (Stop(),))
    assert step(leaving, told(9)) == (leaving, ())
    assert step(leaving, Terminated()) == (leaving, (Kill(),))
    assert step(leaving, WorkersEnded(FAILURE))[1] == (Tell(), Exit(0, "left"))


def test_no_course_of_events_starts_workers_beside_others_or_for_an_older_round() -> None:
    rounds: list[Event] = [told(1), told(2), told(3, "a b"), told(4, "b", "a")]
    orders: list[Event] = [LEAVE, Done(True, ""), Terminated(), GraceOver()]
    events = [*rounds, *orders, Sessions(True, 1), WorkersEnded(), WorkersEnded(FAILURE)]
    for course in itertools.product(events, repeat=5):
        state, alive, newest = State(), False, 0
        for event in course:
            if isinstance(event, WorkersEnded) and not alive:
                continue
            if isinstance(event, WorkersEnded):
                alive = False
            state, effects = step(state, event)
            for effect in effects:
                if isinstance(effect, Start):
                    assert not alive
                    assert effect.round.number > newest
                    alive, newest = True, effect.round.number
                if isinstance(effect, Exit):
                    assert not alive
            assert state.workers == alive
            if any(isinstance(effect, Exit) for effect in effects):
                break


def golden(name: str) -> dict[str, object]:
    return json.loads((GOLDEN / name).read_text())  # type: ignore[no-any-return]


def test_golden_commands() -> None:
    assert isinstance(parse(golden("done-complete.json"), "x"), Done)
    assert parse(golden("done-failed.json"), "x") == Done(False, str(golden("done-failed.json")["message"]))
    assert parse(golden("leave.json"), "x") == Leave(str(golden("leave.json")["reason"]))
    newcomer = parse(golden("round-with-newcomers.json"), "sft-3-0")
    assert newcomer == Round(
        "sft-3-0",
        4,
        "Scaled",
        "0d5e7d0c-6a3b-4f53-9d6e-5f0c7b1a2e11-4",
        8,
        (Member("sft-0-0", False), Member("sft-1-1", False), Member("sft-2-0", True), Member("sft-3-0", True)),
        (),
        Endpoint("sft-2-0.sft.default.svc", 39001),
        Endpoint("sft-0-0.sft.default.svc", 41236),
    )
    assert (newcomer.nodes, newcomer.node_rank, newcomer.world_size) == (4, 3, 32)
    assert (newcomer.joining, newcomer.joins, newcomer.in_place) == (("sft-2-0", "sft-3-0"), True, True)
    assert parse_round(newcomer.to_json(), "sft-3-0") == newcomer


def test_a_round_without_this_pod_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="does not have this pod"):
        parse(golden("round-first.json"), "stranger")


@pytest.mark.parametrize("body", [{}, {"command": "dance"}, {"command": "round", "round": {}}, {"command": "done"}])
def test_garbled_commands_are_errors(body: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        parse(body, "x")


def test_golden_failure() -> None:
    body = golden("report-state-failed.json")["failure"]
    assert isinstance(body, dict)
    again = Failure(body["reason"], body["message"], body["time"], body["rank"], body["exitCode"])
    assert again.to_json() == body
