"""Which of three sources is newer: lists, watches and the answers to our own writes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.faults import objects

from elastrain.kubernetes.cache import Cache, Key, Owner
from elastrain.kubernetes.observe import pod_entry

Json = dict[str, Any]
OWNER = Owner(Key("default", "sft"), "job-1")


def pod(version: int, uid: str = "u1", *, job_uid: str = "job-1", namespace: str = "default", **meta: Any) -> Json:
    obj = objects.pod(job_uid=job_uid, namespace=namespace)
    obj["metadata"].update(uid=uid, resourceVersion=str(version), **meta)
    return obj


class Told:
    """A cache, and what it told of."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.cache = Cache(pod_entry, self.keys.append)

    def listed(self, version: int, *pods: Json, scope: str | None = None) -> None:
        self.cache.replace(scope, self.cache.reduce(pods), version)

    def deleting(self) -> list[bool]:
        return [entry.value[0].deleting for entry in self.cache.entries()]


def test_a_list_made_before_our_creation_does_not_hide_it() -> None:
    told = Told()
    told.listed(10)
    told.cache.insert(pod(12))
    told.listed(11)
    assert len(told.cache) == 1
    told.listed(13)
    assert len(told.cache) == 0


def test_a_list_made_before_our_deletion_does_not_undo_it() -> None:
    told = Told()
    told.listed(10, pod(5))
    told.cache.insert(pod(12, deletionTimestamp="2026-01-31T12:00:00Z"))
    told.listed(11, pod(5))
    assert told.deleting() == [True]


def test_an_answer_that_the_streams_have_overtaken_is_not_taken() -> None:
    told = Told()
    told.listed(10)
    told.cache.follow(None, "ADDED", pod(12))
    told.cache.follow(None, "DELETED", pod(14))
    told.cache.insert(pod(12))
    assert len(told.cache) == 0


@pytest.mark.parametrize("kind", ["BOOKMARK", "ADDED"])
def test_what_a_stream_has_told_counts_for_its_own_scope(kind: str) -> None:
    told = Told()
    told.listed(10, scope="default")
    told.listed(10, scope="other")
    told.cache.follow("other", kind, pod(20, "u2", namespace="other"))
    told.cache.insert(pod(12))
    assert told.cache.get("u1") is not None, "the stream of this namespace may not have come so far"


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    told = Told()
    told.listed(10, pod(5), scope="default")
    told.listed(10, pod(6, "u2", namespace="other"), scope="other")
    told.listed(20, scope="other")
    assert [entry.uid for entry in told.cache.entries()] == ["u1"]


def test_two_jobs_of_one_name_never_mix() -> None:
    told = Told()
    told.listed(10, pod(5), pod(6, "u2", job_uid="job-2"))
    assert set(told.cache.of(OWNER)) == {"u1"}
    assert set(told.cache.of(Owner(OWNER.key, "job-2"))) == {"u2"}
    assert set(told.cache.of(Owner(OWNER.key, "job-3"))) == set()


def test_only_what_matters_is_told_of() -> None:
    told = Told()
    told.listed(10, pod(5))
    assert told.keys == [OWNER.key]
    told.cache.follow(None, "MODIFIED", pod(11))
    told.cache.follow(None, "BOOKMARK", {"metadata": {"resourceVersion": "15"}})
    told.listed(20, pod(11))
    assert told.keys == [OWNER.key], "nothing that is kept of the pod has changed"
    told.cache.follow(None, "MODIFIED", pod(21, deletionTimestamp="2026-01-31T12:00:00Z"))
    assert told.keys == [OWNER.key] * 2


def test_a_pod_that_is_no_longer_ours_is_told_of_and_gone() -> None:
    told = Told()
    told.listed(10, pod(5))
    orphan = pod(11)
    del orphan["metadata"]["ownerReferences"]
    told.cache.follow(None, "MODIFIED", orphan)
    assert (len(told.cache), told.keys) == (0, [OWNER.key] * 2)


def test_a_pod_that_gets_another_owner_is_told_to_both() -> None:
    told = Told()
    told.listed(10, pod(5))
    other = pod(11)
    other["metadata"]["ownerReferences"][0]["name"] = "new"
    told.cache.follow(None, "MODIFIED", other)
    assert told.keys == [OWNER.key, OWNER.key, Key("default", "new")]
    assert set(told.cache.of(OWNER)) == set()
