"""The chart on a real API server: accepted without a warning, rights as meant, upgrades and ends as promised."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART, NAMESPACE, VALUES, Helm
from tests.cluster.bench.controlplane import ControlPlane
from tests.cluster.bench.layout import BenchError
from tests.cluster.bench.process import wait_for

from elastrain.api import TrainJob
from elastrain.kubernetes.network_policy import network_policy

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]  # the first one builds an API server

RELEASE = "el"
NAME = "el-elastrain"


@pytest.fixture(scope="module")
def helm() -> Helm:
    return Helm.found()


@pytest.fixture(scope="module")
def namespaces(apiserver: ControlPlane) -> Iterator[None]:
    """The namespaces that rendered manifests name, with pod security as strict as it gets."""
    names = (NAMESPACE, "research", "production")
    for name in names:
        apiserver.kubectl("create", "namespace", name)
        apiserver.kubectl(
            "label",
            "namespace",
            name,
            *(f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")),
        )
    yield
    apiserver.kubectl("delete", "namespace", *names, "--wait=false")


def helm_on(helm: Helm, server: ControlPlane, *arguments: str, values: Any = None) -> str:
    done = helm.run(*arguments, "--kubeconfig", str(server.kubeconfig), values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def get(server: ControlPlane, *what: str) -> Any:
    return json.loads(server.kubectl("get", *what, "-o", "json"))


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_what_is_rendered_is_accepted(apiserver: ControlPlane, helm: Helm, values: dict[str, Any]) -> None:
    rendered = helm.render(dict(values), text=True)
    command = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = subprocess.run(
        [apiserver.binaries / "kubectl", "--kubeconfig", apiserver.kubeconfig, *command],
        input=rendered,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(done.stdout.splitlines()) == len([m for m in yaml.safe_load_all(rendered) if m])


@pytest.fixture
def release(apiserver: ControlPlane, helm: Helm, namespace: str) -> Iterator[str]:
    """The chart installed in a namespace of the test's own; nothing runs: there is no node."""
    install(apiserver, helm, namespace)
    yield namespace
    helm.run("uninstall", RELEASE, "-n", namespace, "--kubeconfig", str(apiserver.kubeconfig), "--ignore-not-found")


def install(server: ControlPlane, helm: Helm, namespace: str, chart: Path = CHART, values: Any = None) -> None:
    # The CRD of the tests was applied by kubectl, and one that was kept belongs to another namespace's release.
    helm_on(
        helm, server, "upgrade", "--install", "--take-ownership", RELEASE, str(chart), "-n", namespace, values=values
    )


def may(server: ControlPlane, who: str, namespace: str, verb: str, what: str) -> bool:
    """Return whether the account or user may do that."""
    try:
        return server.kubectl("auth", "can-i", verb, what, "-n", namespace, f"--as={who}").strip() == "yes"
    except BenchError:  # kubectl's way to say no
        return False


WRITES = ("create", "update", "patch", "delete", "deletecollection")


def test_the_operators_rights(apiserver: ControlPlane, release: str) -> None:
    operator = f"system:serviceaccount:{release}:{NAME}"

    def allowed(namespace: str, what: str) -> set[str]:
        verbs = ("get", "list", "watch", *WRITES)
        return {verb for verb in verbs if may(apiserver, operator, namespace, verb, what)}

    read = {"get", "list", "watch"}
    assert allowed("default", "trainjobs.elastrain.dev") == read | {"delete"}
    assert allowed("default", "pods") == read | {"create", "patch", "delete"}
    assert allowed("default", "services") == read | {"create"}
    assert allowed("default", "events") == {"create", "patch"}
    assert allowed("default", "networkpolicies.networking.k8s.io") == {"create"}
    assert allowed("default", "leases.coordination.k8s.io") == set()
    assert allowed(release, "leases.coordination.k8s.io") == {"create"}
    assert allowed(release, f"leases.coordination.k8s.io/{NAME}") == {"create", "get", "update"}
    assert allowed(release, "leases.coordination.k8s.io/another") == {"create"}
    for nothing in ("secrets", "configmaps", "nodes", "serviceaccounts", "deployments.apps", "jobs.batch"):
        assert allowed(release, nothing) == set(), nothing
    assert may(apiserver, operator, "default", "create", "tokenreviews.authentication.k8s.io")
    crds = "customresourcedefinitions.apiextensions.k8s.io"
    assert may(apiserver, operator, "default", "get", f"{crds}/trainjobs.elastrain.dev")
    assert not may(apiserver, operator, "default", "get", f"{crds}/others.example.com")
    assert not may(apiserver, operator, "default", "list", crds)


def test_the_operators_rights_in_one_namespace(apiserver: ControlPlane, helm: Helm, release: str) -> None:
    install(apiserver, helm, release, values={"watchNamespaces": ["default"]})
    operator = f"system:serviceaccount:{release}:{NAME}"
    assert may(apiserver, operator, "default", "create", "pods")
    assert may(apiserver, operator, release, "patch", "pods")  # its own, to mark who leads
    assert not may(apiserver, operator, release, "create", "pods")
    assert not may(apiserver, operator, "kube-system", "create", "pods")
    assert not may(apiserver, operator, "kube-system", "list", "trainjobs.elastrain.dev")
    assert may(apiserver, operator, "kube-system", "create", "tokenreviews.authentication.k8s.io")


@pytest.mark.parametrize(("role", "scales"), [("view", False), ("edit", True), ("admin", True)])
def test_the_rights_of_people(apiserver: ControlPlane, release: str, role: str, scales: bool) -> None:
    apiserver.kubectl("create", "rolebinding", f"one-{role}", f"--clusterrole={role}", "--user=ada", "-n", release)
    # The role's rules are gathered by a controller, some time after the chart's roles are there.
    wait_for(lambda: may(apiserver, "ada", release, "list", "trainjobs.elastrain.dev"), 30, f"the role {role}")
    if scales:  # a role like admin gathers edit's rules a moment later
        wait_for(lambda: may(apiserver, "ada", release, "create", "trainjobs.elastrain.dev"), 30, "rights to write")
    else:
        assert not may(apiserver, "ada", release, "create", "trainjobs.elastrain.dev")
    assert may(apiserver, "ada", release, "update", "trainjobs.elastrain.dev/scale") is scales
    assert not may(apiserver, "ada", "kube-system", "list", "trainjobs.elastrain.dev")


def test_an_upgrade_keeps_the_certificate_that_agents_trust(apiserver: ControlPlane, helm: Helm, release: str) -> None:
    before = get(apiserver, "secret", f"{NAME}-tls", "-n", release)["data"]
    install(apiserver, helm, release, values={"replicas": 3})
    assert get(apiserver, "secret", f"{NAME}-tls", "-n", release)["data"] == before
    assert get(apiserver, "deployment", NAME, "-n", release)["spec"]["replicas"] == 3
    assert b64decode(before["ca.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")


def test_an_upgrade_brings_the_crd_along(apiserver: ControlPlane, helm: Helm, namespace: str, tmp_path: Path) -> None:
    def columns() -> list[str]:
        (version,) = get(apiserver, "crd", "trainjobs.elastrain.dev")["spec"]["versions"]
        return [column["name"] for column in version["additionalPrinterColumns"]]

    older = tmp_path / "elastrain"
    shutil.copytree(CHART, older)
    definition = older / "files" / "trainjobs.elastrain.dev.yaml"
    text = definition.read_text()
    assert text.count("- name: Phase") == 1
    definition.write_text(text.replace("- name: Phase", "- name: State"))
    install(apiserver, helm, namespace, chart=older)
    assert "State" in columns()
    install(apiserver, helm, namespace)
    assert "State" not in columns()
    assert "Phase" in columns()
    helm_on(helm, apiserver, "uninstall", RELEASE, "-n", namespace)


def test_uninstalling_leaves_the_crd_and_nothing_else(apiserver: ControlPlane, helm: Helm, release: str) -> None:
    job = {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "stays"},
        "spec": {"template": {"spec": {"containers": [{"name": "trainer", "image": "trainer"}]}}},
    }
    apiserver.kubectl("create", "-n", release, "-f", "-", input_text=json.dumps(job))
    helm_on(helm, apiserver, "uninstall", RELEASE, "-n", release, "--wait")
    assert get(apiserver, "trainjob", "stays", "-n", release)["metadata"]["name"] == "stays"
    label = f"app.kubernetes.io/instance={RELEASE}"
    kinds = (
        "deployments,replicasets,services,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,"
        "roles,rolebindings,leases"
    )
    assert get(apiserver, kinds, "-n", release, "-l", label)["items"] == []
    assert get(apiserver, "clusterroles,clusterrolebindings", "-l", label)["items"] == []
    annotations = get(apiserver, "crd", "trainjobs.elastrain.dev")["metadata"]["annotations"]
    assert annotations["helm.sh/resource-policy"] == "keep"


def test_a_jobs_network_policy_is_accepted(apiserver: ControlPlane, namespace: str) -> None:
    trainer = {"name": "trainer", "image": "trainer", "ports": [{"containerPort": 6006}]}
    job = TrainJob.model_validate(
        {
            "metadata": {"name": "sft", "namespace": namespace, "uid": "0d5e7d0c-6a3b-4f53-9d6e-5f0c7b1a2e11"},
            "spec": {"template": {"spec": {"containers": [trainer]}}},
        }
    )
    apiserver.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", input_text=json.dumps(network_policy(job))
    )
