"""What exists, as far as the streams have told: objects reduced to what is needed, indexed by job.

Three sources fill a cache: lists replace, watch events follow, and answers to our own writes are inserted, so
that a pod just created is never missed because the stream lags. Which of them is newer is told by the
resourceVersion, which orders all versions of a kind (a decimal number that may be compared since Kubernetes
1.35, and was one in every release before). `reflector` drives it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class Key(NamedTuple):
    """A job by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Owner(NamedTuple):
    """A job by its key and the uid that tells it from another of the same name."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class Entry(Generic[Value]):
    """One object: its identity, whose it is, which version, and what is kept of it."""

    uid: str
    owner: Owner
    version: int
    value: Value


def version_of(obj: Mapping[str, Any]) -> int:
    """Return the resourceVersion of an object, or of a list, as the number that it is."""
    return int(obj["metadata"]["resourceVersion"])


class Cache(Generic[Value]):
    """The objects of one kind in some scopes; a scope is a namespace, or None for all.

    `changed` is called with the job of every object that appeared, changed or vanished.
    """

    def __init__(self, reduce: Callable[[dict[str, Any]], Entry[Value] | None], changed: Callable[[Key], None]) -> None:
        """Make an empty cache.

        Args:
            reduce: from an object to its entry; None: it is no job's and is not kept.
            changed: told of changes; must not use the cache.

        """
        self._reduce = reduce
        self._changed = changed
        self._entries: dict[str, Entry[Value]] = {}
        self._by_owner: dict[Owner, dict[str, Entry[Value]]] = defaultdict(dict)
        self._seen: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, uid: str) -> Entry[Value] | None:
        """Return the object of this uid, if it exists."""
        return self._entries.get(uid)

    def of(self, owner: Owner) -> Mapping[str, Entry[Value]]:
        """Return the objects of a job by uid."""
        return MappingProxyType(self._by_owner.get(owner, {}))

    def entries(self) -> Iterable[Entry[Value]]:
        """Return all objects."""
        return tuple(self._entries.values())

    def reduce(self, items: Iterable[dict[str, Any]]) -> list[Entry[Value]]:
        """Return the entries of a page of a list, so that its objects can be dropped at once."""
        return [entry for item in items if (entry := self._read(item)) is not None]

    def replace(self, scope: str | None, listed: Iterable[Entry[Value]], version: int) -> None:
        """Take over a consistent list; what it lacks is gone, unless it was created after the list was made.

        Args:
            scope: the namespace that was listed; None: all.
            listed: the entries of the whole list.
            version: the revision of the list.

        """
        fresh = {entry.uid: entry for entry in listed}
        self._seen[scope] = version
        for entry in tuple(self._entries.values()):
            if self._covers(scope, entry) and entry.uid not in fresh and entry.version <= version:
                self._remove(entry.uid)
        for entry in fresh.values():
            self._put(entry)

    def follow(self, scope: str | None, kind: str, obj: dict[str, Any]) -> None:
        """Take over an event of a watch: ADDED, MODIFIED, DELETED, or BOOKMARK, which only tells the revision."""
        self._seen[scope] = max(self._seen.get(scope, 0), version_of(obj))
        if kind == "DELETED":
            self._remove(obj["metadata"]["uid"])
        elif kind != "BOOKMARK":
            entry = self._read(obj)
            if entry is None:
                self._remove(obj["metadata"]["uid"])
            else:
                self._put(entry)

    def insert(self, obj: dict[str, Any]) -> None:
        """Take over the answer to a write of our own.

        The streams are ahead of it if they have reached its version: then it may be deleted already.
        """
        entry = self._read(obj)
        if entry is None:
            return
        seen = max(self._seen.get(None, 0), self._seen.get(entry.owner.key.namespace, 0))
        if entry.version > seen:
            self._put(entry)

    def remove(self, uid: str) -> None:
        """Forget an object that the server says does not exist."""
        self._remove(uid)

    def _read(self, obj: dict[str, Any]) -> Entry[Value] | None:
        """Reduce an object; one that cannot be read is left out, so that it harms no job but its own."""
        try:
            return self._reduce(obj)
        except (AttributeError, KeyError, TypeError, ValueError):
            metadata = obj.get("metadata") or {}
            where = f"{metadata.get('namespace')}/{metadata.get('name')}"
            log.exception("%s %s cannot be read and is left out", obj.get("kind") or "object", where)
            return None

    def _covers(self, scope: str | None, entry: Entry[Value]) -> bool:
        return scope is None or entry.owner.key.namespace == scope

    def _put(self, entry: Entry[Value]) -> None:
        before = self._entries.get(entry.uid)
        if before is not None:
            if before.version >= entry.version:
                return
            self._drop(before)
        self._entries[entry.uid] = entry
        self._by_owner[entry.owner][entry.uid] = entry
        if before is not None and before.owner != entry.owner:
            self._changed(before.owner.key)
        if before is None or (before.value, before.owner) != (entry.value, entry.owner):
            self._changed(entry.owner.key)

    def _remove(self, uid: str) -> None:
        before = self._entries.get(uid)
        if before is not None:
            self._drop(before)
            self._changed(before.owner.key)

    def _drop(self, entry: Entry[Value]) -> None:
        del self._entries[entry.uid]
        mine = self._by_owner[entry.owner]
        del mine[entry.uid]
        if not mine:
            del self._by_owner[entry.owner]
