"""Rules that hold for whatever is rendered, with any values: those of the known chart checkers, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.rendering import NAMESPACE, RELEASE, VALUES, Helm, Manifest, of_kind, pod_specs

pytestmark = pytest.mark.timeout(600)  # the first one builds helm

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
ROLES = ("Role", "ClusterRole")


@pytest.fixture(params=VALUES, ids=str)
def manifests(request: pytest.FixtureRequest, helm: Helm) -> list[Manifest]:
    rendered = helm.render(dict(VALUES[request.param]))
    assert isinstance(rendered, list)
    return rendered


def rules(manifests: list[Manifest]) -> list[Manifest]:
    return [rule for kind in ROLES for role in of_kind(manifests, kind) for rule in role["rules"]]


def test_every_object_says_what_it_is_of(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        for key in ("name", "version", "part-of", "managed-by"):
            assert labels[f"app.kubernetes.io/{key}"]
        assert labels["helm.sh/chart"] == "elastrain-0.1.0"


def test_names_are_short_enough_and_unique(manifests: list[Manifest]) -> None:
    seen = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(set(seen)) == len(seen)
    assert all(len(name) <= 63 for kind, _, name in seen if kind not in CLUSTER_WIDE)


def test_every_object_names_its_namespace(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        namespace = manifest["metadata"].get("namespace")
        if manifest["kind"] in CLUSTER_WIDE:
            assert namespace is None
        elif manifest["metadata"]["name"].endswith("-jobs"):
            assert namespace in ("research", "production")
        else:
            assert namespace == NAMESPACE


def test_there_is_no_hook_but_the_test(manifests: list[Manifest]) -> None:
    hooks = [m for m in manifests if "helm.sh/hook" in m["metadata"].get("annotations", {})]
    assert [(m["kind"], m["metadata"]["annotations"]["helm.sh/hook"]) for m in hooks] == [("Pod", "test")]


def test_no_rule_has_a_wildcard(manifests: list[Manifest]) -> None:
    for rule in rules(manifests):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_no_rule_reaches_secrets_or_more_rights(manifests: list[Manifest]) -> None:
    forbidden = {
        "secrets",
        "configmaps",
        "serviceaccounts",
        "serviceaccounts/token",
        "pods/exec",
        "pods/attach",
        "pods/ephemeralcontainers",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "nodes",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
    }
    for rule in rules(manifests):
        assert not forbidden & set(rule["resources"])
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])


def test_no_rule_changes_anything_else_of_others(manifests: list[Manifest]) -> None:
    for kind in ROLES:
        for role in of_kind(manifests, kind):
            if role["metadata"]["name"].endswith(("-view", "-edit", "-admin")):
                continue  # for people
            at_home = role["metadata"].get("namespace") == NAMESPACE
            for rule in role["rules"]:
                changes = {"update", "patch"} & set(rule["verbs"])
                if changes and not at_home:
                    assert rule["resources"] in (["trainjobs/status"], ["events"], ["pods"])
                    assert "update" not in changes or rule["resources"] != ["pods"]


def test_every_binding_is_of_a_role_that_is_there_and_the_operators_account(manifests: list[Manifest]) -> None:
    roles = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests}
    accounts = {spec["serviceAccountName"] for _, spec in pod_specs(manifests) if "serviceAccountName" in spec}
    for binding in [*of_kind(manifests, "RoleBinding"), *of_kind(manifests, "ClusterRoleBinding")]:
        target = binding["roleRef"]
        assert (target["kind"], binding["metadata"].get("namespace"), target["name"]) in roles
        (subject,) = binding["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
        assert {subject["name"]} == accounts


def test_pods_are_restricted(manifests: list[Manifest]) -> None:
    """The Pod Security Standard "restricted", and a root file system that cannot be written."""
    found = list(pod_specs(manifests))
    assert len(found) == 2
    for _, spec in found:
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert {kind for volume in spec["volumes"] for kind in set(volume) - {"name"}} <= {"secret", "emptyDir"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_containers_ask_for_what_they_need_and_their_memory_has_a_limit(manifests: list[Manifest]) -> None:
    for _, spec in pod_specs(manifests):
        for container in spec["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert set(container["resources"]["limits"]) == {"memory"}


def test_images_are_of_one_version(manifests: list[Manifest]) -> None:
    images = {container["image"] for _, spec in pod_specs(manifests) for container in spec["containers"]}
    assert len(images) == 1
    assert not images.pop().endswith((":latest", ":"))


def test_mounted_volumes_and_named_ports_are_there(manifests: list[Manifest]) -> None:
    for _, spec in pod_specs(manifests):
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports


def test_selectors_select_the_operators_pods_and_not_the_check(manifests: list[Manifest]) -> None:
    (operator,) = (m["spec"]["template"]["metadata"]["labels"] for m in of_kind(manifests, "Deployment"))
    (check,) = (m["metadata"]["labels"] for m in of_kind(manifests, "Pod"))

    def selects(selector: dict[str, Any], labels: dict[str, Any]) -> bool:
        return selector.items() <= labels.items()

    (service,) = (m["spec"]["selector"] for m in of_kind(manifests, "Service"))
    assert service.pop("elastrain.dev/leader") == "true"
    selectors = [service]
    selectors += [m["spec"]["podSelector"]["matchLabels"] for m in of_kind(manifests, "NetworkPolicy")]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors += [m["spec"]["selector"]["matchLabels"] for m in of_kind(manifests, kind)]
    for selector in selectors:
        assert selects(selector, operator)
        assert not selects(selector, check)
        assert "helm.sh/chart" not in selector
        assert "app.kubernetes.io/version" not in selector


def test_more_than_one_replica_has_a_disruption_budget(manifests: list[Manifest]) -> None:
    (deployment,) = of_kind(manifests, "Deployment")
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert len(budgets) == (1 if deployment["spec"]["replicas"] > 1 else 0)
    for budget in budgets:
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_replicas_are_spread(manifests: list[Manifest]) -> None:
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
