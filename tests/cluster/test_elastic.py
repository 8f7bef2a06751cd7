"""Jobs that change while they train: every step is done, and what is learned is what one process learns.

The tests marked `long` are run by `make elastic` alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.bench import tools
from tests.cluster.bench.layout import BenchError
from tests.cluster.bench.node import Node
from tests.cluster.bench.process import pid_of
from tests.cluster.followed import Followed, Rows, followed
from tests.cluster.jobs import condition, leader, phase
from tests.cluster.target import NAMESPACE, Target
from tests.learning import static

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = 3000
Nodes = Callable[[str], Node]

KILL_WORKER = """
import os, signal
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        if b"\\0LOCAL_RANK=" in open(f"/proc/{pid}/environ", "rb").read():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""
LATE = """
import os, time
while "job-2-0" in os.uname()[1] and not os.path.exists("/dev/shm/come"):
    time.sleep(1)
"""
KILL_AGENT = """
for p in /proc/[0-9]*; do
  tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -qx ELASTRAIN_POD=%s || continue
  tr '\\0' ' ' < $p/cmdline | grep -q 'elastrain_trainer' || continue
  grep -q '^NSpid:.*[[:space:]]1$' $p/status && kill -9 ${p#/proc/}
done
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What one process learns."""
    return static(tmp_path_factory.mktemp("static"), STEPS)


@pytest.fixture
def job(cluster: Target, namespace: str) -> Iterator[Followed]:
    """A job that is yet to be submitted."""
    with followed(cluster, namespace) as found:
        yield found


def number(found: dict[str, Any]) -> int:
    return int(found["round"]["number"])


def place(job: Followed, pod: str) -> str:
    """Return the node that a pod runs on."""
    return str(next(p["spec"]["nodeName"] for p in job.pods if p["metadata"]["name"] == pod))


def beside_leader(job: Followed, *, yes: bool) -> str:
    """Return a member that runs on the node of the leading operator, or one that does not."""
    name = leader(job.cluster)
    at = job.cluster.get("pod", "-n", NAMESPACE, name)["spec"]["nodeName"]
    return next(pod for pod in job.status["round"]["members"] if (place(job, pod) == at) is yes)


def delete(job: Followed, pod: str, *, grace: int | None = None) -> None:
    how = () if grace is None else (f"--grace-period={grace}", *(("--force",) if grace == 0 else ()))
    job.cluster.kubectl("delete", "pod", "-n", job.namespace, pod, "--wait=false", *how)


def rest(job: Followed, nodes: int) -> None:
    """Wait until no pod is there but the wanted ones."""
    job.cluster.eventually(lambda: len(job.pods) == nodes, f"{nodes} pods to be left")


def undisturbed(job: Followed, found: dict[str, Any]) -> None:
    """Nothing stood still, as far as the status tells."""
    assert job.events("Recovering") == 0
    assert found["goodput"]["lostSeconds"]["scaling"] == 0
    assert found["goodput"]["lostSeconds"]["recovering"] == 0
    assert found["failures"]["counted"] == 0


def test_a_job_changes_its_size_without_a_stop(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=1)
    first = number(job.trains(1))
    job.scale(2)
    job.trains(2, after=first)
    job.scale(4)
    found = job.trains(4, after=first + 1)
    assert found["round"]["members"] == ["job-0-0", "job-1-0", "job-2-0", "job-3-0"]
    job.scale(3)
    found = job.trains(3, after=first + 2)
    assert found["round"]["reason"] == "NodesRemoved"
    rest(job, 3)
    last = job.completes(expected, sizes=[1, 2, 4, 3])
    assert number(last) == first + 3
    undisturbed(job, last)


def test_members_are_lost_and_come_back(job: Followed, expected: Rows) -> None:
    """A worker, an agent and a pod with the first rank; then one is deleted with time to leave."""
    job.submit(STEPS, nodes=3, failurePolicy={"backoffSeconds": 1, "maxFailures": 1})
    found = job.trains(3)
    job.execute("job-1-0", "python3", "-c", KILL_WORKER)
    found = job.trains(3, after=number(found) + 1)
    assert found["round"]["members"] == ["job-0-0", "job-2-0", "job-1-0"]
    assert found["failures"]["counted"] == 1
    assert found["lastFailure"]["exitCode"] == -9
    before = job.step
    delete(job, "job-0-0", grace=0)
    found = job.trains(3, after=number(found) + 1)
    assert found["round"]["members"][0] == "job-2-0"
    assert job.step > before
    if job.cluster.bench:
        job.cluster.node(place(job, "job-2-0")).execute("sh", "-c", KILL_AGENT % "job-2-0")
        found = job.trains(3, after=number(found) + 1)
        assert found["round"]["members"][0] == "job-1-0"
    recovered = job.events("Recovering")
    delete(job, "job-1-0")
    found = job.trains(3, after=number(found) + 1)
    assert "job-1-0" not in found["round"]["members"]
    last = job.completes(expected)
    assert job.events("Recovering") == recovered
    assert last["failures"]["counted"] == 1


@pytest.mark.long
def test_the_operator_dies_while_newcomers_are_on_their_way(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=2)
    found = job.trains(2)
    job.scale(4)
    job.cluster.eventually(lambda: len(job.pods) == 4, "the newcomers' pods", 30)
    time.sleep(2)
    first = leader(job.cluster)
    job.cluster.kubectl("delete", "pod", "-n", NAMESPACE, first, "--grace-period=0", "--force")
    found = job.trains(4, after=number(found))
    last = job.completes(expected, sizes=[2, 4] if number(found) == 2 else None)
    undisturbed(job, last)


@pytest.mark.long
def test_the_first_pod_is_deleted_while_newcomers_are_on_their_way(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=2)
    found = job.trains(2)
    job.scale(4)
    job.cluster.eventually(lambda: len(job.pods) == 4, "the newcomers' pods", 30)
    delete(job, "job-0-0", grace=0)
    found = job.trains(4, after=number(found))
    assert "job-0-0" not in found["round"]["members"]
    last = job.completes(expected)
    assert last["failures"]["counted"] == 0


@pytest.mark.long
def test_a_drain_costs_nothing(job: Followed, expected: Rows, nodes: Nodes) -> None:
    job.submit(STEPS, nodes=3)
    found = job.trains(3)
    victim = place(job, "job-0-0")
    try:
        job.cluster.kubectl(
            "drain", victim, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s",
            "--pod-selector=elastrain.dev/job=job",
        )  # fmt: skip
        found = job.trains(3, after=number(found))
        assert victim not in {place(job, pod) for pod in found["round"]["members"]}
    finally:
        job.cluster.kubectl("uncordon", victim)
    undisturbed(job, job.completes(expected))


@pytest.mark.long
def test_a_node_dies(job: Followed, expected: Rows, nodes: Nodes) -> None:
    job.submit(STEPS, nodes=3, failurePolicy={"nodeLossSeconds": 10})
    found = job.trains(3)
    lost = beside_leader(job, yes=False)
    victim = place(job, lost)
    at = time.monotonic()
    nodes(victim).crash()
    job.reaches(job.step + 3)
    print(f"the others trained on {time.monotonic() - at:.1f} s after the node's death, nodeLossSeconds 10")
    found = job.trains(3, after=number(found) + 1)
    assert lost not in found["round"]["members"]
    assert victim not in {place(job, pod) for pod in found["round"]["members"]}
    last = job.completes(expected, sizes=[3, 2, 3])
    assert last["failures"]["counted"] == 0


@pytest.mark.long
def test_a_node_is_cut_off_for_a_minute(job: Followed, expected: Rows, nodes: Nodes) -> None:
    job.submit(STEPS, nodes=3, failurePolicy={"nodeLossSeconds": 10})
    found = job.trains(3)
    lost = beside_leader(job, yes=True)
    victim = place(job, lost)
    nodes(victim).cut()
    at = time.monotonic()
    job.reaches(job.step + 3)
    print(f"the others trained on {time.monotonic() - at:.1f} s after the leading operator's node was cut off")
    time.sleep(max(60 - (time.monotonic() - at), 0))
    nodes(victim).join()
    found = job.trains(3, after=number(found) + 1)
    assert lost not in found["round"]["members"]
    job.cluster.eventually(lambda: len(job.pods) == 3, "the pod that was cut off to be gone", 120)
    last = job.completes(expected)
    assert last["failures"]["counted"] == 0


@pytest.mark.long
def test_a_kubelet_that_hangs_disturbs_nobody(job: Followed, expected: Rows, nodes: Nodes) -> None:
    """Its containers run on: the API server has its pods deleted, and so they leave with a round."""
    job.submit(STEPS, nodes=3, failurePolicy={"nodeLossSeconds": 10})
    job.trains(3)
    node = nodes(place(job, "job-1-0"))
    node.stop()
    at = job.step
    time.sleep(45)
    assert job.step > at + 100
    node.resume()
    job.trains(3)
    undisturbed(job, job.completes(expected))


@pytest.mark.long
def test_a_pod_is_lost_while_no_operator_runs(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=3)
    found = job.trains(3)
    deployment = job.cluster.get("deployments", "-n", NAMESPACE)["items"][0]["metadata"]["name"]
    job.cluster.kubectl("scale", "-n", NAMESPACE, f"deployment/{deployment}", "--replicas=0")
    try:
        selector = "app.kubernetes.io/name=elastrain"
        job.cluster.eventually(
            lambda: not job.cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"], "the operator to be gone"
        )
        at = job.step
        job.reaches(at + 10)
        delete(job, "job-0-0", grace=0)
        time.sleep(10)
    finally:
        job.cluster.kubectl("scale", "-n", NAMESPACE, f"deployment/{deployment}", "--replicas=2")
    found = job.trains(3, after=number(found) + 1)
    last = job.completes(expected, sizes=[3, 2, 3])
    assert last["failures"]["counted"] == 0


@pytest.mark.long
def test_the_api_server_stands_still_while_a_job_shrinks(job: Followed, expected: Rows) -> None:
    if job.cluster.bench is None:
        pytest.skip("this test stops the API server, and KUBECONFIG names a cluster that is not ours")
    job.submit(STEPS, nodes=3)
    found = job.trains(3)
    server = pid_of(job.cluster.bench.state / "control-plane/kube-apiserver.pid")
    assert server is not None
    job.scale(2)
    os.kill(server, signal.SIGSTOP)
    try:
        at = job.step
        time.sleep(30)
    finally:
        os.kill(server, signal.SIGCONT)
    job.reaches(at + 50)
    found = job.trains(2, after=number(found))
    rest(job, 2)
    undisturbed(job, job.completes(expected))  # the API server may have taken nodes for lost, and pods deleted


@pytest.mark.long
def test_a_newcomer_whose_image_is_missing_disturbs_nobody(job: Followed, expected: Rows, nodes: Nodes) -> None:
    job.submit(STEPS, nodes=2, container={"imagePullPolicy": "Never"})
    found = job.trains(2)
    used = {place(job, pod) for pod in found["round"]["members"]}
    (free,) = {"node1", "node2", "node3"} - used
    image, ctr = job.cluster.trainer_image, str(tools.folder() / "ctr")
    nodes(free).execute(ctr, "-n", "k8s.io", "images", "tag", image, "localhost/kept:1")
    nodes(free).execute(ctr, "-n", "k8s.io", "images", "rm", image)
    try:
        job.scale(3)

        def told() -> str | None:
            text = str(condition(job.status, "Degraded").get("message"))
            return text if "ErrImageNeverPull" in text else None

        text = job.cluster.eventually(told, "the reason why a node is missing")
        assert "pod job-2-0" in text
        assert job.status["round"]["number"] == number(found)
        assert job.status["phase"] == "Running"
    finally:
        nodes(free).execute(ctr, "-n", "k8s.io", "images", "tag", "localhost/kept:1", image)
    job.trains(3, after=number(found))
    undisturbed(job, job.completes(expected, sizes=[2, 3]))


@pytest.mark.long
def test_a_newcomer_that_never_comes_in_is_left_out(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=2, before=LATE)
    found = job.trains(2)
    job.scale(3)

    def late() -> bool:
        return bool(job.status["round"]["reason"] == "NewcomerLate")

    job.cluster.eventually(late, "the newcomer to be given up", 200)
    job.reaches(job.step + 20)
    assert "job-2-0" not in job.status["round"]["members"]
    job.execute("job-2-0", "touch", "/dev/shm/come")
    job.trains(3, after=number(found) + 2)
    undisturbed(job, job.completes(expected, sizes=[2, 3]))


@pytest.mark.long
def test_more_is_wanted_than_there_is_room_for(job: Followed, expected: Rows) -> None:
    room = job.cluster.get("nodes")["items"][0]["status"]["allocatable"]["cpu"]
    container = {"resources": {"requests": {"cpu": f"{int(room) * 0.6:.1f}"}}}
    job.submit(STEPS, nodes=5, container=container, scaling={"settleSeconds": 3})
    found = job.trains(3)
    assert condition(found, "Degraded")["status"] == "True"
    assert "Unschedulable" in condition(job.status, "Degraded")["message"]
    job.scale(2)
    found = job.trains(2, after=number(found))
    job.scale(3)
    found = job.trains(3, after=number(found))
    assert condition(found, "Degraded")["status"] == "False"
    undisturbed(job, job.completes(expected, sizes=[3, 2, 3]))


@pytest.mark.long
def test_fewer_than_the_minimum_wait_with_what_they_hold(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=3, minNodes=3)
    found = job.trains(3)
    delete(job, "job-2-0", grace=0)
    waiting = phase(job.cluster, job.namespace, "Recovering")
    assert condition(waiting, "Running")["status"] == "False"
    found = job.trains(3, after=number(found))
    assert found["round"]["continuing"] == ["job-0-0", "job-1-0"]
    job.completes(expected, sizes=[3])


@pytest.mark.long
def test_a_job_is_suspended_edited_and_resumed(job: Followed, expected: Rows) -> None:
    job.submit(STEPS, nodes=3)
    found = job.trains(3)
    job.patch(suspend=True)
    phase(job.cluster, job.namespace, "Suspended")
    rest(job, 0)
    with pytest.raises(BenchError, match="must be at least minNodes"):
        job.patch(nodes=0)
    job.patch(nodes=2)
    job.patch(suspend=False)
    found = job.trains(2, after=number(found))
    last = job.completes(expected)
    assert last["failures"]["counted"] == 0


@pytest.mark.long
def test_twenty_random_events_in_a_row(job: Followed, expected: Rows) -> None:
    seed = int(os.environ.get("ELASTRAIN_SEED", time.time_ns() % 10_000))
    print(f"ELASTRAIN_SEED={seed}")
    dice = random.Random(seed)  # noqa: S311
    job.submit(STEPS, nodes=2, failurePolicy={"backoffSeconds": 1, "maxFailures": 20}, pause=0.3)
    job.trains(2)
    wanted = 2
    for _ in range(20):
        what = dice.choice(["scale", "scale", "delete", "kill", "evict", "operator", "wait"])
        members = [pod["metadata"]["name"] for pod in job.pods if pod["status"]["phase"] == "Running"]
        print(f"{what} at step {job.step}, {len(members)} pods run", flush=True)
        victim = dice.choice(members) if members else ""
        try:
            if what == "scale":
                wanted = dice.randint(1, 4)
                job.scale(wanted)
            elif what == "delete" and victim:
                delete(job, victim, grace=0)
            elif what == "evict" and victim:
                delete(job, victim)
            elif what == "kill" and victim:
                job.execute(victim, "python3", "-c", KILL_WORKER)
            elif what == "operator":
                job.cluster.kubectl("delete", "pod", "-n", NAMESPACE, leader(job.cluster), "--wait=false")
        except BenchError as error:
            print(f"not done: {error}")  # what it was meant for has gone in the meantime
        time.sleep(dice.uniform(0, 12))
    job.trains(wanted)
    job.completes(expected)
