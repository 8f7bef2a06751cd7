"""Jobs on the cluster, as tests submit and watch them."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.target import NAMESPACE, Target


def submit(cluster: Target, namespace: str, script: str, name: str = "job", **spec: Any) -> None:
    container: dict[str, Any] = {
        "name": "trainer",
        "image": cluster.trainer_image,
        "args": ["/scripts/script.py"],
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
        **spec.pop("container", {}),
    }
    pod = {"containers": [container], "volumes": [{"name": "scripts", "configMap": {"name": f"{name}-scripts"}}]}
    cluster.apply(
        namespace,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-scripts"},
            "data": {"script.py": script},
        },
        {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {"nodes": 2, "template": {"spec": pod}, **spec},
        },
    )


def status(cluster: Target, namespace: str, name: str = "job") -> dict[str, Any]:
    return cluster.get("trainjob", "-n", namespace, name).get("status") or {}


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in found.get("conditions", []) if c["type"] == kind), {})


def phase(cluster: Target, namespace: str, wanted: str, number: int = 0, seconds: float = 240) -> dict[str, Any]:
    """Return the status once the job is in this phase, in this round or a later one."""

    def look() -> dict[str, Any] | None:
        found = status(cluster, namespace)
        return found if found.get("phase") == wanted and found.get("round", {}).get("number", 0) >= number else None

    try:
        return cluster.eventually(look, f"the job to be {wanted} in round {number}", seconds)
    except Exception as error:
        raise AssertionError(f"{error}; status: {json.dumps(status(cluster, namespace), indent=1)}") from error


def pods(cluster: Target, namespace: str) -> list[dict[str, Any]]:
    selector = "elastrain.dev/job=job"
    found: list[dict[str, Any]] = cluster.get("pods", "-n", namespace, "-l", selector)["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def leader(cluster: Target) -> str:
    found = cluster.get("pods", "-n", NAMESPACE, "-l", "elastrain.dev/leader=true")["items"]
    live = [p["metadata"]["name"] for p in found if not p["metadata"].get("deletionTimestamp")]
    return live[0] if len(live) == 1 else ""
