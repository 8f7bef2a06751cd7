"""The CRD on a real API server: what it accepts, what it refuses, and with which words."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.requests import ROOT, Refused, Requests, connect
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import BenchError
from tests.cluster.bench.process import wait_for
from tests.unit.api.cases import CASES, Case, manifest, template, trainer

from elastrain.api import (
    CheckpointStatus,
    Condition,
    ConditionType,
    FailureCounts,
    Goodput,
    LastFailure,
    LostSeconds,
    NodeCounts,
    NodeStrikes,
    Phase,
    Progress,
    Reason,
    RoundStatus,
    TrainJob,
    TrainJobStatus,
)
from elastrain.api.crd import crd

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]  # the first one builds an API server

CRDS = Path(__file__).parents[2] / "crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def api(apiserver: ControlPlane) -> Iterator[Requests]:
    with connect(apiserver) as requests:
        yield requests


def apply(server: ControlPlane, namespace: str, body: dict[str, Any]) -> str:
    return server.kubectl("apply", "-n", namespace, "-f", "-", input_text=json.dumps(body))


def test_the_crd_is_structural_and_served(api: Requests) -> None:
    conditions = {
        c["type"]: c["status"] for c in api("GET", f"{DEFINITIONS}/trainjobs.elastrain.dev")["status"]["conditions"]
    }
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_the_file_is_accepted_again_unchanged(apiserver: ControlPlane) -> None:
    assert apiserver.kubectl("apply", "-f", str(CRDS)).endswith("trainjobs.elastrain.dev unchanged\n")


def test_it_is_made_without_warnings(api: Requests) -> None:
    definition = crd()
    definition["metadata"]["name"] = "trainjobs.warnings.test"
    definition["spec"]["group"] = "warnings.test"
    api("POST", f"{DEFINITIONS}?dryRun=All&fieldValidation=Strict", definition)
    assert api.warnings == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_accepted_and_refused(api: Requests, case: Case) -> None:
    api.try_out(case.good)
    with pytest.raises(Refused) as refusal:
        api.try_out(case.bad)
    assert case.says in str(refusal.value)
    assert case.where in str(refusal.value)


def test_kubectl_shows_the_refusal(apiserver: ControlPlane, namespace: str) -> None:
    for bad, says in (
        (manifest(nodes=2, minNodes=3), "spec.minNodes: Invalid value: spec.minNodes: 3 is more than spec.nodes: 2;"),
        (manifest(nodez=2), 'strict decoding error: unknown field "spec.nodez"'),
        (manifest(nodes=0), "spec.nodes in body should be greater than or equal to 1"),
    ):
        with pytest.raises(BenchError) as refusal:
            apply(apiserver, namespace, bad)
        assert says in str(refusal.value)


def test_defaults_are_those_of_the_models(api: Requests) -> None:
    stored = api.try_out(manifest())
    assert stored["spec"] == {
        "nodes": 1,
        "nodeMultiple": 1,
        "procsPerNode": "auto",
        "template": manifest()["spec"]["template"],
        "scaling": {"mode": "Auto", "settleSeconds": 2, "leaveSeconds": 120},
        "failurePolicy": {
            "maxFailures": 3,
            "backoffSeconds": 1,
            "maxBackoffSeconds": 300,
            "fatalExitCodes": [],
            "freeExitCodes": [],
            "nodeLossSeconds": 15,
            "hangSeconds": "auto",
            "nodeStrikes": 2,
        },
        "spares": 0,
        "suspend": False,
        "cleanPodPolicy": "Running",
        "scheduling": {"gang": "Auto"},
    }
    assert TrainJob.model_validate(stored).spec == TrainJob.model_validate(manifest()).spec


def test_a_part_of_a_policy_keeps_the_other_defaults(api: Requests) -> None:
    policy = api.try_out(manifest(failurePolicy={"maxFailures": 0}))["spec"]["failurePolicy"]
    assert (policy["maxFailures"], policy["maxBackoffSeconds"], policy["freeExitCodes"]) == (0, 300, [])


EVERYTHING: dict[str, Any] = {
    "nodes": 4,
    "minNodes": 2,
    "maxNodes": 8,
    "nodeMultiple": 2,
    "procsPerNode": 8,
    "template": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x" * 5000}},
        "spec": {
            "nodeSelector": {"zone": "b"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 3}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                    }
                }
            },
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
            "hostNetwork": False,
            "restartPolicy": "Never",
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
            ],
            "initContainers": [{"name": "fetch", "image": "y", "command": ["sh", "-c", "true"]}],
            "containers": [
                {
                    "name": "trainer",
                    "image": "x",
                    "args": ["train.py", "--steps", "3"],
                    "env": [
                        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "A", "value": ""},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
                    ],
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a", "readOnly": True}],
                    "resources": {
                        "limits": {"nvidia.com/gpu": 8, "memory": "1Ti"},
                        "requests": {"cpu": "1500m"},
                        "claims": [{"name": "nic", "request": "one"}],
                    },
                    "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
                    "tty": True,
                },
                {"name": "logger", "image": "y", "env": [{"name": "RANK"}], "ports": [{"containerPort": 80}]},
            ],
            "afieldofalaterrelease": {"deep": [{"er": 1.5}]},
        },
    },
    "globalBatchSize": 512,
    "checkpoint": {"path": "/data/checkpoints", "everySeconds": 600, "everySteps": 100, "keep": 3},
    "scaling": {"mode": "Restart", "settleSeconds": 0, "leaveSeconds": 60},
    "failurePolicy": {
        "maxFailures": 5,
        "windowSeconds": 3600,
        "backoffSeconds": 2,
        "maxBackoffSeconds": 60,
        "fatalExitCodes": [3],
        "freeExitCodes": [137],
        "nodeLossSeconds": 30,
        "hangSeconds": 600,
        "nodeStrikes": 3,
    },
    "spares": 1,
    "suspend": True,
    "activeDeadlineSeconds": 86400,
    "startTimeoutSeconds": 3600,
    "ttlSecondsAfterFinished": 0,
    "cleanPodPolicy": "All",
    "managedBy": "elastrain.dev/operator",
    "scheduling": {"gang": "None"},
}


def test_every_field_is_kept_as_it_is(api: Requests) -> None:
    fields = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert EVERYTHING.keys() == fields.keys()
    spec = copy.deepcopy(EVERYTHING)
    stored = api.try_out(manifest(**spec))["spec"]
    assert stored == EVERYTHING
    assert TrainJob.model_validate(manifest(**spec)).spec.to_json() == EVERYTHING


def test_a_plain_apply_keeps_the_template(apiserver: ControlPlane, namespace: str) -> None:
    apply(apiserver, namespace, manifest(**EVERYTHING))
    spec = json.loads(apiserver.kubectl("get", "-n", namespace, "tj/job", "-o", "json"))["spec"]
    assert spec["template"] == EVERYTHING["template"]
    assert apply(apiserver, namespace, manifest(**EVERYTHING)) == "trainjob.elastrain.dev/job unchanged\n"


def test_nulls_are_taken_for_absent(api: Requests) -> None:
    job = template(trainer(env=None, args=None, resources=None))
    job["spec"].update(minNodes=None, checkpoint=None, scaling=None)
    spec = api.try_out(job)["spec"]
    assert "minNodes" not in spec
    assert "checkpoint" not in spec
    assert spec["scaling"]["mode"] == "Auto"
    TrainJob.model_validate(manifest(**spec))


@pytest.mark.parametrize(
    ("before", "after"),
    [("other.dev/x", "another.dev/y"), (None, "other.dev/x"), ("other.dev/x", None), (None, "elastrain.dev/operator")],
)
def test_managed_by_is_immutable(api: Requests, namespace: str, before: str | None, after: str | None) -> None:
    api("POST", f"{ROOT}/{namespace}/trainjobs", manifest(**({"managedBy": before} if before else {})))
    with pytest.raises(Refused, match=r"spec\.managedBy cannot be set, changed or removed later; delete the job"):
        api.merge("job", {"spec": {"managedBy": after}}, namespace)
    api.merge("job", {"spec": {"managedBy": before, "nodes": 2}}, namespace)


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STATUS = TrainJobStatus(
    observed_generation=3,
    phase=Phase.RUNNING,
    conditions=(
        *(
            Condition(
                type=type_,
                status="False",
                reason=Reason.NOT_FINISHED,
                observed_generation=3,
                last_transition_time=WHEN,
            )
            for type_ in ConditionType
            if type_ is not ConditionType.RUNNING
        ),
        Condition(
            type=ConditionType.RUNNING,
            status="True",
            reason=Reason.TRAINING,
            message="round 7 trains",
            observed_generation=3,
            last_transition_time=WHEN.replace(microsecond=0),
        ),
    ),
    replicas=4,
    selector="elastrain.dev/job=job",
    nodes=NodeCounts(wanted=4, ready=4, training=3, summary="3/4"),
    round=RoundStatus(
        number=7,
        reason="PodLost",
        members=("job-0-0", "job-1-2"),
        world_size=16,
        start_time=WHEN,
        rendezvous_port=29400,
        store_port=65535,
    ),
    failures=FailureCounts(
        counted=1, free=2, strikes=(NodeStrikes(node="n1", count=2), NodeStrikes(node="n2", count=1))
    ),
    last_failure=LastFailure(
        time=WHEN, round=6, pod="job-1-1", node="n1", rank=9, reason="Error", exit_code=-9, message="ValueError: \u00e4"
    ),
    progress=Progress(
        step=120,
        total_steps=1000,
        epoch=0.25,
        percent=12,
        samples_per_second=813.5,
        estimated_seconds_remaining=55,
        metrics={"loss": "2.31"},
        time=WHEN,
    ),
    checkpoint=CheckpointStatus(step=100, path="/data/checkpoints/100", time=WHEN),
    goodput=Goodput(
        productive_seconds=97.25,
        lost_seconds=LostSeconds(
            starting=1.5, scaling=0.5, recovering=0.25, redone=0.25, checkpointing=0.125, waiting=1
        ),
        ratio=0.97,
        time=WHEN,
    ),
    start_time=WHEN,
    completion_time=WHEN,
)


def test_the_status_comes_back_as_it_was_written(api: Requests, namespace: str) -> None:
    fields = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert STATUS.to_json().keys() == fields.keys()
    api("POST", f"{ROOT}/{namespace}/trainjobs", manifest(nodes=4))
    stored = api.merge("job", {"status": STATUS.to_json()}, namespace, "/status")
    assert stored["status"] == STATUS.to_json()
    assert TrainJob.model_validate(stored).status == STATUS
    # Nobody but the operator writes it.
    assert (
        api.merge("job", {"spec": {"nodes": 5}, "status": {"phase": "Failed"}}, namespace)["status"]["phase"]
        == "Running"
    )


def test_a_round_of_the_largest_job_fits(api: Requests, namespace: str) -> None:
    name = "x" * 52
    members = tuple(f"{name}-{index}-99999" for index in range(5000))
    api("POST", f"{ROOT}/{namespace}/trainjobs", manifest(name, nodes=5000))
    status = TrainJobStatus(round=RoundStatus(number=1, members=members))
    stored = api.merge(name, {"status": status.to_json()}, namespace, "/status")
    assert TrainJob.model_validate(stored).status.round == status.round


def test_scaling_by_kubectl(apiserver: ControlPlane, api: Requests, namespace: str) -> None:
    api("POST", f"{ROOT}/{namespace}/trainjobs", manifest(nodes=2, minNodes=2, maxNodes=4))
    api.merge("job", {"status": STATUS.to_json()}, namespace, "/status")
    apiserver.kubectl("scale", "-n", namespace, "trainjob/job", "--replicas=4")
    scale = api("GET", f"{ROOT}/{namespace}/trainjobs/job/scale")
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 4, "selector": "elastrain.dev/job=job"}
    for replicas, says in (
        (5, "spec.nodes: 5 is more than spec.maxNodes: 4; lower nodes or raise maxNodes"),
        (1, "spec.minNodes: 2 is more than spec.nodes: 1; lower minNodes or raise nodes"),
    ):
        with pytest.raises(BenchError) as refusal:
            apiserver.kubectl("scale", "-n", namespace, "trainjob/job", f"--replicas={replicas}")
        assert says in str(refusal.value)


def test_columns_and_selectors_of_kubectl(apiserver: ControlPlane, api: Requests, namespace: str) -> None:
    for name in ("job", "new"):
        api("POST", f"{ROOT}/{namespace}/trainjobs", manifest(name, nodes=4))
    api.merge("job", {"status": STATUS.to_json()}, namespace, "/status")
    header, row, new = apiserver.kubectl("get", "-n", namespace, "elastrain", "-o", "wide").splitlines()
    assert header.split() == [
        "NAME", "PHASE", "NODES", "ROUND", "STEP", "PROGRESS", "RESTARTS", "AGE", "GOODPUT", "MESSAGE",
    ]  # fmt: skip
    cells = row.split()
    assert cells[:7] == ["job", "Running", "3/4", "7", "120", "12", "1"]
    assert cells[8:] == ["0.97", "round", "7", "trains"]
    assert new.split()[0] == "new"
    narrow = apiserver.kubectl("get", "-n", namespace, "tj", "--field-selector=status.phase=Running").splitlines()
    assert [line.split()[0] for line in narrow] == ["NAME", "job"]
    assert narrow[0].split()[-1] == "AGE"
    awake = apiserver.kubectl("get", "-n", namespace, "tj", "--field-selector=spec.suspend=false", "-o", "name")
    assert awake.split() == ["trainjob.elastrain.dev/job", "trainjob.elastrain.dev/new"]


def test_a_job_from_before_a_rule_can_still_be_written(apiserver: ControlPlane, api: Requests, namespace: str) -> None:
    definition = crd()
    definition["metadata"]["name"] = "trainjobs.ratchet.test"
    definition["spec"]["group"] = "ratchet.test"
    definition["spec"]["names"].pop("shortNames")
    ruled = copy.deepcopy(definition)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["x-kubernetes-validations"]
    spec["properties"]["nodes"]["maximum"] = 10_000
    apiserver.kubectl("create", "-f", "-", input_text=json.dumps(definition))
    try:
        apiserver.kubectl("wait", "--for=condition=Established", "crd/trainjobs.ratchet.test", "--timeout=30s")
        jobs = f"/apis/ratchet.test/v1alpha1/namespaces/{namespace}/trainjobs"
        old = {**manifest(nodes=6000, minNodes=7), "apiVersion": "ratchet.test/v1alpha1"}
        api("POST", jobs, {**old, "spec": {**old["spec"], "maxNodes": 3}})
        apiserver.kubectl("replace", "-f", "-", input_text=json.dumps(ruled))
        probe = {**old, "metadata": {"name": "probe"}}

        def is_refused() -> bool:
            try:
                api("POST", f"{jobs}?dryRun=All", probe)
            except Refused:
                return True
            return False

        wait_for(is_refused, 30, "the new rules to be served")
        stored = api("PATCH", f"{jobs}/job/status", {"status": {"phase": "Running"}}, "application/merge-patch+json")
        assert stored["status"]["phase"] == "Running"
    finally:
        apiserver.kubectl("delete", "crd", "trainjobs.ratchet.test", "--wait=false")
