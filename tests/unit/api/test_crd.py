"""The generated CRD: equal to the file, small enough, structural, and every bound in place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.unit.api.cases import BOUNDS
from typer.testing import CliRunner

from elastrain.api import TrainJobSpec
from elastrain.api.crd import MAX_BYTES, crd, to_yaml
from elastrain.api.reference import to_markdown
from elastrain.api.rules import LONGEST_NAME
from elastrain.cli import app

ROOT = Path(__file__).parents[3]
FILE = ROOT / "crds" / "elastrain.dev_trainjobs.yaml"


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


def test_the_reference_is_what_the_models_say() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == to_markdown(), "run `make generate`"


def test_the_reference_has_every_field() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for path, _ in nodes(schema()):
        name = path.removeprefix(".spec.").removeprefix(".status.")
        if path.startswith((".spec.", ".status.")) and not name.endswith(("[]", "{}")):
            assert f"| `{name}` |" in text


def test_the_command_prints_the_file() -> None:
    result = CliRunner().invoke(app, ["crd"])
    assert result.exit_code == 0
    assert yaml.safe_load(result.output) == yaml.safe_load(FILE.read_text())


def test_it_is_small_enough_for_a_plain_apply() -> None:
    assert FILE.stat().st_size < MAX_BYTES


def test_every_node_has_a_type_and_a_bound() -> None:
    for path, node in nodes(schema()):
        assert "$ref" not in node
        assert "description" in node or not path.startswith((".spec", ".status")) or path.endswith(("[]", "{}")), path
        assert "anyOf" not in node
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node
            continue
        assert "type" in node, path
        if not path.startswith(".spec") and not path.startswith(".status"):
            continue
        assert node["type"] not in ("integer", "number") or path.startswith(".status") or "maximum" in node, path
        if node["type"] == "string" and "enum" not in node and node.get("format") != "date-time":
            assert "maxLength" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path
        if isinstance(node.get("additionalProperties"), dict):
            assert "maxProperties" in node, path


def test_every_number_of_the_spec_is_in_the_table_of_bounds() -> None:
    numbers = {
        path.removeprefix(".spec."): (node["minimum"], node["maximum"])
        for path, node in nodes(schema())
        if path.startswith(".spec.") and node.get("type") == "integer" and not path.endswith("[]")
    }
    assert numbers == BOUNDS


@pytest.mark.parametrize(("field", "most"), [("procsPerNode", 1024), ("hangSeconds", 315_360_000)])
def test_the_models_have_the_bounds_of_the_rules(field: str, most: int) -> None:
    def spec(value: object) -> dict[str, object]:
        inner = {field: value} if field == "procsPerNode" else {"failurePolicy": {field: value}}
        return {"template": {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}, **inner}

    for value in ("auto", 1, most):
        TrainJobSpec.model_validate(spec(value))
    for value in ("many", 0, most + 1):
        with pytest.raises(ValidationError):
            TrainJobSpec.model_validate(spec(value))


def test_the_longest_name_leaves_room_for_index_and_attempt() -> None:
    most = BOUNDS["nodes"][1] - 1
    assert len(f"{'x' * LONGEST_NAME}-{most}-99999") == 63


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
