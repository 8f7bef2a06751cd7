"""From pods as the API server has them to what the planner is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.faults import objects

from elastrain.kubernetes.cache import Key, Owner
from elastrain.kubernetes.manifests import digest_of
from elastrain.kubernetes.observe import owner_of, pod_entry, pod_of, service_entry
from elastrain.planning import Exit, Obstacle, Pod, PodPhase

Json = dict[str, Any]
TIME = "2026-01-31T12:00:00Z"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def raw(name: str = "sft-3-2", **status: Any) -> Json:
    obj = objects.pod(name, **status)
    obj["metadata"].update(uid="u1", resourceVersion="41", creationTimestamp=TIME)
    return obj


def observed(**status: Any) -> Pod:
    found = pod_of(raw(**status))
    assert found is not None
    return found


def ended(message: Any = None, *, name: str = "trainer", **state: Any) -> Json:
    text = message if isinstance(message, str) or message is None else json.dumps(message)
    known = {"exitCode": 1, "reason": "Error", "finishedAt": TIME, "message": text}
    return {"name": name, "state": {"terminated": {**known, **state}}}


def test_a_running_pod() -> None:
    assert observed(phase="Running", podIP="10.0.0.7") == Pod(
        name="sft-3-2",
        uid="u1",
        index=3,
        attempt=2,
        template_hash="h1",
        phase=PodPhase.RUNNING,
        created=NOON,
        address="10.0.0.7",
        node="node-1",
    )


@pytest.mark.parametrize(
    ("status", "obstacle"),
    [
        ({}, None),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
                ]
            },
            Obstacle("Unschedulable", "0/3 nodes fit"),
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, None),
        (
            {
                "containerStatuses": [
                    {
                        "name": "trainer",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}},
                    }
                ]
            },
            Obstacle("ImagePullBackOff", "container trainer: Back-off pulling x"),
        ),
        ({"containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, None),
        (
            {
                "initContainerStatuses": [{"name": "data", "state": {"waiting": {"reason": "ErrImagePull"}}}],
                "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            Obstacle("ErrImagePull", "container data: ErrImagePull"),
        ),
    ],
)
def test_why_a_pod_does_not_run_yet(status: Json, obstacle: Obstacle | None) -> None:
    assert observed(**status).obstacle == obstacle


def test_the_agents_last_words_are_taken() -> None:
    told = {
        "version": 1, "outcome": "userError", "round": 3, "reason": "WorkerFailed", "rank": 1, "exitCode": 7,
        "message": "ValueError: x",
    }  # fmt: skip
    found = observed(phase="Failed", containerStatuses=[ended(told, exitCode=81)])
    assert found.phase is PodPhase.FAILED
    assert found.exit == Exit(7, "WorkerFailed", "ValueError: x", NOON, outcome="userError", round=3, rank=1)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "not json",
        "[1]",
        "{",
        '{"outcome": "unheard of"}',
        '{"round": 3}',
        "null",
        '"finished"',
        '{"outcome": []}',
        "[" * 4000,
    ],
)
def test_what_is_not_the_agents_is_the_end_of_a_log(message: str) -> None:
    found = observed(phase="Failed", containerStatuses=[ended(message, exitCode=137, reason="OOMKilled")])
    assert found.exit == Exit(137, "OOMKilled", message[-1024:], NOON)


@pytest.mark.parametrize(
    "told",
    [
        {"outcome": "retry", "round": "3", "rank": None, "exitCode": "1", "message": None, "reason": 5},
        {"outcome": "retry", "round": 10**30, "exitCode": -(2**40)},
        {"outcome": "retry", "round": True, "rank": {}, "exitCode": [], "message": [], "reason": None},
    ],
)
def test_fields_of_the_wrong_type_are_unknown(told: Json) -> None:
    found = observed(phase="Failed", containerStatuses=[ended(told, exitCode=82)]).exit
    assert found is not None
    assert (found.exit_code, found.round, found.rank, found.outcome) == (82, None, None, "retry")


def test_text_that_is_no_text_can_be_written_all_the_same() -> None:
    found = observed(phase="Failed", containerStatuses=[ended('{"outcome": "hang", "message": "\\ud800!"}')]).exit
    assert found is not None
    assert found.message.encode() == b"?!"


def test_the_end_of_a_long_message_is_kept() -> None:
    found = observed(phase="Failed", containerStatuses=[ended("x" * 4000 + "the error")]).exit
    assert found is not None
    assert len(found.message) == 1024
    assert found.message.endswith("the error")


def test_a_sidecar_neither_ends_the_pod_nor_keeps_it() -> None:
    side = {"name": "proxy", "state": {"running": {}}}
    finished = ended({"outcome": "finished", "round": 1}, exitCode=0, reason="Completed")
    over = observed(phase="Running", containerStatuses=[side, finished])
    assert (over.phase, over.lingers) == (PodPhase.SUCCEEDED, True)
    assert not observed(phase="Succeeded", containerStatuses=[ended(name="proxy"), finished]).lingers
    trainer = {"name": "trainer", "state": {"running": {}}}
    found = observed(phase="Running", containerStatuses=[ended(name="proxy"), trainer])
    assert (found.phase, found.exit, found.lingers) == (PodPhase.RUNNING, None, False)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, "OutOfnvidia.com/gpu"),
        ({"phase": "Failed", "reason": "NodeAffinity"}, "NodeAffinity"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, None),
        ({"phase": "Failed"}, None),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            "PreemptionByScheduler",
        ),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "x"}]}, None),
    ],
)
def test_who_ended_the_pod(status: Json, why: str | None) -> None:
    assert observed(**status).disruption == why


def test_an_init_container_that_failed_is_the_reason() -> None:
    found = observed(
        phase="Failed",
        initContainerStatuses=[ended("no data", name="data", exitCode=2)],
        containerStatuses=[{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    ).exit
    assert found == Exit(2, "Error", "init container data: no data", NOON)


@pytest.mark.parametrize(
    "status",
    [{"phase": "Unheard"}, {"phase": None}, {"conditions": None}, {"containerStatuses": None}, {"podIP": ""}],
)
def test_odd_statuses_are_borne(status: Json) -> None:
    assert observed(**status).exit is None


@pytest.mark.parametrize("label", ["elastrain.dev/node-index", "elastrain.dev/attempt"])
@pytest.mark.parametrize("value", [None, "", "-1", "x", "1.5"])
def test_a_pod_that_lost_its_labels_is_none_of_ours(label: str, value: str | None) -> None:
    obj = raw()
    obj["metadata"]["labels"][label] = value
    assert pod_entry(obj) is None


def test_an_entry_knows_whose_it_is_and_which_certificates_it_has() -> None:
    obj = raw()
    obj["metadata"]["annotations"]["elastrain.dev/coordinator-ca"] = "pem"
    found = pod_entry(obj)
    assert found is not None
    assert (found.uid, found.version, found.owner) == ("u1", 41, Owner(Key("default", "sft"), "job-1"))
    assert found.value[1] == digest_of("pem")


@pytest.mark.parametrize(
    "references",
    [
        None,
        [],
        [objects.owner(controller=False)],
        [{**objects.owner(), "kind": "Job", "apiVersion": "batch/v1"}],
        [{**objects.owner(), "apiVersion": "trainer.kubeflow.org/v1alpha1"}],
    ],
)
def test_objects_of_others_are_not_taken(references: Any) -> None:
    obj = raw()
    obj["metadata"]["ownerReferences"] = references
    assert owner_of(obj) is None
    assert pod_entry(obj) is None


def test_a_service_that_goes_away_does_not_count() -> None:
    obj = {"metadata": {**raw()["metadata"], "name": "sft"}}
    assert service_entry(obj) is not None
    obj["metadata"]["deletionTimestamp"] = TIME
    assert service_entry(obj) is None
