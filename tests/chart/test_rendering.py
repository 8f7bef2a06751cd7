"""What the values do."""

from __future__ import annotations

import ssl
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART, NAMESPACE, ROOT, VALUES, Helm, Manifest, of_kind, operator, the

pytestmark = pytest.mark.timeout(600)  # the first one builds helm

CRD = ROOT / "crds" / "elastrain.dev_trainjobs.yaml"


def role(manifests: list[Manifest], kind: str, ending: str) -> dict[str, set[str]]:
    """Return the verbs by resource of the role with that ending; limited ones as resource/name."""
    (found,) = (m for m in of_kind(manifests, kind) if m["metadata"]["name"].endswith(ending))
    verbs: dict[str, set[str]] = {}
    for rule in found["rules"]:
        for resource in rule["resources"]:
            for name in rule.get("resourceNames", [""]):
                verbs.setdefault(f"{resource}={name}" if name else resource, set()).update(rule["verbs"])
    return verbs


JOBS = {
    "trainjobs": {"get", "list", "watch", "delete"},
    "trainjobs/status": {"patch", "update"},
    "pods": {"create", "get", "list", "watch", "patch", "delete"},
    "services": {"create", "get", "list", "watch"},
    "events": {"create", "patch"},
    "networkpolicies": {"create"},
}
ALWAYS = {"customresourcedefinitions=trainjobs.elastrain.dev": {"get"}, "tokenreviews": {"create"}}


def test_the_chart_has_the_crd_that_is_generated() -> None:
    copy = CHART / "files" / "trainjobs.elastrain.dev.yaml"
    assert copy.read_text() == CRD.read_text(), "run `make generate`"


def test_the_crd_is_kept_and_upgraded_with_the_chart(helm: Helm) -> None:
    rendered = the(helm.render({"commonLabels": {"team": "research"}}), "CustomResourceDefinition")
    generated = yaml.safe_load(CRD.read_text())
    assert rendered["spec"] == generated["spec"]
    assert rendered["metadata"]["name"] == "trainjobs.elastrain.dev"
    expected = {"helm.sh/resource-policy": "keep", **generated["metadata"]["annotations"]}
    assert rendered["metadata"]["annotations"] == expected
    assert rendered["metadata"]["labels"]["team"] == "research"


def test_the_crd_may_go_with_the_release_or_be_left_out(helm: Helm) -> None:
    gone = the(helm.render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in gone["metadata"]["annotations"]
    assert of_kind(helm.render({"crds": {"enabled": False}}), "CustomResourceDefinition") == []


def test_rights_in_all_namespaces(helm: Helm) -> None:
    manifests = helm.render({})
    assert role(manifests, "ClusterRole", ":el-elastrain") == {**ALWAYS, **JOBS}
    assert role(manifests, "Role", "-leader") == {
        "leases": {"create"},
        "leases=el-elastrain": {"get", "update"},
        "pods": {"patch"},
    }
    assert len(of_kind(manifests, "Role")) == 1


def test_rights_in_some_namespaces(helm: Helm) -> None:
    manifests = helm.render({"watchNamespaces": ["research", "production"]})
    assert role(manifests, "ClusterRole", ":el-elastrain") == ALWAYS
    jobs = [m for m in of_kind(manifests, "Role") if m["metadata"]["name"].endswith("-jobs")]
    assert [m["metadata"]["namespace"] for m in jobs] == ["research", "production"]
    for found in jobs:
        assert role([found], "Role", "-jobs") == JOBS
    arguments = operator(manifests)["args"]
    assert arguments[arguments.index("--namespaces") + 1] == "research,production"


def test_policies_of_jobs_may_be_left_out(helm: Helm) -> None:
    assert "--network-policy" in operator(helm.render({}))["args"]
    manifests = helm.render({"networkPolicy": {"jobs": False}})
    assert "--network-policy" not in operator(manifests)["args"]
    assert "networkpolicies" not in role(manifests, "ClusterRole", ":el-elastrain")


def test_roles_of_people(helm: Helm) -> None:
    manifests = helm.render({})
    read, write = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    view = {"trainjobs": read, "trainjobs/scale": {"get"}, "trainjobs/status": {"get"}}
    edit = {**view, "trainjobs": read | write, "trainjobs/scale": {"get", "update", "patch"}}
    for name, verbs in {"view": view, "edit": edit, "admin": edit}.items():
        assert role(manifests, "ClusterRole", f"-{name}") == verbs
        (found,) = (m for m in of_kind(manifests, "ClusterRole") if m["metadata"]["name"].endswith(f"-{name}"))
        aggregates = [key for key in found["metadata"]["labels"] if key.startswith("rbac.")]
        assert aggregates == [f"rbac.authorization.k8s.io/aggregate-to-{name}"]


def test_two_releases_of_one_name_share_no_cluster_wide_object(helm: Helm) -> None:
    def names(namespace: str) -> set[tuple[str, str]]:
        done = helm.run("template", "el", str(CHART), "-n", namespace, "--kube-version", "1.36.3")
        found = [m for m in yaml.safe_load_all(done.stdout) if m and m["kind"].startswith("ClusterRole")]
        assert len(found) == 5
        return {(m["kind"], m["metadata"]["name"]) for m in found}

    assert not names("one") & names("two")


def argument(manifests: list[Manifest], name: str) -> str:
    arguments = operator(manifests)["args"]
    return str(arguments[arguments.index(name) + 1])


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_agents_are_told_the_services_address(helm: Helm, values: Manifest) -> None:
    manifests = helm.render(dict(values))
    service = the(manifests, "Service")
    (port,) = service["spec"]["ports"]
    expected = f"https://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
    assert argument(manifests, "--coordinator-url") == expected
    (container_port,) = operator(manifests)["ports"]
    assert port["targetPort"] == container_port["name"]
    assert argument(manifests, "--port") == str(container_port["containerPort"])


def test_the_lease_that_is_used_is_the_one_that_is_allowed(helm: Helm) -> None:
    manifests = helm.render({"fullnameOverride": "other"})
    assert f"leases={argument(manifests, '--lease-name')}" in role(manifests, "Role", "-leader")
    assert argument(manifests, "--lease-namespace") == NAMESPACE


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("el", {}, "el-elastrain"),
        ("elastrain", {}, "elastrain"),
        ("my-elastrain-2", {}, "my-elastrain-2"),
        ("el", {"nameOverride": "op"}, "el-op"),
        ("el", {"fullnameOverride": "op"}, "op"),
        ("r" * 53, {}, "r" * 51),
        ("el", {"fullnameOverride": "a" * 50 + "-b"}, "a" * 50),
    ],
)
def test_names(helm: Helm, release: str, values: Manifest, name: str) -> None:
    manifests = helm.render(values, release=release)
    assert the(manifests, "Deployment")["metadata"]["name"] == name
    assert the(manifests, "Service")["metadata"]["name"] == f"{name}-coordinator"


def test_images(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    for values, image in (
        ({}, "elastrain-operator:0.1.0"),
        ({"image": {"tag": "1.2"}}, "elastrain-operator:1.2"),
        ({"image": {"repository": "mirror:5000/a/b", "tag": "1.2"}}, "mirror:5000/a/b:1.2"),
        ({"image": {"tag": "1.2", "digest": digest}}, f"elastrain-operator@{digest}"),
    ):
        assert operator(helm.render(values))["image"] == image


def test_probes_ask_over_tls(helm: Helm) -> None:
    container = operator(helm.render({}))
    asked = {key: value["httpGet"] for key, value in container.items() if key.endswith("Probe")}
    assert {key: (value["scheme"], value["path"]) for key, value in asked.items()} == {
        "startupProbe": ("HTTPS", "/livez"),
        "livenessProbe": ("HTTPS", "/livez"),
        "readinessProbe": ("HTTPS", "/readyz"),
    }


def test_the_certificate_is_good_for_the_address_that_agents_are_told(helm: Helm, tmp_path: Path) -> None:
    secret = the(helm.render({}), "Secret")
    assert secret["type"] == "kubernetes.io/tls"
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(b64decode(secret["data"][name]))
    assert set(secret["data"]) == {"ca.crt", "tls.crt", "tls.key"}  # above all not the authority's key
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    for name in ("el-elastrain-coordinator.train.svc", "el-elastrain-coordinator.train.svc.cluster.local"):
        shake_hands(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(client, server, "el-elastrain-coordinator.other.svc")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Let the two meet in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=name)]
    ends.append(server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() == "TLSv1.3"


def test_a_secret_of_ones_own_is_used(helm: Helm) -> None:
    manifests = helm.render({"tls": {"existingSecret": "from-cert-manager"}})
    assert of_kind(manifests, "Secret") == []
    specs = [the(manifests, "Deployment")["spec"]["template"]["spec"], the(manifests, "Pod")["spec"]]
    for spec in specs:
        names = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
        assert names == ["from-cert-manager"]


def test_the_check_sees_no_private_key(helm: Helm) -> None:
    (volume,) = the(helm.render({}), "Pod")["spec"]["volumes"]
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_the_operators_network_policy(helm: Helm) -> None:
    policy = the(helm.render({}), "NetworkPolicy")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "https", "protocol": "TCP"}]}]
    dns, api = policy["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert api == {"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]}
    limited = the(helm.render(dict(VALUES["everything set"])), "NetworkPolicy")["spec"]["egress"][1]
    assert limited["to"] == [{"ipBlock": {"cidr": cidr}} for cidr in ("10.0.0.1/32", "fd00::1/128")]


def test_what_is_passed_through(helm: Helm) -> None:
    manifests = helm.render(dict(VALUES["everything set"]))
    template = the(manifests, "Deployment")["spec"]["template"]
    given: dict[str, Any] = dict(VALUES["everything set"])
    for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "imagePullSecrets"):
        assert template["spec"][key] == given[key]
    assert template["spec"]["priorityClassName"] == "system-cluster-critical"
    assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert template["metadata"]["annotations"]["note"] == "yes"
    container = operator(manifests)
    assert container["args"][-2:] == ["--log-level", "debug"]
    assert container["env"][-1] == {"name": "PYTHONASYNCIODEBUG", "value": "1"}
    assert container["resources"] == given["resources"]
    for manifest in manifests:
        assert manifest["metadata"]["labels"]["team"] == "research"
