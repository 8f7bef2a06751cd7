"""The generated CRD: equal to the file, small enough, structural, and every bound in place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from elastrain.api.crd import MAX_BYTES, crd, to_yaml
from elastrain.cli import app

FILE = Path(__file__).parents[3] / "crds" / "elastrain.dev_trainjobs.yaml"


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from nodes(item, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def schema() -> dict[str, Any]:
    return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_file_is_what_the_models_say() -> None:
    assert FILE.read_text() == to_yaml(), "run `make generate`"


def test_the_command_prints_the_file() -> None:
    result = CliRunner().invoke(app, ["crd"])
    assert result.exit_code == 0
    assert yaml.safe_load(result.output) == yaml.safe_load(FILE.read_text())


def test_it_is_small_enough_for_a_plain_apply() -> None:
    assert FILE.stat().st_size < MAX_BYTES


def test_every_node_has_a_type_and_a_bound() -> None:
    for path, node in nodes(schema()):
        assert "$ref" not in node
        assert "anyOf" not in node
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node
            continue
        assert "type" in node, path
        if not path.startswith(".spec") and not path.startswith(".status"):
            continue
        if node["type"] == "string" and "enum" not in node and node.get("format") != "date-time":
            assert "maxLength" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path
        if isinstance(node.get("additionalProperties"), dict):
            assert "maxProperties" in node, path


def test_names_and_subresources() -> None:
    spec = crd()["spec"]
    assert spec["names"]["shortNames"] == ["tj"]
    assert spec["names"]["categories"] == ["elastrain"]
    version = spec["versions"][0]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.nodes",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert [c["name"] for c in version["additionalPrinterColumns"] if not c.get("priority")] == [
        "Phase", "Nodes", "Round", "Step", "Progress", "Restarts", "Age",
    ]  # fmt: skip
