"""What happens to jobs on a real cluster: failures, losses, changes of size, and whose fault they were.

Scripts come by a ConfigMap. Each test has a namespace of its own; what is asserted is what a person would read.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.cluster.jobs import condition, leader, phase, pods, status, submit
from tests.cluster.target import NAMESPACE, Target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TRAIN = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, total = int(os.environ["RANK"]), torch.zeros(1)
for step in range(STEPS):
    total.fill_(1)
    dist.all_reduce(total)
    time.sleep(0.05)
    if rank == 0 and step % 20 == 0:
        print("step", step, "world", int(total), flush=True)
"""


def test_an_image_that_does_not_exist_is_named(cluster: Target, namespace: str) -> None:
    container = {"image": "localhost/no-such-image:1", "imagePullPolicy": "Never"}
    submit(cluster, namespace, "", nodes=1, container=container)

    def told() -> dict[str, Any] | None:
        running = condition(status(cluster, namespace), "Running")
        return running if running.get("reason") == "ImagePullFailed" else None

    running = cluster.eventually(told, "the reason to be told")
    assert "pod job-0-0: ErrImageNeverPull" in running["message"]
    assert "localhost/no-such-image:1" in running["message"]
    assert status(cluster, namespace)["phase"] == "Pending"


def test_a_pod_that_cannot_be_scheduled_is_named(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, "", nodes=1, container={"resources": {"requests": {"cpu": "1000"}}})

    def told() -> dict[str, Any] | None:
        running = condition(status(cluster, namespace), "Running")
        return running if running.get("reason") == "Unschedulable" else None

    assert "Insufficient cpu" in cluster.eventually(told, "the reason to be told")["message"]


def test_arguments_that_the_script_refuses_fail_the_job_at_once(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, "", nodes=1, container={"args": ["train.py", "--no_such_argument"]})
    found = phase(cluster, namespace, "Failed")
    failed = condition(found, "Failed")
    assert failed["reason"] == "InvalidArguments"
    assert "the script refused its arguments, --no_such_argument" in failed["message"]
    assert found["round"]["number"] == 1
    assert "unrecognized arguments: --no_such_argument" in cluster.kubectl("logs", "-n", namespace, "job-0-0")


def test_a_failing_worker_is_tried_again_and_then_named(cluster: Target, namespace: str) -> None:
    script = (
        TRAIN.replace("STEPS", "5")
        + "\nif rank == 1:\n    raise ValueError('the loss is not a number')\ntime.sleep(60)"
    )
    submit(cluster, namespace, script, failurePolicy={"maxFailures": 1, "backoffSeconds": 0})
    found = phase(cluster, namespace, "Failed", 2, 400)
    failed = condition(found, "Failed")
    assert failed["reason"] == "MaxFailuresExceeded"
    node = next(p["spec"]["nodeName"] for p in pods(cluster, namespace) if p["metadata"]["name"] == "job-1-0")
    assert f"pod job-1-0 on node {node}, rank 1: WorkerFailed, exit code 1" in failed["message"]
    assert "ValueError: the loss is not a number" in failed["message"]
    assert found["failures"]["counted"] == 2
    assert found["round"]["number"] == 2
    cluster.eventually(
        lambda: all(p["status"]["phase"] in ("Succeeded", "Failed") for p in pods(cluster, namespace)),
        "all pods to end",
    )
    states = [p["status"]["containerStatuses"][0]["state"]["terminated"] for p in pods(cluster, namespace)]
    assert states[1]["exitCode"] == 81
    assert json.loads(states[1]["message"])["reason"] == "WorkerFailed"


def test_the_memory_limit_is_named(cluster: Target, namespace: str) -> None:
    container = {"resources": {"limits": {"memory": "700Mi"}}}
    script = "hog = []\nwhile True:\n    hog.append(bytearray(50_000_000))\n"
    submit(cluster, namespace, script, nodes=1, failurePolicy={"maxFailures": 0}, container=container)
    found = phase(cluster, namespace, "Failed")
    assert found["lastFailure"]["reason"] == "OOMKilled"
    assert "OOMKilled" in condition(found, "Failed")["message"]


def test_a_rank_that_ends_alone_does_not_complete_the_job(cluster: Target, namespace: str) -> None:
    script = TRAIN.replace("STEPS", "1000 if int(os.environ['RANK']) == 0 else 5") + "\nos._exit(0)"
    submit(cluster, namespace, script, failurePolicy={"maxFailures": 0})
    found = phase(cluster, namespace, "Failed")
    assert found["lastFailure"]["reason"] == "EndedEarly"
    assert "the workers of job-1-0 ended with exit code 0 while those of job-0-0" in found["lastFailure"]["message"]


def test_a_deleted_pod_is_replaced_and_the_budget_stays(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, TRAIN.replace("STEPS", "600"), failurePolicy={"maxFailures": 0})
    phase(cluster, namespace, "Running")
    cluster.kubectl("delete", "pod", "-n", namespace, "job-0-0", "--wait=false")
    found = phase(cluster, namespace, "Running", 2)
    assert found["round"]["reason"] == "PodLost"
    assert found["round"]["members"] == ["job-1-0", "job-0-1"]
    found = phase(cluster, namespace, "Complete", 2)
    assert found["failures"]["counted"] == 0
    assert "world 2" in cluster.kubectl("logs", "-n", namespace, "job-1-0")


def test_scale_suspend_and_resume(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, TRAIN.replace("STEPS", "100000"), nodes=1, failurePolicy={"maxFailures": 0})
    phase(cluster, namespace, "Running")
    cluster.kubectl("scale", "-n", namespace, "trainjob/job", "--replicas=3")
    found = phase(cluster, namespace, "Running", 2)
    assert found["round"]["reason"] == "NodesAdded"
    assert found["nodes"]["summary"] == "3/3"
    cluster.kubectl("scale", "-n", namespace, "trainjob/job", "--replicas=2")
    found = phase(cluster, namespace, "Running", 3)
    assert found["round"]["reason"] == "NodesRemoved"
    assert found["round"]["members"] == ["job-0-0", "job-1-0"]
    cluster.eventually(lambda: len(pods(cluster, namespace)) == 2, "the surplus pod to be gone")
    patch = json.dumps({"spec": {"suspend": True}})
    cluster.kubectl("patch", "-n", namespace, "trainjob/job", "--type=merge", "-p", patch)
    phase(cluster, namespace, "Suspended")
    cluster.eventually(lambda: condition(status(cluster, namespace), "Suspended").get("status") == "True", "suspension")
    assert pods(cluster, namespace) == []
    patch = json.dumps({"spec": {"suspend": False, "nodes": 1}})
    cluster.kubectl("patch", "-n", namespace, "trainjob/job", "--type=merge", "-p", patch)
    found = phase(cluster, namespace, "Running", 4)
    assert found["round"]["reason"] == "Resumed"
    assert found["failures"] == {"counted": 0, "free": 0, "strikes": []}
    goodput = found["goodput"]
    booked = goodput["productiveSeconds"] + sum(goodput["lostSeconds"].values())
    assert goodput["lostSeconds"]["scaling"] > 0
    assert goodput["ratio"] == pytest.approx(goodput["productiveSeconds"] / booked, abs=0.01)


def test_the_other_replica_takes_over_while_jobs_train_on(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, TRAIN.replace("STEPS", "100000"), nodes=2)
    before = phase(cluster, namespace, "Running")
    first = cluster.eventually(lambda: leader(cluster), "a leader")
    lease = cluster.get("lease", "-n", NAMESPACE)["items"][0]["metadata"]["name"]
    holder = cluster.get("lease", "-n", NAMESPACE, lease)["spec"]["holderIdentity"]
    start = time.monotonic()
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, first, "--grace-period=0", "--force")
    cluster.eventually(
        lambda: cluster.get("lease", "-n", NAMESPACE, lease)["spec"].get("holderIdentity") not in ("", holder),
        "another holder of the Lease",
        60,
    )
    print(f"took over after {time.monotonic() - start:.1f} s")
    second = cluster.eventually(lambda: leader(cluster) not in ("", first) and leader(cluster), "another leader")
    assert second != first
    # The new leader leads: it takes the job on from where it was, in the same round.
    cluster.kubectl("scale", "-n", namespace, "trainjob/job", "--replicas=1")
    after = phase(cluster, namespace, "Running", before["round"]["number"] + 1)
    assert after["round"]["number"] == before["round"]["number"] + 1
    assert after["failures"]["counted"] == 0


def test_a_namespace_with_a_running_job_goes_away(cluster: Target, namespace: str) -> None:
    submit(cluster, namespace, TRAIN.replace("STEPS", "100000"), nodes=1)
    phase(cluster, namespace, "Running")
    cluster.kubectl("delete", "namespace", namespace, "--timeout=120s")
    assert cluster.get("namespace", namespace) is None
    cluster.kubectl("create", "namespace", namespace)  # the fixture deletes it again
