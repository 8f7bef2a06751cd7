"""What the API server would refuse, told where none is at hand.

The same schema and the same rules as in the CRD, in the same words for the rules; the tests hold both against one
table of accepted and refused jobs. What only a cluster knows (quota, admission, the rest of the pod template) is
not checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastrain.api.crd import schema
from elastrain.api.rules import RULES, Rule
from elastrain.api.trainjob import GROUP, KIND, VERSION

Schema = Mapping[str, Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
_UNITS = {"Length": "characters", "Items": "items", "Properties": "entries"}


def problems(manifest: Any) -> tuple[str, ...]:
    """Return a sentence for each thing in a TrainJob that the API server would refuse.

    Args:
        manifest: the TrainJob as it was read from YAML or JSON.

    """
    if not isinstance(manifest, Mapping):
        return ("the document is not an object; write apiVersion, kind, metadata and spec",)
    if (manifest.get("apiVersion"), manifest.get("kind")) != (f"{GROUP}/{VERSION}", KIND):
        return (
            f"apiVersion: {manifest.get('apiVersion')}, kind: {manifest.get('kind')}: "
            f"this is not a TrainJob of this release; write apiVersion: {GROUP}/{VERSION}, kind: {KIND}",
        )
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        return ("metadata.name: Required value",)
    root = schema()
    # The rest of the metadata is the API server's own affair.
    job = _with_defaults(root, {**manifest, "metadata": {"name": metadata["name"]}})
    found = tuple(_misfits(root, job, ""))
    return found or tuple(sentence for rule in RULES for sentence in _broken(rule, job))


def _with_defaults(at: Schema, value: Any) -> Any:
    """Fill in defaults and drop nulls as the API server does before it validates."""
    if isinstance(value, Mapping):
        known = at.get("properties", {})
        filled = {name: child for name, child in value.items() if child is not None or name not in known}
        for name, child in known.items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
        return {name: _with_defaults(known.get(name, {}), child) for name, child in filled.items()}
    if isinstance(value, list):
        return [_with_defaults(at.get("items", {}), item) for item in value]
    return value


def _misfits(at: Schema, value: Any, path: str) -> Iterator[str]:
    if at.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{path}: must be an integer or a string"
        return
    if "type" in at and not _is(value, at["type"]):
        yield f"{path}: must be of type {at['type']}"
        return
    yield from _out_of_bounds(at, value, path)
    if isinstance(value, Mapping):
        yield from _misfits_in_object(at, value, path)
    elif isinstance(value, list) and "items" in at:
        for position, item in enumerate(value):
            yield from _misfits(at["items"], item, f"{path}[{position}]")
        yield from _duplicates(at, value, path)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _misfits_in_object(at: Schema, value: Mapping[str, Any], path: str) -> Iterator[str]:
    known, others = at.get("properties", {}), at.get("additionalProperties")
    for name in at.get("required", ()):
        if name not in value:
            yield f"{_join(path, name)}: Required value"
    for name, child in value.items():
        place = _join(path, name)
        if name in known:
            yield from _misfits(known[name], child, place)
        elif others:
            yield from _misfits(others, child, place)
        elif not at.get("x-kubernetes-preserve-unknown-fields"):
            yield f'unknown field "{place}"'


def _out_of_bounds(at: Schema, value: Any, path: str) -> Iterator[str]:
    if "enum" in at and value not in at["enum"]:
        yield f"{path}: {value!r} is none of {', '.join(at['enum'])}"
    if isinstance(value, int | float):
        if value < at.get("minimum", value):
            yield f"{path}: {value} should be greater than or equal to {at['minimum']}"
        if value > at.get("maximum", value):
            yield f"{path}: {value} should be less than or equal to {at['maximum']}"
        return
    size = len(value)
    for kind, unit in ((str, "Length"), (list, "Items"), (Mapping, "Properties")):
        if isinstance(value, kind) and size < at.get(f"min{unit}", size):
            yield f"{path}: has {size} {_UNITS[unit]}, should have at least {at[f'min{unit}']}"
        if isinstance(value, kind) and size > at.get(f"max{unit}", size):
            yield f"{path}: has {size} {_UNITS[unit]}, should have at most {at[f'max{unit}']}"


def _duplicates(at: Schema, items: Sequence[Any], path: str) -> Iterator[str]:
    keys = at.get("x-kubernetes-list-map-keys")
    if not keys:
        return
    seen: set[tuple[Any, ...]] = set()
    for position, item in enumerate(items):
        key = tuple(item.get(name) for name in keys) if isinstance(item, Mapping) else ()
        if key in seen:
            yield f"{path}[{position}]: Duplicate value: {', '.join(map(str, key))}"
        seen.add(key)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _broken(rule: Rule, job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences of a rule wherever what it is about is there and breaks it."""
    if rule.broken is None:
        return
    for place in _places(job, rule.at.split(".") if rule.at else []):
        shown = rule.broken(place)
        if shown is not None:
            yield rule.message.format_map(shown)


def _places(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if not path:
        yield value
    elif path[0] == "[]":
        for item in value:
            yield from _places(item, path[1:])
    elif path[0] in value:
        yield from _places(value[path[0]], path[1:])
