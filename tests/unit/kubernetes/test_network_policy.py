"""The policy selects one job's pods and lets in those pods, and others only where a container says so."""

from __future__ import annotations

from typing import Any

from elastrain.api import TrainJob
from elastrain.kubernetes.network_policy import network_policy


def job(*containers: dict[str, Any]) -> TrainJob:
    trainer = {"name": "trainer", "image": "trainer"}
    return TrainJob.model_validate(
        {
            "metadata": {"name": "sft", "namespace": "research", "uid": "uid-1"},
            "spec": {"template": {"spec": {"containers": containers or [trainer]}}},
        }
    )


def test_only_the_jobs_own_pods_are_let_in() -> None:
    policy = network_policy(job())
    assert policy["spec"] == {
        "podSelector": {"matchLabels": {"elastrain.dev/job": "sft"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"elastrain.dev/job": "sft"}}}]}],
    }


def test_it_goes_with_its_job() -> None:
    metadata = network_policy(job())["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("sft", "research")
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "TrainJob",
            "name": "sft",
            "uid": "uid-1",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def test_declared_ports_stay_open() -> None:
    trainer = {
        "name": "trainer",
        "image": "trainer",
        "ports": [{"containerPort": 6006}, {"containerPort": 53, "protocol": "UDP"}],
    }
    sidecar = {
        "name": "metrics",
        "image": "m",
        "ports": [{"containerPort": 9090, "name": "http"}, {"containerPort": 6006}],
    }
    outside = network_policy(job(trainer, sidecar))["spec"]["ingress"][1:]
    assert outside == [
        {
            "ports": [
                {"port": 53, "protocol": "UDP"},
                {"port": 6006, "protocol": "TCP"},
                {"port": 9090, "protocol": "TCP"},
            ]
        }
    ]


def test_ports_that_the_api_server_will_refuse_are_left_to_it() -> None:
    trainer = {"name": "trainer", "image": "trainer", "ports": [{"containerPort": "many"}, "none", {}]}
    assert len(network_policy(job(trainer))["spec"]["ingress"]) == 1
