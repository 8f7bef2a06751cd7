"""The operator on a real API server, with the garbage collector and the namespace controller, but no nodes."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.operators import Operators
from tests.cluster.bench.controlplane import ControlPlane
from tests.faults.objects import trainjob

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]

Json = dict[str, Any]


@pytest.fixture
def operators(apiserver: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Operators]:
    found = Operators(apiserver, namespace, tmp_path)
    try:
        yield found
    finally:
        found.stop()


def job(name: str = "sft", **spec: Any) -> Json:
    obj = trainjob(name, **spec)
    del obj["metadata"]["namespace"]
    return obj


def test_a_job_gets_its_service_policy_and_pods_which_go_with_it(operators: Operators) -> None:
    operators.start("first", "--network-policy")
    operators.apply(job(nodes=3))
    pods = operators.until(lambda: found if len(found := operators.list("pods")) == 3 else None)
    uid = (operators.find("trainjob", "sft") or {})["metadata"]["uid"]
    assert [p["metadata"]["name"] for p in pods] == ["sft-0-0", "sft-1-0", "sft-2-0"]
    policy = operators.until(lambda: operators.find("networkpolicy", "sft"))
    service = operators.until(lambda: operators.find("service", "sft"))
    for obj in (*pods, service, policy):
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner.get("blockOwnerDeletion", False)) == (uid, True, False)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    # What the API server defaulted or dropped would make the operator's pods differ from what it meant.
    spec = pods[0]["spec"]
    assert spec["automountServiceAccountToken"] is False
    sources = next(v for v in spec["volumes"] if v["name"] == "elastrain-credentials")["projected"]["sources"]
    assert [next(iter(source)) for source in sources] == ["serviceAccountToken", "downwardAPI"]
    assert operators.until(lambda: operators.condition()[0] == "Unschedulable")
    phase = (operators.find("trainjob", "sft") or {})["status"]["phase"]
    assert phase == "Pending"
    operators.plane.kubectl("-n", operators.namespace, "delete", "trainjob", "sft")
    operators.until(lambda: not operators.list("pods"))
    operators.until(lambda: not operators.find("service", "sft") and not operators.find("networkpolicy", "sft"))


def test_the_users_part_of_a_job_is_never_written(operators: Operators) -> None:
    operators.start()
    operators.apply(job())
    operators.until(lambda: len(operators.list("pods")) == 2)
    found = json.loads(
        operators.plane.kubectl(
            "-n", operators.namespace, "get", "trainjob", "sft", "-o", "json", "--show-managed-fields"
        )
    )
    assert not found["metadata"].get("finalizers")
    assert [name for name in found["metadata"].get("annotations", {}) if "kopf" in name] == []
    ours = [entry for entry in found["metadata"]["managedFields"] if entry["manager"] == "elastrain"]
    assert [entry.get("subresource") for entry in ours] == ["status"]
    assert found["metadata"]["generation"] == 1


def test_a_quota_is_told_of_with_its_text_and_waited_for(operators: Operators) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}},
    }  # fmt: skip
    operators.apply(quota)
    operators.until(lambda: (operators.find("resourcequota", "few") or {}).get("status", {}).get("hard"))
    operators.start()
    operators.apply(job(nodes=8))
    reason, message = operators.until(lambda: c if (c := operators.condition())[0] == "QuotaExceeded" else None)
    assert (reason, "exceeded quota: few" in message) == ("QuotaExceeded", True)
    assert len(operators.list("pods")) == 1
    operators.apply({**quota, "spec": {"hard": {"pods": "20"}}})
    operators.until(lambda: len(operators.list("pods")) == 8)


def test_a_template_that_is_refused_is_told_of_with_the_servers_text_until_it_is_mended(operators: Operators) -> None:
    operators.start()
    broken = job()
    broken["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"cpu": "1"},
        "requests": {"cpu": "2"},
    }
    operators.apply(broken)
    reason, message = operators.until(lambda: c if (c := operators.condition())[0] == "InvalidTemplate" else None)
    assert reason == "InvalidTemplate"
    assert "must be less than or equal to cpu limit" in message
    assert operators.list("pods") == []
    operators.apply(job())
    operators.until(lambda: len(operators.list("pods")) == 2)


def test_pods_that_the_namespaces_security_refuses_are_told_of_and_ours_pass_the_restricted_level(
    operators: Operators,
) -> None:
    operators.plane.kubectl("label", "namespace", operators.namespace, "pod-security.kubernetes.io/enforce=restricted")
    operators.start()
    operators.apply(job())
    operators.until(lambda: operators.condition()[0] == "PodsRefused")
    assert 'violates PodSecurity "restricted' in operators.condition()[1]
    fit = job("fit")
    fit["spec"]["template"]["spec"].update(
        securityContext={"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    )
    fit["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    operators.apply(fit)
    operators.until(lambda: len(operators.list("pods")) == 2)


def test_a_name_that_another_object_has_is_told_of_and_left_alone(operators: Operators) -> None:
    operators.plane.kubectl("-n", operators.namespace, "create", "service", "clusterip", "sft", "--tcp=80")
    operators.start()
    operators.apply(job())
    operators.until(lambda: operators.condition()[0] == "NameConflict")
    assert "Service sft exists and is not of this job" in operators.condition()[1]
    found = operators.find("service", "sft")
    assert found is not None
    assert not found["metadata"].get("ownerReferences")


def test_a_namespace_that_is_deleted_goes_away(operators: Operators) -> None:
    other = f"{operators.namespace}-gone"
    operators.plane.kubectl("create", "namespace", other)
    operators.start("first", "--namespaces", f"{operators.namespace},{other}")
    obj = {**job(), "metadata": {"name": "sft", "namespace": other}}
    operators.plane.kubectl("apply", "-f", "-", input_text=json.dumps(obj))
    operators.until(lambda: "sft-1-0" in operators.plane.kubectl("-n", other, "get", "pods", "-o", "name"))
    operators.plane.kubectl("delete", "namespace", other, "--wait=false")
    operators.until(
        lambda: other not in operators.plane.kubectl("get", "namespaces", "-o", "name").replace("/", " ").split()
    )
    assert operators.processes["first"].poll() is None


def test_a_second_replica_takes_over_from_one_that_was_killed(operators: Operators) -> None:
    operators.start("first")
    first = operators.until(operators.holder)
    operators.apply(job())
    operators.until(lambda: len(operators.list("pods")) == 2)
    operators.start("second")
    operators.until(lambda: "stands by" in operators.log("second"))
    before = {p["metadata"]["uid"] for p in operators.list("pods")}
    operators.kill("first")
    operators.until(lambda: operators.holder() not in ("", first), seconds=15)
    operators.apply(job(nodes=3))
    operators.until(lambda: len(operators.list("pods")) == 3)
    assert before < {p["metadata"]["uid"] for p in operators.list("pods")}, "pods were made anew"


def test_a_replica_that_is_told_to_stop_frees_the_lease_and_ends_well(operators: Operators) -> None:
    operators.start("first")
    operators.until(operators.holder)
    operators.until(lambda: "leads now" in operators.log("first"))
    assert operators.kill("first", signal.SIGTERM) == 0
    assert operators.holder() == ""


def test_agents_are_known_by_the_tokens_of_their_pods(operators: Operators) -> None:
    operators.start()
    operators.apply(job())
    operators.apply(job("other"))
    operators.until(lambda: len(operators.list("pods")) == 4)
    good = _token(operators, "elastrain.dev", "sft-0-0")
    operators.until(lambda: _ask(operators, "sft", good) == 204)
    assert _ask(operators, "other", good) == 403
    assert _ask(operators, "sft", _token(operators, "https://kubernetes.default.svc", "sft-0-0")) == 401
    unbound = operators.plane.kubectl(
        "-n", operators.namespace, "create", "token", "default", "--audience=elastrain.dev"
    )
    assert _ask(operators, "sft", unbound.strip()) == 401
    assert _ask(operators, "sft", "nonsense") == 401


def _token(operators: Operators, audience: str, pod: str) -> str:
    uid = next(p["metadata"]["uid"] for p in operators.list("pods") if p["metadata"]["name"] == pod)
    return operators.plane.kubectl(
        "-n", operators.namespace, "create", "token", "default", f"--audience={audience}",
        "--bound-object-kind=Pod", f"--bound-object-name={pod}", f"--bound-object-uid={uid}",
    ).strip()  # fmt: skip


def _ask(operators: Operators, name: str, token: str) -> int:
    """Report as an agent does and return the status."""
    base = f"https://127.0.0.1:{operators.ports['first']}/v1/namespaces/{operators.namespace}/trainjobs/{name}"
    body = json.dumps(
        {"version": 1, "type": "state", "state": "ready", "round": 0, "ports": {"rendezvous": 4001, "store": 4002}}
    )
    request = urllib.request.Request(f"{base}/reports", body.encode(), {"Authorization": f"Bearer {token}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, context=operators.trust, timeout=30) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0  # not up yet
