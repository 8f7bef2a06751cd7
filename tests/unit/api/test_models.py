"""The models: defaults, derived values, and a faithful way to JSON and back."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.property.world import manifest

from elastrain.api import Condition, Goodput, Phase, TrainJob, TrainJobStatus, unsupported
from elastrain.api.unsupported import FIELDS


def job(**spec: object) -> TrainJob:
    return TrainJob.model_validate(manifest(**spec))


def test_defaults() -> None:
    spec = job().spec
    assert (spec.nodes, spec.effective_min_nodes, spec.node_multiple, spec.spares) == (1, 1, 1, 0)
    assert spec.failure_policy.max_failures == 3
    assert spec.scaling.leave_seconds == 120
    assert spec.clean_pod_policy == "Running"


def test_min_nodes_follows_nodes() -> None:
    assert job(nodes=7).spec.effective_min_nodes == 7
    assert job(nodes=7, minNodes=2).spec.effective_min_nodes == 2


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({}, 1),
        ({"limits": {"nvidia.com/gpu": 8}}, 8),
        ({"limits": {"nvidia.com/gpu": "4", "cpu": "64"}}, 4),
        ({"requests": {"amd.com/gpu": 2}}, 2),
        ({"requests": {"cpu": 3, "memory": "4Gi"}}, 1),
        ({"limits": {"google.com/tpu": 4}, "requests": {"google.com/tpu": 4}}, 4),
        ({"limits": {"example.com/gpu": "8000m"}}, 8),
        ({"limits": {"aws.amazon.com/neuron": 2, "vpc.amazonaws.com/efa": 4}}, 2),
        ({"limits": {"habana.ai/gaudi": 8}}, 8),
        ({"limits": {"gpu.intel.com/xe": 2}, "requests": None, "claims": [{"name": "a"}]}, 2),
        ({"limits": {"nvidia.com/gpu": "many"}}, 1),
        ({"limits": {"nvidia.com/gpu": 0}}, 1),
    ],
)
def test_processes_follow_the_accelerators(resources: dict[str, object], count: int) -> None:
    container = {"name": "trainer", "image": "x", "resources": resources}
    assert job(template={"spec": {"containers": [container]}}).spec.processes_per_node == count
    assert job(template={"spec": {"containers": [container]}}, procsPerNode=3).spec.processes_per_node == 3


def test_template_is_kept_as_it_is() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {}},
        "spec": {
            "containers": [{"name": "trainer", "image": "x", "env": [{"name": "A", "value": "1"}], "tty": True}],
            "nodeSelector": {"zone": "b"},
            "tolerations": [{"operator": "Exists"}],
        },
    }
    assert job(template=template).spec.template.to_json() == template


def test_status_survives_the_way_to_json_and_back() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    status = TrainJobStatus(
        phase=Phase.RUNNING,
        conditions=(Condition(type="Running", status="True", reason="Training", last_transition_time=when),),
        goodput=Goodput(productive_seconds=1.25, time=when),
        start_time=when.replace(microsecond=0),
    )
    wire = status.to_json()
    assert wire["startTime"] == "2026-01-02T03:04:05Z"
    assert wire["goodput"]["time"] == "2026-01-02T03:04:05.678901Z"
    assert "lastFailure" not in wire
    assert TrainJobStatus.model_validate(wire) == status


def test_a_status_of_a_newer_release_can_be_read() -> None:
    old = {"type": "Running", "status": "True", "reason": "Training"}
    status = TrainJobStatus.model_validate(
        {
            "phase": "Hibernating",
            "conditions": [{**old, "type": "Hibernated"}, {**old, "type": "Degraded", "reason": "Snow"}, old],
            "round": {"number": 7, "members": ["job-0-0"], "newField": 1},
        }
    )
    assert status.phase is None
    assert [c.type for c in status.conditions] == ["Running"]
    assert status.round is not None
    assert status.round.number == 7


WITHOUT_EFFECT = {
    "spec.spares": {"spares": 2},
    "spec.scheduling.gang": {"scheduling": {"gang": "Volcano"}},
    "spec.failurePolicy.hangSeconds": {"failurePolicy": {"hangSeconds": 60}},
    "spec.failurePolicy.nodeStrikes": {"failurePolicy": {"nodeStrikes": 1}},
    "spec.globalBatchSize": {"globalBatchSize": 64},
    "spec.checkpoint.everySeconds": {"checkpoint": {"path": "/a", "everySeconds": 60}},
    "spec.checkpoint.everySteps": {"checkpoint": {"path": "/a", "everySteps": 60}},
}


@pytest.mark.parametrize(("field", "spec"), WITHOUT_EFFECT.items())
def test_a_field_without_effect_is_named(field: str, spec: dict[str, object]) -> None:
    (sentence,) = unsupported(job(**spec).spec)
    assert sentence.startswith(f"{field} is set and has no effect yet: ")


def test_nothing_is_said_of_fields_that_have_an_effect() -> None:
    assert WITHOUT_EFFECT.keys() == {field for field, _, _ in FIELDS}
    for spec in (
        {},
        {"checkpoint": {"path": "/a", "keep": 3}, "scaling": {"mode": "Restart", "settleSeconds": 9}},
        {"failurePolicy": {"nodeLossSeconds": 60, "hangSeconds": "auto", "nodeStrikes": 2}},
        {"scheduling": {"gang": "None"}, "nodeMultiple": 1, "suspend": True},
        {"scaling": {"mode": "InPlace"}},
    ):
        assert unsupported(job(**spec).spec) == ()


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = "import sys, elastrain.cli; print(sorted({'kubernetes', 'kopf', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env={"PYTHONPATH": "operator"}) == "[]\n"
