"""The CustomResourceDefinition, generated from the models.

pydantic's JSON schema becomes the structural schema that Kubernetes wants: references are inlined, null is
absence, int-or-string and preserved objects carry their extensions. No kept library does this way round; those
on the package index make models from CRDs. Rules that span fields are in `rules`.
"""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from elastrain.api.rules import RULES, Rule
from elastrain.api.status import TrainJobStatus
from elastrain.api.trainjob import GROUP, KIND, PLURAL, VERSION, TrainJobSpec

SCHEMA_HASH = "elastrain.dev/schema-hash"
"""The annotation by which an operator tells whether the CRD that is served is the one it knows."""

SHORT_NAME = "tj"

SCALE = {
    "specReplicasPath": ".spec.nodes",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
"""What `kubectl scale` and autoscalers read and write."""

MAX_BYTES = 200 * 1024
"""Beyond 256 KiB a plain `kubectl apply` cannot keep the last applied configuration in an annotation."""


class _Structural(GenerateJsonSchema):
    """JSON schema without null: in Kubernetes an absent field is absent."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        result = super().default_schema(schema)
        if result.get("default", 0) is None:
            result.pop("default")
        return result


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = deepcopy(definitions[node["$ref"].rsplit("/", 1)[1]])
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: _inline(item, definitions) for name, item in value.items()}
        elif key in ("title", "$defs") or (key == "additionalProperties" and isinstance(value, bool)):
            continue
        else:
            out[key] = _inline(value, definitions)
    return _kubernetes(out)


def _kubernetes(node: dict[str, Any]) -> dict[str, Any]:
    """Turn what JSON schema says and a structural schema cannot into Kubernetes' extensions."""
    if node.pop("anyOf", None):
        node["x-kubernetes-int-or-string"] = True  # the bounds, which have no place beside it, are in `rules`
    if node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict):
        node.setdefault("maxProperties", 256)
        node.pop("propertyNames", None)
    if node.get("type") == "array" and "x-kubernetes-list-type" not in node:
        node["x-kubernetes-list-type"] = "atomic"
    return node


def _schema_of(model: type[TrainJobSpec] | type[TrainJobStatus]) -> dict[str, Any]:
    raw = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Structural)
    return cast(dict[str, Any], _inline(raw, raw.get("$defs", {})))


def _at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for step in path.split(".") if path else ():
        schema = schema["items"] if step == "[]" else schema["properties"][step]
    return schema


def _with_rules(schema: dict[str, Any], rules: tuple[Rule, ...]) -> dict[str, Any]:
    for rule in rules:
        _at(schema, rule.at).setdefault("x-kubernetes-validations", []).append(rule.to_json())
    return schema


def _column(name: str, path: str, type_: str = "string", **more: object) -> dict[str, Any]:
    return {"name": name, "type": type_, "jsonPath": path, **more}


def schema() -> dict[str, Any]:
    """Return the structural schema of a TrainJob, with its rules."""
    result: dict[str, Any] = {
        "type": "object",
        "description": "A training job that may change its size while it runs.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": _schema_of(TrainJobSpec),
            "status": _schema_of(TrainJobStatus),
        },
    }
    return _with_rules(result, RULES)


def columns() -> list[dict[str, Any]]:
    """Return the columns of `kubectl get`; those of priority 1 are shown by `-o wide`."""
    return [
        _column("Phase", ".status.phase"),
        _column("Nodes", ".status.nodes.summary", description="nodes that train / nodes wanted"),
        _column("Round", ".status.round.number", "integer"),
        _column("Step", ".status.progress.step", "integer"),
        _column("Progress", ".status.progress.percent", "integer", description="percent of all steps"),
        _column("Restarts", ".status.failures.counted", "integer"),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Goodput", ".status.goodput.ratio", "number", priority=1),
        _column("Message", ".status.conditions[?(@.type=='Running')].message", priority=1),
    ]


def crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition of TrainJob.

    Raises:
        ValueError: it is too large for a plain `kubectl apply`.

    """
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema()},
        "subresources": {
            "status": {},
            "scale": SCALE,
        },
        "selectableFields": [{"jsonPath": ".spec.suspend"}, {"jsonPath": ".status.phase"}],
        "additionalPrinterColumns": columns(),
    }
    digest = hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:16]
    result = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "annotations": {SCHEMA_HASH: digest}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["elastrain"],
            },
            "versions": [version],
        },
    }
    size = len(json.dumps(result))
    if size > MAX_BYTES:
        raise ValueError(f"the CRD has {size} bytes, more than {MAX_BYTES}: shorten descriptions")
    return result


def to_yaml() -> str:
    """Return the CRD as the file in `crds/`."""
    import yaml

    return "# Generated by `make generate` from operator/elastrain/api; do not edit.\n" + yaml.safe_dump(
        crd(), sort_keys=False, width=120
    )
