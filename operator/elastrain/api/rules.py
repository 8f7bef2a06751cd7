"""The rules that span fields, as CEL expressions of the CRD: no admission webhook is needed.

Each message says what is wrong, where, and what to do. A rule's cost is estimated from the bounds of what it
walks, so everything it walks is bounded in the models. Beside each expression stands the same in Python, for
`validation`, where no API server is at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 63 - len("-4999-99999")
"""Pods are called <job>-<index>-<attempt>, which must be a legal label of at most 63 characters."""

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS-1035 label, as a Service's name has to be."""

RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
            "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
            "TORCH_ELASTIC_WORKER_IDENTICAL")  # fmt: skip
RESERVED_PREFIXES = ("ELASTRAIN_", "TORCHELASTIC_", "PET_", "KUBEFLOW_TRAINER_")
"""Environment variables that are set for every round, or that torchrun would take in place of its numbers."""

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule at a place in the schema.

    `at` is the path to what the rule is about (`[]` steps into a list's items), `field` the field of
    it that a refusal points to. `message` may show values by placeholders; `values` has the CEL expression of each.
    `holds` is the rule in CEL. `broken` is the same in Python: None where the rule holds, else the values to show;
    it is absent where a rule compares with the object as it was.
    """

    at: str
    holds: str
    message: str
    field: str = ""
    values: tuple[tuple[str, str], ...] = ()
    broken: Callable[[Any], Node | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as an entry of x-kubernetes-validations."""
        plain = re.sub(r":? ?\{\w+\}", "", self.message)
        out = {"rule": self.holds, "message": plain, "reason": "FieldValueInvalid"}
        if self.field:
            out["fieldPath"] = f".{self.field}"
        if self.values:
            # format() alone has a bounded cost in the API server's estimate; string() and + of numbers have none.
            text = re.sub(r"\{\w+\}", "%s", self.message).replace("'", "\\'")
            expressions = dict(self.values)
            shown = ", ".join(expressions[name] for name in re.findall(r"\{(\w+)\}", self.message))
            out["messageExpression"] = f"'{text}'.format([{shown}])"
        return out


def _fields(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"self.{name}") for name in names)


def _unless(holds: Callable[[Any], bool]) -> Callable[[Any], Node | None]:
    def broken(node: Any) -> Node | None:
        if holds(node):
            return None
        return node if isinstance(node, Mapping) else {}

    return broken


def _multiple(field: str, optional: bool = True) -> Rule:
    absent = f"!has(self.{field}) || " if optional else ""
    return Rule(
        at="spec",
        field=field,
        holds=f"{absent}self.{field} % self.nodeMultiple == 0",
        message=f"spec.{field}: {{{field}}} is not a multiple of spec.nodeMultiple: {{nodeMultiple}}; "
        f"change {field} or nodeMultiple",
        values=_fields(field, "nodeMultiple"),
        broken=_unless(lambda spec: spec.get(field, 0) % spec["nodeMultiple"] == 0),
    )


def _auto(at: str, highest: int) -> Rule:
    """Return the rule of a field that takes the word auto or a number: a schema has no bounds for such a union."""
    return Rule(
        at=at,
        holds=f"type(self) == string ? self == 'auto' : self >= 1 && self <= {highest}",
        message=f"{at} must be auto or from 1 to {highest}",
        broken=_unless(lambda value: value == "auto" if isinstance(value, str) else 1 <= value <= highest),
    )


def is_reserved(name: str) -> bool:
    """Return whether a template must not set this environment variable in the trainer."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def _reserved_names(container: Node) -> Node | None:
    names = [e["name"] for e in container.get("env") or () if is_reserved(e["name"])]
    return {"names": json.dumps(names)} if names and container["name"] == "trainer" else None


def _reserved_in_cel(variable: str) -> str:
    names = ", ".join(f"'{name}'" for name in RESERVED)
    prefixes = " || ".join(f"{variable}.startsWith('{prefix}')" for prefix in RESERVED_PREFIXES)
    return f"{variable} in [{names}] || {prefixes}"


def _in_both(policy: Node) -> Node | None:
    codes = [code for code in policy["fatalExitCodes"] if code in policy["freeExitCodes"]]
    return {"codes": json.dumps(codes)} if codes else None


_CONTAINERS = "spec.template.spec.containers"

RULES: tuple[Rule, ...] = (
    Rule(
        at="",
        field="metadata.name",
        holds=f"size(self.metadata.name) <= {LONGEST_NAME}",
        message=f"metadata.name has more than {LONGEST_NAME} characters: {{length}}; the names of its pods, "
        "<name>-<index>-<attempt>, would exceed 63; choose a shorter name",
        values=(("length", "size(self.metadata.name)"),),
        broken=lambda job: {"length": n} if (n := len(job["metadata"]["name"])) > LONGEST_NAME else None,
    ),
    Rule(
        at="",
        field="metadata.name",
        holds=f"self.metadata.name.matches('{NAME_PATTERN}')",
        message="metadata.name names a Service too: it must begin with a letter and hold only lower case letters, "
        "digits and '-'; choose another name",
        broken=_unless(lambda job: bool(re.fullmatch(NAME_PATTERN, job["metadata"]["name"]))),
    ),
    Rule(
        at="spec",
        field="minNodes",
        holds="!has(self.minNodes) || self.minNodes <= self.nodes",
        message="spec.minNodes: {minNodes} is more than spec.nodes: {nodes}; lower minNodes or raise nodes",
        values=_fields("minNodes", "nodes"),
        broken=_unless(lambda spec: spec.get("minNodes", 0) <= spec["nodes"]),
    ),
    Rule(
        at="spec",
        field="nodes",
        holds="!has(self.maxNodes) || self.nodes <= self.maxNodes",
        message="spec.nodes: {nodes} is more than spec.maxNodes: {maxNodes}; lower nodes or raise maxNodes",
        values=_fields("nodes", "maxNodes"),
        broken=_unless(lambda spec: spec["nodes"] <= spec.get("maxNodes", spec["nodes"])),
    ),
    _multiple("nodes", optional=False),
    _multiple("minNodes"),
    _multiple("maxNodes"),
    _auto("spec.procsPerNode", 1024),
    _auto("spec.failurePolicy.hangSeconds", 315_360_000),
    Rule(
        at="spec",
        field="managedBy",
        holds="has(self.managedBy) == has(oldSelf.managedBy) && "
        "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        message="spec.managedBy cannot be set, changed or removed later; delete the job and create it again",
    ),
    Rule(
        at="spec.checkpoint",
        field="path",
        holds="self.path.startsWith('/')",
        message="spec.checkpoint.path must be absolute: begin it with '/' at the mount of shared storage",
        broken=_unless(lambda checkpoint: checkpoint["path"].startswith("/")),
    ),
    Rule(
        at="spec.failurePolicy",
        field="backoffSeconds",
        holds="self.backoffSeconds <= self.maxBackoffSeconds",
        message="spec.failurePolicy.backoffSeconds: {backoffSeconds} is more than maxBackoffSeconds: "
        "{maxBackoffSeconds}; lower the one or raise the other",
        values=_fields("backoffSeconds", "maxBackoffSeconds"),
        broken=_unless(lambda policy: policy["backoffSeconds"] <= policy["maxBackoffSeconds"]),
    ),
    Rule(
        at="spec.failurePolicy",
        field="fatalExitCodes",
        holds="!self.fatalExitCodes.exists(code, code in self.freeExitCodes)",
        message="spec.failurePolicy.fatalExitCodes and freeExitCodes have codes in common: {codes}; "
        "take them out of one",
        values=(("codes", "self.fatalExitCodes.filter(code, code in self.freeExitCodes)"),),
        broken=_in_both,
    ),
    Rule(
        at="spec.template.spec",
        field="containers",
        holds="self.containers.exists(c, c.name == 'trainer')",
        message=f"{_CONTAINERS} has no container named 'trainer'; name the one that trains 'trainer'",
        broken=_unless(lambda pod: any(c["name"] == "trainer" for c in pod["containers"])),
    ),
    Rule(
        at="spec.template.spec",
        field="restartPolicy",
        holds="!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        message="spec.template.spec.restartPolicy must be Never or left out: the operator restarts training itself",
        broken=_unless(lambda pod: pod.get("restartPolicy", "Never") == "Never"),
    ),
    Rule(
        at=f"{_CONTAINERS}.[]",
        field="image",
        holds="self.name != 'trainer' || (has(self.image) && size(self.image) > 0)",
        message=f"the container 'trainer' in {_CONTAINERS} has no image; give it one",
        broken=_unless(lambda c: c["name"] != "trainer" or bool(c.get("image"))),
    ),
    Rule(
        at=f"{_CONTAINERS}.[]",
        field="env",
        holds=f"self.name != 'trainer' || !has(self.env) || !self.env.exists(e, {_reserved_in_cel('e.name')})",
        message="the container 'trainer' sets environment variables that elastrain and torchrun set for every round: "
        "{names}; remove them from its env",
        values=(("names", f"self.env.filter(e, {_reserved_in_cel('e.name')}).map(e, e.name)"),),
        broken=_reserved_names,
    ),
)
