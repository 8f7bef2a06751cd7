"""The NetworkPolicy of a job: only its own pods reach the ports by which its workers meet.

A policy's selectors cannot say "the same value of a label", so each job needs one of its own. Its name, labels
and owner are the job's, so that a second create is a conflict by name and deletion is the garbage collector's.
"""

from __future__ import annotations

from typing import Any

from elastrain.api import TrainJob
from elastrain.kubernetes.manifests import JOB_LABEL, labels, owner_reference


def network_policy(job: TrainJob) -> dict[str, Any]:
    """Return the policy that closes the job's pods to all but each other, as JSON.

    The workers' ports are free ones, found when a round begins, and cannot be listed. So everything is closed
    from outside but the ports that the template's containers declare. What pods may reach is not limited.
    """
    name = job.metadata.name
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": {"matchLabels": {JOB_LABEL: name}}}]}]
    declared = _declared_ports(job)
    if declared:
        ingress.append({"ports": declared})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": labels(job),
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "podSelector": {"matchLabels": {JOB_LABEL: name}},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _declared_ports(job: TrainJob) -> list[dict[str, Any]]:
    """Return the ports of the template's containers, each once, as a policy names them."""
    pod = job.spec.template.spec.to_json()
    found = {
        (port["containerPort"], port.get("protocol") or "TCP")
        for container in [*pod["containers"], *(pod.get("initContainers") or ())]  # those hold side-cars, too
        for port in container.get("ports") or ()
        if isinstance(port, dict) and isinstance(port.get("containerPort"), int)
    }
    return [{"port": number, "protocol": protocol} for number, protocol in sorted(found)]
