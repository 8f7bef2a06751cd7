"""TrainJobs and pods as the tests of the Kubernetes side write them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
PODS = "/api/v1/namespaces/{}/pods"
TRAINJOBS = "/apis/elastrain.dev/v1alpha1/namespaces/{}/trainjobs"


def trainjob(name: str = "sft", namespace: str = "default", **spec: Any) -> Json:
    """Return a TrainJob as a user writes it."""
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodes": 2,
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train:1", "args": ["train.py"]}]}},
            **spec,
        },
    }


def owner(name: str = "sft", uid: str = "job-1", *, controller: bool = True) -> Json:
    """Return the owner reference of a TrainJob's object."""
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "name": name,
        "uid": uid,
        "controller": controller,
    }


def pod(
    name: str = "sft-0-0", *, job: str = "sft", job_uid: str = "job-1", namespace: str = "default", **status: Any
) -> Json:
    """Return a pod of a job as far as observing needs it."""
    _, index, attempt = name.rsplit("-", 2)
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "elastrain.dev/job": job,
                "elastrain.dev/node-index": index,
                "elastrain.dev/attempt": attempt,
            },
            "annotations": {"elastrain.dev/template-hash": "h1"},
            "ownerReferences": [owner(job, job_uid)],
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Pending", **status},
    }
