"""The TrainJobs that are known, each in its newest version.

kopf's events, lists and the answers to our own writes all end here; an older version never replaces a newer one,
so that a decision follows from the status that was written last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from elastrain.api import TrainJob
from elastrain.kubernetes.cache import Key, Owner, version_of
from elastrain.kubernetes.manifests import template_hash

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A TrainJob, parsed, with the parts that have to stay as the API server has them."""

    model: TrainJob
    template: Json
    status: Json
    template_hash: str
    version: int

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return Key(self.model.metadata.namespace, self.model.metadata.name)

    @property
    def owner(self) -> Owner:
        """What its objects are known by."""
        return Owner(self.key, self.uid)

    @property
    def uid(self) -> str:
        """What tells it from another of its name."""
        return self.model.metadata.uid


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A TrainJob that this release cannot read: stored under another version of the CRD."""

    key: Key
    uid: str
    version: int
    problem: str


def key_of(obj: Json) -> Key:
    """Return the key of a TrainJob as the API server has it."""
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def read(obj: Json) -> Job | Unreadable:
    """Return a TrainJob as the API server has it, read."""
    try:
        model = TrainJob.model_validate(obj)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return Unreadable(key_of(obj), obj["metadata"]["uid"], version_of(obj), f"{place}: {first['msg']}")
    spec = obj["spec"]
    return Job(model, spec["template"], obj.get("status") or {}, template_hash(spec), version_of(obj))


class Jobs:
    """The newest version of each TrainJob."""

    def __init__(self) -> None:
        self._jobs: dict[Key, Job | Unreadable] = {}

    def get(self, key: Key) -> Job | Unreadable | None:
        """Return the job of this key, if it is known."""
        return self._jobs.get(key)

    def all(self) -> Iterable[Job | Unreadable]:
        """Return all that are known."""
        return tuple(self._jobs.values())

    def put(self, obj: Json) -> bool:
        """Take over a version of a job; return whether it is news."""
        key = key_of(obj)
        before = self._jobs.get(key)
        if before is not None and before.version >= version_of(obj):
            return False
        self._jobs[key] = read(obj)
        return True

    def remove(self, key: Key, uid: str) -> bool:
        """Forget the job of this uid, which no longer exists; return whether it was known."""
        before = self._jobs.get(key)
        if before is None or before.uid != uid:
            return False
        del self._jobs[key]
        return True
