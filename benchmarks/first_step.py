"""Time from `kubectl apply` to the first optimizer step, and its parts, on a real cluster with the image present.

The floor is what the container's own Python needs to import torch and accelerate and the script's other needs, by
two processes at once on the same machine: no launcher could start the step sooner.

    python -m benchmarks.first_step [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from datetime import datetime
from typing import Any

import yaml
from tests.cluster.bench.layout import REPOSITORY
from tests.cluster.target import Target, target

PARTS = ("agent", "round", "firstStep")


def main() -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with target(name="first-step") as cluster:
        cluster.install()
        runs = [_measure(cluster, f"first-step-{number}") for number in range(repeats)]
        floor = statistics.median(_floor(cluster, f"floor-{number}") for number in range(repeats))
    result = {name: round(statistics.median(run[name] for run in runs), 2) for name in (*PARTS, "total")}
    print(
        json.dumps({**result, "importFloor": round(floor, 2), "ratio": round(result["firstStep"] / floor, 2)}, indent=1)
    )
    return 0


def _measure(cluster: Target, name: str) -> dict[str, float]:
    """Seconds from the apply to the agent's first word, from there to its round, from there to step 1."""
    body = yaml.safe_load((REPOSITORY / "examples/language_model/trainjob.yaml").read_text())
    body["metadata"]["name"] = name
    container = body["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": cluster.trainer_image, "args": ["train.py", "--max_steps", "2"]}
    began = time.time()
    cluster.apply("default", body)
    log = cluster.eventually(lambda: _log(cluster, f"{name}-0-0", "step 1 loss"), f"the first step of {name}")
    marks = [_time(log, word) - began for word in ("waits for a round", r"round 1 \(", "step 1 loss")]
    cluster.kubectl("delete", "trainjob", name, "--wait=true")
    parts = [marks[0], marks[1] - marks[0], marks[2] - marks[1]]
    return dict(zip(PARTS, parts, strict=True)) | {"total": marks[2]}


def _floor(cluster: Target, name: str) -> float:
    """Seconds that two pods at once need to import what the example imports; the slower one."""
    code = (
        "import time; s = time.time(); import torch, accelerate, torch.nn.functional; print('floor', time.time() - s)"
    )
    pods = [_pod(f"{name}-{number}", cluster.trainer_image, code) for number in range(2)]
    cluster.apply("default", *pods)
    names = [pod["metadata"]["name"] for pod in pods]
    logs = [cluster.eventually(lambda pod=pod: _log(cluster, pod, "floor"), pod) for pod in names]  # type: ignore[misc]
    cluster.kubectl("delete", "pod", *names, "--grace-period=0", "--force")
    return max(float(re.findall(r"floor ([\d.]+)", log)[0]) for log in logs)


def _pod(name: str, image: str, code: str) -> dict[str, Any]:
    container = {"name": "python", "image": image, "command": ["python", "-c", code]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }  # fmt: skip


def _log(cluster: Target, pod: str, word: str) -> str | None:
    found = cluster.get("pod", pod)
    if not found or not found["status"].get("containerStatuses", [{}])[0].get("started", True):
        return None
    if found["status"]["phase"] == "Pending":
        return None
    log = cluster.kubectl("logs", pod, "--timestamps")
    return log if word in log else None


def _time(log: str, word: str) -> float:
    line = next(line for line in log.splitlines() if re.search(word, line))
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z", r"\1+00:00", line.split()[0])).timestamp()


if __name__ == "__main__":
    sys.exit(main())
