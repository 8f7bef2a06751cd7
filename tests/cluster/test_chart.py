"""The chart on a real cluster: installed, checked, upgraded, taken away and brought back while a job trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.cluster.bench.layout import REPOSITORY, BenchError
from tests.cluster.target import NAMESPACE, RELEASE, Target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

COMPONENT = "app.kubernetes.io/component=operator"
OWNED = (
    "deployments,replicasets,pods,services,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,"
    "roles,rolebindings"
)


@pytest.fixture
def installed(cluster: Target) -> Iterator[Target]:
    """The installed chart, and as it was afterwards, whatever a test did to it."""
    yield cluster
    cluster.install()


def operators(cluster: Target) -> list[dict[str, Any]]:
    found = cluster.get("pods", "-n", NAMESPACE, "-l", COMPONENT)["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def leaders(cluster: Target) -> list[dict[str, Any]]:
    return [pod for pod in operators(cluster) if pod["metadata"]["labels"].get("elastrain.dev/leader") == "true"]


def addresses(cluster: Target) -> set[str]:
    """Return where the coordinator's Service leads to."""
    label = f"kubernetes.io/service-name={RELEASE}-coordinator"
    slices = cluster.get("endpointslices", "-n", NAMESPACE, "-l", label)["items"]
    return {address for found in slices for end in found.get("endpoints") or () for address in end["addresses"]}


def test_one_replica_leads_and_it_alone_is_asked(cluster: Target) -> None:
    pods = operators(cluster)
    assert len(pods) == 2
    assert all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"])
    (leader,) = cluster.eventually(lambda: leaders(cluster), "a leader", 30)
    cluster.eventually(lambda: addresses(cluster) == {leader["status"]["podIP"]}, "the leader to be the one to ask", 30)
    lease = cluster.get("lease", "-n", NAMESPACE, RELEASE)
    assert lease["spec"]["holderIdentity"].startswith(leader["metadata"]["name"])


def test_the_check_succeeds_and_is_cleared_away(cluster: Target) -> None:
    assert "Phase:          Succeeded" in cluster.helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "120s")
    assert cluster.get("pod", "-n", NAMESPACE, f"{RELEASE}-check") is None


def test_the_check_fails_where_nobody_answers(installed: Target) -> None:
    installed.kubectl("delete", "service", "-n", NAMESPACE, f"{RELEASE}-coordinator")
    with pytest.raises(BenchError, match="elastrain-check failed"):
        installed.helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "150s")
    assert f"{RELEASE}-coordinator" in installed.kubectl("logs", "-n", NAMESPACE, f"{RELEASE}-check")
    installed.kubectl("delete", "pod", "-n", NAMESPACE, f"{RELEASE}-check")


def test_it_is_upgraded_under_restricted_pod_security(installed: Target) -> None:
    installed.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    before = {pod["metadata"]["uid"] for pod in operators(installed)}
    trusted = installed.get("secret", "-n", NAMESPACE, f"{RELEASE}-tls")["data"]
    installed.install("podAnnotations.example\\.com/note=upgraded")
    after = {pod["metadata"]["uid"] for pod in operators(installed)}
    assert len(after) == 2
    assert not before & after
    assert installed.get("secret", "-n", NAMESPACE, f"{RELEASE}-tls")["data"] == trusted
    (leader,) = installed.eventually(lambda: leaders(installed), "a leader", 30)
    assert leader["metadata"]["uid"] in after


def test_a_job_trains_on_while_the_operator_is_taken_away_and_brought_back(installed: Target, namespace: str) -> None:
    body = yaml.safe_load((REPOSITORY / "examples/language_model/trainjob.yaml").read_text())
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container.update(image=installed.trainer_image, args=["train.py", "--max_steps", "20000"])
    installed.apply(namespace, body)
    job = ("trainjob", "-n", namespace, "language-model")

    def step() -> int:
        return int((installed.get(*job).get("status", {}).get("progress") or {}).get("step", 0))

    installed.eventually(lambda: step() > 0, "the first steps", 300)
    pods = {pod["metadata"]["uid"] for pod in installed.get("pods", "-n", namespace)["items"]}

    installed.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    label = f"app.kubernetes.io/instance={RELEASE}"
    installed.eventually(
        lambda: not installed.get(OWNED, "-n", NAMESPACE, "-l", label)["items"], "nothing to be left", 60
    )
    assert installed.get("clusterroles,clusterrolebindings", "-l", label)["items"] == []
    stands = step()

    installed.install()  # with another certificate, which the running pods have to learn of
    installed.eventually(lambda: step() > stands, "progress after the return", 240)
    found = installed.get("pods", "-n", namespace)["items"]
    assert {pod["metadata"]["uid"] for pod in found} == pods
    status = installed.get(*job)["status"]
    assert status["round"]["number"] == 1
    assert status["failures"] == {"counted": 0, "free": 0, "strikes": []}
    installed.kubectl("delete", *job[:1], "-n", namespace, "language-model")
