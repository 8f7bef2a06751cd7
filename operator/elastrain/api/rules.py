"""The rules that span fields, as CEL expressions of the CRD: no admission webhook is needed.

Each message says what is wrong, where, and what to do. A rule's cost is estimated from the bounds of what it
walks, so everything it walks is bounded in the models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 63 - len("-4999-99999")
"""Pods are called <job>-<index>-<attempt>, which must be a legal label of at most 63 characters."""

RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
            "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
RESERVED_PREFIXES = ("ELASTRAIN_", "TORCHELASTIC_", "KUBEFLOW_TRAINER_")


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule at a place in the schema (`[]` steps into a list's items)."""

    at: str
    rule: str
    message: str
    field_path: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as an entry of x-kubernetes-validations."""
        out: dict[str, Any] = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        if self.field_path:
            out["fieldPath"] = self.field_path
        return out


def _multiple(field: str) -> Rule:
    return Rule(
        at="spec",
        rule=f"!has(self.{field}) || self.{field} % self.nodeMultiple == 0",
        message=f"spec.{field} is not a multiple of spec.nodeMultiple: change {field} or nodeMultiple",
        field_path=f".{field}",
    )


_RESERVED_LIST = "[" + ", ".join(f"'{name}'" for name in RESERVED) + "]"
_PREFIXES = " || ".join(f"e.name.startsWith('{prefix}')" for prefix in RESERVED_PREFIXES)

RULES: tuple[Rule, ...] = (
    Rule(
        at="",
        rule=f"size(self.metadata.name) <= {LONGEST_NAME}",
        message=f"metadata.name is longer than {LONGEST_NAME} characters, so that pods named "
        "<name>-<index>-<attempt> would exceed 63; choose a shorter name",
        field_path=".spec",
    ),
    Rule(
        at="",
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="metadata.name names a Service too: it must begin with a letter and hold only lower case letters, "
        "digits and '-'; choose another name",
        field_path=".spec",
    ),
    Rule(
        at="spec",
        rule="!has(self.minNodes) || self.minNodes <= self.nodes",
        message="spec.minNodes is more than spec.nodes; lower minNodes or raise nodes",
        field_path=".minNodes",
    ),
    Rule(
        at="spec",
        rule="!has(self.maxNodes) || self.nodes <= self.maxNodes",
        message="spec.nodes is more than spec.maxNodes; lower nodes or raise maxNodes",
        field_path=".nodes",
    ),
    _multiple("nodes"),
    _multiple("minNodes"),
    _multiple("maxNodes"),
    Rule(
        at="spec",
        rule="has(self.managedBy) == has(oldSelf.managedBy) && "
        "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        message="spec.managedBy cannot be changed; delete the job and create it again",
        field_path=".managedBy",
    ),
    Rule(
        at="spec.checkpoint",
        rule="self.path.startsWith('/')",
        message="spec.checkpoint.path must be absolute: begin it with '/' at the mount of shared storage",
        field_path=".path",
    ),
    Rule(
        at="spec.failurePolicy",
        rule="self.backoffSeconds <= self.maxBackoffSeconds",
        message="spec.failurePolicy.backoffSeconds is more than maxBackoffSeconds; lower the one or raise the other",
        field_path=".backoffSeconds",
    ),
    Rule(
        at="spec.failurePolicy",
        rule="!self.fatalExitCodes.exists(code, code in self.freeExitCodes)",
        message="an exit code is both in spec.failurePolicy.fatalExitCodes and in freeExitCodes; take it out of one",
        field_path=".fatalExitCodes",
    ),
    Rule(
        at="spec.template.spec",
        rule="self.containers.exists_one(c, c.name == 'trainer')",
        message="spec.template.spec.containers has no container named 'trainer'; name the one that trains 'trainer'",
        field_path=".containers",
    ),
    Rule(
        at="spec.template.spec",
        rule="self.containers.all(c, c.name != 'trainer' || (has(c.image) && size(c.image) > 0))",
        message="the container 'trainer' in spec.template.spec.containers has no image; give it one",
        field_path=".containers",
    ),
    Rule(
        at="spec.template.spec",
        rule="!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        message="spec.template.spec.restartPolicy must be Never or left out: the operator restarts training itself",
        field_path=".restartPolicy",
    ),
    Rule(
        at="spec.template.spec",
        rule="self.containers.all(c, c.name != 'trainer' || !has(c.env) || "
        f"!c.env.exists(e, e.name in {_RESERVED_LIST} || {_PREFIXES}))",
        message="the container 'trainer' sets an environment variable that elastrain sets for every round "
        f"({', '.join(RESERVED)}, {', '.join(p + '*' for p in RESERVED_PREFIXES)}); remove it from its env",
        field_path=".containers",
    ),
)
