"""A job, as the tests of the Kubernetes side know it."""

from __future__ import annotations

from typing import Any

from tests.faults.objects import trainjob

from elastrain.kubernetes.jobs import Job, read
from elastrain.kubernetes.manifests import Coordination

TO = Coordination("https://coordinator.elastrain.svc:8443", "-----BEGIN CERTIFICATE-----\n...\n")


def job(**spec: Any) -> Job:
    obj = trainjob(**spec)
    obj["metadata"].update(uid="job-1", resourceVersion="7", generation=3, creationTimestamp="2026-01-31T12:00:00Z")
    found = read(obj)
    assert isinstance(found, Job)
    return found
