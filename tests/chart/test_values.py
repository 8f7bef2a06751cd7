"""Values are described, checked, and refused with the place of the fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from tests.chart.rendering import CHART, VALUES, Helm, Manifest

pytestmark = pytest.mark.timeout(600)  # the first one builds helm

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


def nested(*path: str, value: Any) -> Manifest:
    """Return values that set one place."""
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def leaves(values: Manifest, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value and f"{prefix}{key}" != "resources":
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def closed(schema: Manifest) -> Iterator[Manifest]:
    """Yield every part of the schema that lists properties."""
    if "properties" in schema:
        yield schema
    for value in schema.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from closed(part)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_lint(helm: Helm, values: Manifest) -> None:
    done = helm.run("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_no_object_of_ours_takes_unknown_keys() -> None:
    kubernetes = [SCHEMA["properties"]["extraEnv"]["items"]]  # checked by the API server
    ours = [part for part in closed(SCHEMA) if part not in kubernetes]
    assert len(ours) > 10
    assert [part for part in ours if part.get("additionalProperties") is not False] == []


def test_every_value_has_a_default_and_every_default_a_schema() -> None:
    def compare(properties: Manifest, defaults: Manifest, at: str) -> None:
        assert set(properties) - {"global", "claims"} == set(defaults), at
        for key, value in defaults.items():
            if "properties" in properties[key]:
                compare(properties[key]["properties"], value, f"{at}.{key}")

    compare(SCHEMA["properties"], DEFAULTS, "values")


def test_every_value_is_described() -> None:
    readme = (CHART / "README.md").read_text()
    described = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    assert described == set(leaves(DEFAULTS))


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"replicaCount": 2}, "replicaCount"),
        (nested("replicas", value=0), "replicas"),
        (nested("replicas", value="2"), "replicas"),
        (nested("image", "repo", value="x"), "repo"),
        (nested("image", "repository", value="x@sha256:1"), "repository"),
        (nested("image", "tag", value="a b"), "tag"),
        (nested("image", "tag", value=1.0), "tag"),
        (nested("image", "digest", value="sha256:short"), "digest"),
        (nested("image", "pullPolicy", value="Sometimes"), "pullPolicy"),
        (nested("imagePullSecrets", value=["mirror"]), "imagePullSecrets"),
        (nested("watchNamespaces", value="research"), "watchNamespaces"),
        (nested("watchNamespaces", value=["a", "a"]), "watchNamespaces"),
        (nested("watchNamespaces", value=["*"]), "watchNamespaces"),
        (nested("crds", "install", value=True), "install"),
        (nested("crds", "enabled", value="false"), "enabled"),
        (nested("coordinator", "port", value=70000), "port"),
        (nested("tls", "existingSecret", value="Not_A_Name"), "existingSecret"),
        (nested("networkPolicy", "apiServer", "cidrs", value=["10.0.0.1"]), "cidrs"),
        (nested("networkPolicy", "apiServer", "ports", value=[]), "ports"),
        (nested("resources", "limit", value={"memory": "1Gi"}), "limit"),
        (nested("resources", "limits", "memory", value="lots"), "memory"),
        (nested("podDisruptionBudget", "maxUnavailable", value=0), "maxUnavailable"),
        (nested("nodeSelector", value=["linux"]), "nodeSelector"),
        (nested("nodeSelector", "gpu", value=True), "gpu"),
        (nested("tolerations", value={"key": "x"}), "tolerations"),
        (nested("extraArgs", value="--debug"), "extraArgs"),
        (nested("extraEnv", value=[{"value": "1"}]), "name"),
        (nested("fullnameOverride", value="Capitals"), "fullnameOverride"),
    ],
    ids=lambda case: case if isinstance(case, str) else json.dumps(case),
)
def test_bad_values_are_refused(helm: Helm, bad: Manifest, where: str) -> None:
    done = helm.run("lint", "--strict", str(CHART), values=bad)
    assert done.returncode != 0
    assert where in done.stdout + done.stderr
    assert "specifications of the schema" in done.stdout + done.stderr


def test_a_cluster_that_is_too_old_is_refused(helm: Helm) -> None:
    done = helm.run("template", str(CHART), "--kube-version", "1.28.15")
    assert done.returncode != 0
    assert "incompatible with Kubernetes v1.28.15" in done.stderr


@pytest.mark.parametrize("version", ["1.29.0", "1.33.4-gke.1245000", "1.32.3-eks-bcf3d70"])
def test_versions_of_providers_are_taken(helm: Helm, version: str) -> None:
    assert helm.run("template", str(CHART), "--kube-version", version).returncode == 0
