"""Golden messages are read and written as they are, anything else is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.coordination.service import GOLDEN, START, golden
from tests.unit.coordination.values import (
    AFTER_FAILURE,
    COMPLETE,
    FAILED,
    FIRST,
    LEAVE,
    WITH_NEWCOMERS,
)

from elastrain.coordination import Leave, messages
from elastrain.planning import AgentState, CheckpointReport, Ports, ProgressReport, WorkerFailure


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (FIRST, "round-first"),
        (AFTER_FAILURE, "round-after-failure"),
        (WITH_NEWCOMERS, "round-with-newcomers"),
        (Leave(LEAVE), "leave"),
        (COMPLETE, "done-complete"),
        (FAILED, "done-failed"),
    ],
)
def test_commands_are_the_golden_ones(told: Any, name: str) -> None:
    assert messages.command(told) == golden(name)


@pytest.mark.parametrize(
    ("name", "state", "round_", "ports", "failure"),
    [
        ("ready", AgentState.READY, 0, Ports(40001, 40002), None),
        ("ready-after-round", AgentState.READY, 2, Ports(40003, 40004), None),
        ("running", AgentState.RUNNING, 3, Ports(40005, 40006), None),
        ("finished", AgentState.FINISHED, 3, Ports(40007, 40008), None),
        ("left", AgentState.LEFT, 3, Ports(40009, 40010), None),
        (
            "failed",
            AgentState.FAILED,
            3,
            Ports(40001, 40002),
            WorkerFailure(
                "WorkerFailed",
                'ValueError: loss is NaN\nTraceback (most recent call last):\n  File "train.py", line 12, in <module>',
                datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
                rank=1,
                exit_code=1,
            ),
        ),
        (
            "failed-oom",
            AgentState.FAILED,
            3,
            Ports(40001, 40002),
            WorkerFailure(
                "OOMKilled",
                "a worker was killed: the container's memory limit was reached",
                datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC),
                rank=0,
                exit_code=-9,
            ),
        ),
        (
            "failed-rendezvous",
            AgentState.FAILED,
            3,
            Ports(40001, 40002),
            WorkerFailure(
                "RendezvousFailed",
                "no rendezvous with sft-0-0.sft.default.svc:41233 within 60 s",
                datetime(2026, 1, 31, 12, 1, tzinfo=UTC),
            ),
        ),
        (
            "failed-arguments",
            AgentState.FAILED,
            1,
            Ports(40001, 40002),
            WorkerFailure(
                "InvalidArguments",
                "train.py: no such file in /workspace",
                datetime(2026, 1, 31, 12, 0, 2, tzinfo=UTC),
            ),
        ),
    ],
)
def test_states(name: str, state: AgentState, round_: int, ports: Ports, failure: WorkerFailure | None) -> None:
    report = messages.read_report((GOLDEN / f"report-state-{name}.json").read_bytes())
    assert isinstance(report, messages.StateReport)
    assert (report.state, report.round, report.ports, report.failure) == (state, round_, ports, failure)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("progress", ProgressReport(3, START, 120, 1000, 0.4, 812.5, {"loss": "2.13"})),
        ("progress-least", ProgressReport(3, START, 0)),
        ("with-unknown-fields", ProgressReport(3, START, 7)),
        ("checkpoint", CheckpointReport(3, START, 100, "/checkpoints/step-100")),
    ],
)
def test_progress_and_checkpoints(name: str, value: ProgressReport | CheckpointReport) -> None:
    report = messages.read_report((GOLDEN / f"report-{name}.json").read_bytes())
    assert isinstance(report, messages.ProgressBody | messages.CheckpointBody)
    assert report.report(START) == value


def test_every_golden_report_is_read() -> None:
    names = sorted(path.name for path in GOLDEN.glob("report-*.json"))
    assert len(names) >= 14
    for name in names:
        messages.read_report((GOLDEN / name).read_bytes())


@pytest.mark.parametrize("case", golden("refused-reports"), ids=lambda case: case["why"])
def test_refused_reports(case: dict[str, Any]) -> None:
    with pytest.raises(messages.NotAMessage):
        messages.read_report(json.dumps(case["body"]).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b'{"version": 1, "type": "progress", "round": 1, "step": 1, "epoch": NaN}',
        b'{"version": 1, "type": "progress", "round": 1, "step": 1, "epoch": 1e999}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
    ],
    ids=["empty", "cut", "not UTF-8", "null", "NaN", "infinite", "deep list", "deep object"],
)
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(messages.NotAMessage):
        messages.read_report(body)


def test_refusals_name_the_field_and_never_the_input() -> None:
    body = golden("report-progress") | {"step": "secret-text"}
    with pytest.raises(messages.NotAMessage, match=r"step: .*send a body of docs/protocol.md") as refused:
        messages.read_report(json.dumps(body).encode())
    assert "secret-text" not in str(refused.value)


def test_what_is_too_long_is_cut_to_the_bounds_of_the_status() -> None:
    failed = golden("report-state-failed")
    failed["failure"]["message"] = "é" * 5000
    report = messages.read_report(json.dumps(failed).encode())
    assert isinstance(report, messages.StateReport)
    assert report.failure is not None
    assert report.failure.message == "é" * 1024

    many = {f"metric-{number:03}-" + "n" * 100: "9" * 500 for number in range(200)} | {"": "nameless"}
    progress = messages.read_report(json.dumps(golden("report-progress") | {"metrics": many}).encode())
    assert isinstance(progress, messages.ProgressBody)
    assert len(progress.metrics) == 64
    assert {len(name) for name in progress.metrics} == {63}
    assert set(progress.metrics.values()) == {"9" * 64}


def test_times_are_compared_in_one_zone() -> None:
    failed = golden("report-state-failed")
    failed["failure"]["time"] = "2026-01-31T14:00:00.123456+02:00"
    report = messages.read_report(json.dumps(failed).encode())
    assert isinstance(report, messages.StateReport)
    assert report.failure is not None
    assert report.failure.time.isoformat() == "2026-01-31T12:00:00.123456+00:00"


def test_kubeflow_status() -> None:
    first = messages.read_kubeflow_status((GOLDEN / "kubeflow-first.json").read_bytes())
    assert first.report(3, None, START) == ProgressReport(3, START, 0, 4)
    training = messages.read_kubeflow_status((GOLDEN / "kubeflow-training.json").read_bytes())
    assert training.report(3, None, START) == ProgressReport(3, START, 2, 4, 0.5, None, {"loss": "2.13"})


def test_kubeflow_status_without_steps_keeps_what_is_known() -> None:
    status = messages.read_kubeflow_status(b'{"trainerStatus": {"progressPercentage": 100}}')
    before = ProgressReport(3, START, 7, 10, 0.7, 5.0, {"loss": "1"})
    assert status.report(3, before, START) == ProgressReport(3, START, 7, 10, 0.7, 5.0)


@pytest.mark.parametrize("step", ["", "-1", "nan", "inf", "1e300", "many", "0x10"])
def test_kubeflow_steps_that_are_no_numbers_are_passed_over(step: str) -> None:
    body = {"trainerStatus": {"metrics": [{"name": "current_step", "value": step}]}}
    status = messages.read_kubeflow_status(json.dumps(body).encode())
    assert status.report(3, None, START) == ProgressReport(3, START, 0)
