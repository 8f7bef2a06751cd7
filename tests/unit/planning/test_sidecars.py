"""Pods whose trainer has ended while another container runs on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.property.world import manifest

from elastrain.api import TrainJob
from elastrain.planning import CreatePod, DeletePod, Exit, Observed, Pod, PodPhase, plan

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def job(**parts: Any) -> TrainJob:
    obj = manifest(nodes=1)
    obj["spec"].update(parts.pop("spec", {}))
    return TrainJob.model_validate({**obj, **parts})


def pod(attempt: int = 0, **parts: Any) -> Pod:
    plain = Pod(f"sft-0-{attempt}", f"uid-{attempt}", 0, attempt, "h", PodPhase.RUNNING, NOW, address="10.0.0.1")
    return replace(plain, **parts)


FAILED = Exit(1, "Error", "boom", NOW, outcome="userError", round=1)


def deletions(job: TrainJob, *pods: Pod, now: datetime = NOW) -> list[str]:
    made = plan(job, Observed(pods=pods, service_exists=True, template_hash="h"), now)
    return [action.name for action in made.actions if isinstance(action, DeletePod)]


def test_a_lingering_pod_goes_once_its_successor_is_there() -> None:
    over = pod(0, phase=PodPhase.FAILED, exit=FAILED, lingers=True)
    assert deletions(job(), over, pod(1)) == ["sft-0-0"]
    assert deletions(job(), replace(over, lingers=False), pod(1)) == []


def test_a_lingering_pod_does_not_hold_up_its_successor() -> None:
    over = pod(0, phase=PodPhase.FAILED, exit=FAILED, lingers=True)
    made = plan(job(), Observed(pods=(over,), service_exists=True, template_hash="h"), NOW + timedelta(hours=1))
    assert CreatePod(0, 1) in made.actions


@pytest.mark.parametrize(("policy", "gone"), [("Running", ["sft-0-0"]), ("All", ["sft-0-0"]), ("None", [])])
def test_a_lingering_pod_counts_as_running_when_the_job_is_over(policy: str, gone: list[str]) -> None:
    complete = {"type": "Complete", "status": "True", "reason": "Finished"}
    ended = {"conditions": [complete], "completionTime": NOW.isoformat()}
    over = pod(0, phase=PodPhase.SUCCEEDED, exit=replace(FAILED, outcome="finished"), lingers=True)
    finished = job(spec={"cleanPodPolicy": policy}, status=ended)
    assert deletions(finished, over, now=NOW + timedelta(seconds=31)) == gone
