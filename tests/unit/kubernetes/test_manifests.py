"""What the operator adds to a pod, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kubernetes.values import TO, job

from elastrain.kubernetes import manifests

Json = dict[str, Any]


def template(**spec: Any) -> Json:
    return {"spec": {"containers": [{"name": "trainer", "image": "train:1"}], **spec}}


def pod(made_from: Json | None = None, index: int = 1, attempt: int = 2, **spec: Any) -> Json:
    found = job(template=made_from or template(), **spec)
    return manifests.pod(found.model, found.template, found.template_hash, index, attempt, TO)


def environment(pod: Json) -> dict[str, str]:
    env = pod["spec"]["containers"][0]["env"]
    return {e["name"]: e.get("value", e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")) for e in env}


def test_a_pod_is_known_by_name_labels_and_owner() -> None:
    made = pod()
    assert made["metadata"] == {
        "name": "sft-1-2",
        "namespace": "default",
        "labels": {
            "elastrain.dev/job": "sft",
            "elastrain.dev/node-index": "1",
            "elastrain.dev/attempt": "2",
            "app.kubernetes.io/name": "elastrain",
            "app.kubernetes.io/instance": "sft",
            "app.kubernetes.io/component": "trainer",
            "app.kubernetes.io/managed-by": "elastrain",
        },
        "annotations": {
            "elastrain.dev/template-hash": job(template=template()).template_hash,
            "elastrain.dev/coordinator-ca": TO.ca,
        },
        "ownerReferences": [
            {
                "apiVersion": "elastrain.dev/v1alpha1",
                "kind": "TrainJob",
                "name": "sft",
                "uid": "job-1",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
    spec = made["spec"]
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("sft-1-2", "sft", "Never")


def test_the_environment_is_that_of_the_protocol() -> None:
    found = environment(pod(globalBatchSize=64, checkpoint={"path": "/data/ckpt", "everySteps": 100}))
    assert found == {
        "ELASTRAIN_COORDINATOR_URL": TO.url,
        "ELASTRAIN_CREDENTIALS": "/var/run/elastrain",
        "ELASTRAIN_NAMESPACE": "default",
        "ELASTRAIN_JOB": "sft",
        "ELASTRAIN_JOB_UID": "job-1",
        "ELASTRAIN_NODE_INDEX": "1",
        "ELASTRAIN_LEAVE_SECONDS": "120",
        "ELASTRAIN_GLOBAL_BATCH_SIZE": "64",
        "ELASTRAIN_CHECKPOINT_PATH": "/data/ckpt",
        "ELASTRAIN_CHECKPOINT_EVERY_STEPS": "100",
        "ELASTRAIN_CHECKPOINT_KEEP": "2",
        "KUBEFLOW_TRAINER_SERVER_URL": "https://coordinator.elastrain.svc:8443/apis/trainer.kubeflow.org/v1alpha1"
        "/namespaces/default/trainjobs/sft/status",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/var/run/elastrain/ca.crt",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": "/var/run/elastrain/token",
        "ELASTRAIN_POD": "metadata.name",
        "ELASTRAIN_POD_IP": "status.podIP",
        "ELASTRAIN_NODE_NAME": "spec.nodeName",
    }


def test_what_the_job_does_not_set_is_not_in_the_environment() -> None:
    names = set(environment(pod()))
    assert not {n for n in names if n.startswith("ELASTRAIN_CHECKPOINT") or n == "ELASTRAIN_GLOBAL_BATCH_SIZE"}


def test_the_templates_own_variables_stay_and_may_refer_to_ours() -> None:
    own = [{"name": "KUBEFLOW_TRAINER_SERVER_URL", "value": "mine"}, {"name": "RUN", "value": "$(ELASTRAIN_JOB_UID)"}]
    made = pod({"spec": {"containers": [{"name": "trainer", "image": "x", "env": own}]}})
    env = made["spec"]["containers"][0]["env"]
    assert [e for e in env if e["name"] in ("KUBEFLOW_TRAINER_SERVER_URL", "RUN")] == own
    names = [e["name"] for e in env]
    assert names.index("ELASTRAIN_JOB_UID") < names.index("RUN"), "Kubernetes expands only what was defined before"


def test_token_and_certificates_are_mounted_for_the_coordinator_alone() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    volume = next(v for v in spec["volumes"] if v["name"] == "elastrain-credentials")["projected"]
    assert volume["sources"] == [
        {"serviceAccountToken": {"audience": "elastrain.dev", "expirationSeconds": 3600, "path": "token"}},
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "ca.crt",
                        "fieldRef": {"fieldPath": "metadata.annotations['elastrain.dev/coordinator-ca']"},
                    }
                ]
            }
        },
    ]
    assert volume["defaultMode"] & 0o004, "images run as any user"
    assert {"name": "elastrain-credentials", "mountPath": "/var/run/elastrain", "readOnly": True} in spec["containers"][
        0
    ]["volumeMounts"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("automountServiceAccountToken", True),
        ("terminationGracePeriodSeconds", 5),
        ("affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
        ("enableServiceLinks", True),
        ("dnsPolicy", "None"),
        ("schedulerName", "volcano"),
        ("initContainers", [{"name": "data", "image": "y"}]),
    ],
)
def test_what_the_template_sets_stays(field: str, value: Any) -> None:
    assert pod(template(**{field: value}))["spec"][field] == value


def test_labels_and_annotations_of_the_template_stay_but_for_ours() -> None:
    made = pod(
        {
            **template(),
            "metadata": {
                "labels": {"team": "a", "app.kubernetes.io/name": "bert", "elastrain.dev/job": "other"},
                "annotations": {"note": "b", "elastrain.dev/template-hash": "other"},
            },
        }
    )["metadata"]
    assert (made["labels"]["team"], made["labels"]["app.kubernetes.io/name"]) == ("a", "bert")
    assert made["labels"]["elastrain.dev/job"] == "sft"
    assert made["annotations"]["note"] == "b"
    assert made["annotations"]["elastrain.dev/template-hash"] != "other"


@pytest.mark.parametrize(("leave", "grace"), [(10, 30), (120, 120), (600, 600)])
def test_a_pod_may_take_as_long_to_stop_as_it_may_take_to_leave(leave: int, grace: int) -> None:
    assert pod(scaling={"leaveSeconds": leave})["spec"]["terminationGracePeriodSeconds"] == grace


def test_shared_memory_is_added_unless_the_template_mounts_some() -> None:
    spec = pod()["spec"]
    assert {"name": "elastrain-shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
    assert {"name": "elastrain-shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
    own = {"name": "trainer", "image": "x", "volumeMounts": [{"name": "m", "mountPath": "/dev/shm/"}]}
    spec = pod({"spec": {"containers": [own], "volumes": [{"name": "m", "emptyDir": {}}]}})["spec"]
    assert [v["name"] for v in spec["volumes"]] == ["m", "elastrain-credentials"]


def test_pods_prefer_nodes_of_their_own() -> None:
    (term,) = pod()["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"elastrain.dev/job": "sft"}},
    }


def test_members_are_found_by_name_on_the_hosts_network_too() -> None:
    assert pod(template(hostNetwork=True))["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "dnsPolicy" not in pod()["spec"]


def test_the_trainer_is_found_among_other_containers_which_stay_as_they_are() -> None:
    side = {"name": "proxy", "image": "p"}
    made = pod({"spec": {"containers": [side, {"name": "trainer", "image": "x"}]}})
    assert made["spec"]["containers"][0] == side
    assert made["spec"]["containers"][1]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_template_itself_is_never_changed() -> None:
    made_from = template(volumes=[{"name": "data", "emptyDir": {}}])
    before = repr(made_from)
    pod(made_from)
    assert repr(made_from) == before


def test_nothing_that_is_added_offends_the_restricted_level() -> None:
    """Pod Security Standards, restricted: kinds of volumes, and nothing about users, privileges or capabilities."""
    spec = pod()["spec"]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= allowed
    assert not {"hostNetwork", "hostPID", "hostIPC", "securityContext"} & set(spec)
    assert "securityContext" not in spec["containers"][0]


def test_the_service_is_headless_and_names_pods_before_they_are_ready() -> None:
    made = manifests.service(job().model)
    assert (made["metadata"]["name"], made["metadata"]["ownerReferences"][0]["uid"]) == ("sft", "job-1")
    assert made["spec"] == {
        "clusterIP": "None",
        "ipFamilyPolicy": "PreferDualStack",
        "publishNotReadyAddresses": True,
        "selector": {"elastrain.dev/job": "sft"},
    }


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"nodes": 5}, True),
        ({"suspend": True}, True),
        ({"failurePolicy": {"maxFailures": 9}}, True),
        ({"scaling": {"leaveSeconds": 7}}, True),
        ({"procsPerNode": 2}, False),
        ({"globalBatchSize": 32}, False),
        ({"template": template(nodeSelector={"a": "b"})}, False),
    ],
)
def test_the_hash_changes_with_what_pods_are_made_from(change: Json, same: bool) -> None:
    spec = {"nodes": 2, "procsPerNode": "auto", "template": template()}
    assert (manifests.template_hash({**spec, **change}) == manifests.template_hash(spec)) is same


def test_the_hash_does_not_depend_on_the_order_of_fields() -> None:
    turned = {"template": {"spec": dict(reversed(template(a=1, b=2)["spec"].items()))}}
    assert manifests.template_hash(turned) == manifests.template_hash({"template": template(a=1, b=2)})
