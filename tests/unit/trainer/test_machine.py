"""The agent's decisions, row by row: state and event, then state and effects."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from elastrain_trainer.agent.machine import (
    Event,
    Exit,
    Kill,
    Mode,
    Start,
    State,
    Stop,
    Tell,
    Terminated,
    WorkersEnded,
    step,
)
from elastrain_trainer.agent.protocol import Done, Endpoint, Failure, Leave, ProtocolError, Round, parse

GOLDEN = Path(__file__).parents[2] / "golden/protocol"
FAILURE = Failure("WorkerFailed", "ValueError", "2026-01-01T00:00:00Z", 1, 1)
LEAVE = Leave("fewer nodes")


def told(number: int) -> Round:
    return Round(number, "Start", f"uid-{number}", 1, 2, 0, Endpoint("host", 1), Endpoint("host", 2))


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
    events: list[Event] = [told(1), told(2), LEAVE, Done(True, ""), WorkersEnded(), WorkersEnded(FAILURE),
                           Terminated()]  # fmt: skip
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
    newcomers = parse(golden("round-with-newcomers.json"), "sft-3-0")
    assert newcomers == Round(
        4,
        "Scaled",
        "0d5e7d0c-6a3b-4f53-9d6e-5f0c7b1a2e11-4",
        8,
        2,
        1,
        Endpoint("sft-2-0.sft.default.svc", 39001),
        Endpoint("sft-0-0.sft.default.svc", 41236),
    )


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
