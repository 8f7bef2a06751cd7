"""The CRD on a real API server: what it accepts, what it refuses, and with which words."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import BenchError

pytestmark = pytest.mark.apiserver


def manifest(name: str = "job", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}}
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def trainer(**more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": "x", **more}]}}


def apply(server: ControlPlane, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
    out = server.kubectl("apply", "-n", namespace, "-o", "json", "-f", "-", input_text=json.dumps(body))
    return json.loads(out)  # type: ignore[no-any-return]


def test_the_crd_is_structural_and_served(apiserver: ControlPlane) -> None:
    crd = json.loads(apiserver.kubectl("get", "crd", "trainjobs.elastrain.dev", "-o", "json"))
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


def test_defaults_are_filled_in(apiserver: ControlPlane, namespace: str) -> None:
    spec = apply(apiserver, namespace, manifest())["spec"]
    assert spec["nodes"] == 1
    assert spec["procsPerNode"] == "auto"
    assert spec["cleanPodPolicy"] == "Running"
    assert spec["scaling"] == {"mode": "Auto", "settleSeconds": 2, "leaveSeconds": 120}
    assert spec["failurePolicy"]["maxFailures"] == 3
    assert "minNodes" not in spec


def test_the_template_is_kept_as_it_is(apiserver: ControlPlane, namespace: str) -> None:
    pod = {
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "trainer",
                "image": "x",
                "args": ["train.py", "--steps", "3"],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"limits": {"nvidia.com/gpu": 8}},
            },
            {"name": "logger", "image": "y", "ports": [{"containerPort": 80}]},
        ],
    }
    assert (
        apply(apiserver, namespace, manifest(template={"spec": copy.deepcopy(pod)}))["spec"]["template"]["spec"] == pod
    )


LONG = "x" * 60

CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("nodes at least 1", manifest(nodes=1), manifest(nodes=0), "spec.nodes: Invalid value: 0"),
    (
        "minNodes <= nodes",
        manifest(nodes=4, minNodes=4),
        manifest(nodes=4, minNodes=6),
        "spec.minNodes is more than spec.nodes; lower minNodes or raise nodes",
    ),
    (
        "nodes <= maxNodes",
        manifest(nodes=4, maxNodes=4),
        manifest(nodes=5, maxNodes=4),
        "spec.nodes is more than spec.maxNodes; lower nodes or raise maxNodes",
    ),
    (
        "nodes multiple",
        manifest(nodes=4, nodeMultiple=2),
        manifest(nodes=3, nodeMultiple=2),
        "spec.nodes is not a multiple of spec.nodeMultiple: change nodes or nodeMultiple",
    ),
    (
        "minNodes multiple",
        manifest(nodes=4, minNodes=2, nodeMultiple=2),
        manifest(nodes=4, minNodes=1, nodeMultiple=2),
        "spec.minNodes is not a multiple of spec.nodeMultiple",
    ),
    (
        "maxNodes multiple",
        manifest(nodes=4, maxNodes=6, nodeMultiple=2),
        manifest(nodes=4, maxNodes=7, nodeMultiple=2),
        "spec.maxNodes is not a multiple of spec.nodeMultiple",
    ),
    (
        "checkpoint path",
        manifest(checkpoint={"path": "/data"}),
        manifest(checkpoint={"path": "data"}),
        "spec.checkpoint.path must be absolute: begin it with '/'",
    ),
    (
        "checkpoint keep",
        manifest(checkpoint={"path": "/data", "keep": 1}),
        manifest(checkpoint={"path": "/data", "keep": 0}),
        "spec.checkpoint.keep",
    ),
    (
        "back-off",
        manifest(failurePolicy={"backoffSeconds": 5, "maxBackoffSeconds": 5}),
        manifest(failurePolicy={"backoffSeconds": 6, "maxBackoffSeconds": 5}),
        "spec.failurePolicy.backoffSeconds is more than maxBackoffSeconds",
    ),
    (
        "exit codes",
        manifest(failurePolicy={"fatalExitCodes": [1], "freeExitCodes": [2]}),
        manifest(failurePolicy={"fatalExitCodes": [1, 3], "freeExitCodes": [3]}),
        "an exit code is both in spec.failurePolicy.fatalExitCodes and in freeExitCodes",
    ),
    (
        "trainer container",
        manifest(template=trainer()),
        manifest(template={"spec": {"containers": [{"name": "main", "image": "x"}]}}),
        "spec.template.spec.containers has no container named 'trainer'; name the one that trains 'trainer'",
    ),
    (
        "trainer image",
        manifest(template=trainer()),
        manifest(template={"spec": {"containers": [{"name": "trainer"}]}}),
        "the container 'trainer' in spec.template.spec.containers has no image; give it one",
    ),
    (
        "restart policy",
        manifest(template={"spec": {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "x"}]}}),
        manifest(template={"spec": {"restartPolicy": "Always", "containers": [{"name": "trainer", "image": "x"}]}}),
        "spec.template.spec.restartPolicy must be Never or left out",
    ),
    (
        "reserved name",
        manifest(template=trainer(env=[{"name": "WORLD", "value": "1"}])),
        manifest(template=trainer(env=[{"name": "WORLD_SIZE", "value": "1"}])),
        "sets an environment variable that elastrain sets for every round",
    ),
    (
        "reserved prefix",
        manifest(template=trainer(env=[{"name": "MY_ELASTRAIN_X", "value": "1"}])),
        manifest(template=trainer(env=[{"name": "ELASTRAIN_X", "value": "1"}])),
        "remove it from its env",
    ),
    ("procsPerNode", manifest(procsPerNode=8), manifest(procsPerNode="many"), "must be auto or from 1 to 1024"),
    (
        "procsPerNode at least 1",
        manifest(procsPerNode="auto"),
        manifest(procsPerNode=0),
        "must be auto or from 1 to 1024",
    ),
    (
        "hangSeconds",
        manifest(failurePolicy={"hangSeconds": 60}),
        manifest(failurePolicy={"hangSeconds": "soon"}),
        "must be auto or from 1 to",
    ),
    ("name's length", manifest("x" * 52), manifest(LONG), "metadata.name is longer than 52 characters"),
    ("name's letters", manifest("a-1"), manifest("1a"), "it must begin with a letter"),
    ("name without dots", manifest("a-b"), manifest("a.b"), "it must begin with a letter"),
    ("clean-up policy", manifest(cleanPodPolicy="None"), manifest(cleanPodPolicy="Some"), '"Running", "All", "None"'),
    ("gang", manifest(scheduling={"gang": "Volcano"}), manifest(scheduling={"gang": "Slurm"}), "spec.scheduling.gang"),
    ("unknown field", manifest(nodes=2), manifest(nodez=2), 'unknown field "spec.nodez"'),
]


@pytest.mark.parametrize(("good", "bad", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rule(apiserver: ControlPlane, namespace: str, good: dict[str, Any], bad: dict[str, Any], text: str) -> None:
    apply(apiserver, namespace, good)
    with pytest.raises(BenchError) as refusal:
        apply(apiserver, namespace, {**bad, "metadata": {**bad["metadata"], "namespace": namespace}})
    assert text in str(refusal.value)


def test_a_template_is_required(apiserver: ControlPlane, namespace: str) -> None:
    body = manifest()
    del body["spec"]["template"]
    with pytest.raises(BenchError, match=r"spec\.template: Required value"):
        apply(apiserver, namespace, body)


@pytest.mark.parametrize(
    ("before", "after"), [("other.dev/x", "another.dev/y"), (None, "other.dev/x"), ("other.dev/x", None)]
)
def test_managed_by_is_immutable(
    apiserver: ControlPlane, namespace: str, before: str | None, after: str | None
) -> None:
    apply(apiserver, namespace, manifest(**({"managedBy": before} if before else {})))
    patch = json.dumps({"spec": {"managedBy": after}})
    with pytest.raises(BenchError, match=r"spec\.managedBy cannot be changed; delete the job and create it again"):
        apiserver.kubectl("patch", "-n", namespace, "trainjob/job", "--type=merge", "-p", patch)
    same = json.dumps({"spec": {"managedBy": before}})
    apiserver.kubectl("patch", "-n", namespace, "trainjob/job", "--type=merge", "-p", same)


def test_scale_edit_and_columns(apiserver: ControlPlane, namespace: str) -> None:
    apply(apiserver, namespace, manifest(nodes=2))
    apiserver.kubectl("scale", "-n", namespace, "trainjob/job", "--replicas=4")
    assert apiserver.kubectl("get", "-n", namespace, "tj", "job", "-o", "jsonpath={.spec.nodes}") == "4"
    status = {
        "phase": "Running",
        "nodes": {"wanted": 4, "ready": 4, "training": 3, "summary": "3/4"},
        "round": {"number": 7},
        "progress": {"step": 120, "percent": 12},
        "failures": {"counted": 1},
        "goodput": {"ratio": 0.97},
        "conditions": [{"type": "Running", "status": "True", "reason": "Training", "message": "round 7 trains"}],
    }
    patch = json.dumps({"status": status})
    apiserver.kubectl("patch", "-n", namespace, "tj", "job", "--subresource=status", "--type=merge", "-p", patch)
    header, row = apiserver.kubectl("get", "-n", namespace, "elastrain", "-o", "wide").splitlines()
    assert header.split() == [
        "NAME",
        "PHASE",
        "NODES",
        "ROUND",
        "STEP",
        "PROGRESS",
        "RESTARTS",
        "AGE",
        "GOODPUT",
        "MESSAGE",
    ]
    cells = row.split()
    assert [cells[1:7], cells[8:]] == [["Running", "3/4", "7", "120", "12", "1"], ["0.97", "round", "7", "trains"]]
    scale = json.loads(apiserver.kubectl("get", "-n", namespace, "--raw",
        f"/apis/elastrain.dev/v1alpha1/namespaces/{namespace}/trainjobs/job/scale"))  # fmt: skip
    assert scale["spec"]["replicas"] == 4


def test_the_file_is_accepted_again_unchanged(apiserver: ControlPlane) -> None:
    from elastrain.api.crd import crd

    out = apiserver.kubectl("apply", "-f", "-", input_text=yaml.safe_dump(crd()))
    assert "unchanged" in out
