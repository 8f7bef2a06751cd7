"""Small pure parts: merge patches, versions of jobs, token reviews and the check of the served CRD."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.fake_apiserver import merged
from tests.faults.objects import trainjob

from elastrain.api.crd import crd
from elastrain.kubernetes.authenticate import Bearer, bearer_of
from elastrain.kubernetes.cache import Key
from elastrain.kubernetes.executor import merge_patch
from elastrain.kubernetes.jobs import Job, Jobs, Unreadable
from elastrain.kubernetes.schema import missing_fields

Json = dict[str, Any]

_leaves = st.one_of(
    st.integers(-2, 2), st.text("ab", max_size=2), st.booleans(), st.lists(st.integers(0, 2), max_size=2)
)
_objects = st.recursive(
    st.dictionaries(st.sampled_from("abc"), _leaves, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.one_of(_leaves, inner), max_size=3),
    max_leaves=8,
)


@given(_objects, _objects)
def test_a_merge_patch_makes_the_one_of_the_other(before: Json, after: Json) -> None:
    patch = merge_patch(before, after)
    assert merged(before, patch) == after
    assert (patch == {}) == (before == after)


def stored(name: str = "sft", uid: str = "u1", version: int = 5, **spec: Any) -> Json:
    obj = trainjob(name, **spec)
    obj["metadata"].update(uid=uid, resourceVersion=str(version))
    return obj


def test_an_older_version_of_a_job_never_replaces_a_newer_one() -> None:
    jobs = Jobs()
    assert jobs.put(stored(version=9, nodes=4))
    assert not jobs.put(stored(version=9, nodes=3))
    assert not jobs.put(stored(version=8, nodes=2))
    found = jobs.get(Key("default", "sft"))
    assert isinstance(found, Job)
    assert (found.model.spec.nodes, found.version) == (4, 9)
    assert jobs.put(stored(version=10, nodes=2))


def test_only_the_job_of_the_uid_is_removed() -> None:
    jobs = Jobs()
    jobs.put(stored(uid="new"))
    assert not jobs.remove(Key("default", "sft"), "old")
    assert jobs.remove(Key("default", "sft"), "new")
    assert jobs.get(Key("default", "sft")) is None


def test_a_job_that_cannot_be_read_says_where() -> None:
    jobs = Jobs()
    jobs.put(stored(nodes="many"))
    found = jobs.get(Key("default", "sft"))
    assert isinstance(found, Unreadable)
    assert found.problem.startswith("spec.nodes: ")


GOOD = {
    "authenticated": True,
    "audiences": ["elastrain.dev"],
    "user": {
        "username": "system:serviceaccount:team:runner",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["sft-0-0"],
            "authentication.kubernetes.io/pod-uid": ["u1"],
            "authentication.kubernetes.io/node-name": ["n"],
        },
    },
}


def test_the_bearer_of_a_good_token() -> None:
    assert bearer_of(GOOD) == Bearer("team", "runner", "sft-0-0", "u1")


@pytest.mark.parametrize(
    "change",
    [
        {"authenticated": False},
        {"authenticated": None},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"audiences": None},
        {"user": {}},
        {"user": {**GOOD["user"], "username": "alice"}},  # type: ignore[dict-item]
        {"user": {"username": "system:serviceaccount:team:runner"}},
        {"user": {**GOOD["user"], "extra": {"authentication.kubernetes.io/pod-name": ["sft-0-0"]}}},  # type: ignore[dict-item]
    ],
)
def test_tokens_that_are_not_good(change: Json) -> None:
    assert bearer_of({**GOOD, **change}) is None


def test_the_crd_of_this_release_lacks_nothing() -> None:
    assert list(missing_fields(crd())) == []


def test_a_newer_crd_lacks_nothing() -> None:
    newer = crd()
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    newer["spec"]["versions"].insert(0, {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {}}})
    assert list(missing_fields(newer)) == []


def test_an_older_crd_is_told_by_the_fields_that_it_lacks() -> None:
    older = copy.deepcopy(crd())
    properties = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["spares"]
    del properties["status"]["properties"]["round"]["properties"]["storePort"]
    del properties["status"]["properties"]["failures"]["properties"]["strikes"]["items"]["properties"]["count"]
    assert sorted(missing_fields(older)) == ["spec.spares", "status.failures.strikes[].count", "status.round.storePort"]


def test_a_crd_without_our_version_is_told() -> None:
    other = crd()
    other["spec"]["versions"][0]["served"] = False
    assert list(missing_fields(other)) == ["version v1alpha1"]
