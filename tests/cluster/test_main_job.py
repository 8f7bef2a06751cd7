"""The main job: the example on two nodes, from `kubectl apply` to nothing left behind."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.cluster.bench.layout import REPOSITORY
from tests.cluster.target import Target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS = "60"
ONE_THREAD = {"name": "OMP_NUM_THREADS", "value": "1"}
"""The order in which numbers are added depends on the number of threads, and so do the last digits of a loss."""


def example(cluster: Target, *arguments: str, **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples/language_model/trainjob.yaml").read_text())
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["image"] = cluster.trainer_image
    container["env"] = [ONE_THREAD]
    if arguments:
        container["args"] = list(arguments)
    body["spec"].update(spec)
    return body


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text)}


def _ended(cluster: Target, namespace: str) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = cluster.get("pods", "-n", namespace)["items"]
    return found if all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in found) else None


def test_the_example_trains_as_under_torchrun_and_leaves_nothing(cluster: Target, namespace: str) -> None:
    body = example(cluster, "train.py", "--max_steps", STEPS)
    cluster.apply(namespace, body)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Complete", "trainjob/language-model", "--timeout=300s")

    job = cluster.get("trainjob", "-n", namespace, "language-model")
    status = job["status"]
    assert status["phase"] == "Complete"
    assert status["nodes"]["wanted"] == 2
    assert status["round"]["number"] == 1
    assert status["round"]["members"] == ["language-model-0-0", "language-model-1-0"]
    assert status["failures"] == {"counted": 0, "free": 0, "strikes": []}
    assert status["progress"]["step"] == int(STEPS)
    assert status["progress"]["percent"] == 100
    assert "metadata" in job
    assert "finalizers" not in job["metadata"]
    assert not [a for a in job["metadata"].get("annotations", {}) if "kopf" in a]

    pods = cluster.eventually(lambda: _ended(cluster, namespace), "the agents to hear of the end")
    assert sorted(pod["metadata"]["name"] for pod in pods) == status["round"]["members"]
    assert {pod["status"]["phase"] for pod in pods} == {"Succeeded"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in pods)
    service = cluster.get("service", "-n", namespace, "language-model")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    events = cluster.get("events", "-n", namespace, "--field-selector=involvedObject.kind=TrainJob")["items"]
    assert sorted(e["reason"] for e in events) == ["Complete", "RoundPublished", "Training"]

    log = cluster.kubectl("logs", "-n", namespace, "language-model-0-0")
    assert "[rank 0] step 1 loss" in log
    # The same script by plain torchrun with two processes, in the same image: the text comes with its Python.
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "torchrun",
                    "image": cluster.trainer_image,
                    "command": ["python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"],
                    "args": ["--max_steps", STEPS],
                    "env": [{"name": "ACCELERATE_USE_CPU", "value": "true"}, ONE_THREAD],
                }
            ],
        },
    }
    cluster.apply(namespace, plain)
    cluster.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/plain", "--timeout=300s")
    peer = cluster.kubectl("logs", "-n", namespace, "plain")
    cluster.kubectl("delete", "pod", "-n", namespace, "plain")
    expected, got = losses(peer), losses(log)
    assert expected[int(STEPS)] < expected[1] - 2
    assert got.keys() == expected.keys()
    assert all(abs(got[step] - expected[step]) < 1e-5 for step in expected), (got, expected)

    cluster.kubectl("delete", "trainjob", "-n", namespace, "language-model")
    for kind in ("pods", "services"):
        cluster.eventually(lambda kind=kind: not cluster.get(kind, "-n", namespace)["items"], f"no {kind} to be left")
