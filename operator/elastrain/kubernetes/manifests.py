"""From a job to the objects that it needs, as JSON; pure.

Nothing that the template sets is overwritten, but for what makes a pod this job's: its name, host name, owner
and the labels under elastrain.dev/. The rest is added only where the template is silent. A pod whose template
meets the "restricted" level of pod security still meets it afterwards.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain.api import GROUP, KIND, TRAINER, VERSION, TrainJob
from elastrain.api.environment import environment

Json = dict[str, Any]

JOB_LABEL = f"{GROUP}/job"
INDEX_LABEL = f"{GROUP}/node-index"
ATTEMPT_LABEL = f"{GROUP}/attempt"
TEMPLATE_HASH = f"{GROUP}/template-hash"
COORDINATOR_CA = f"{GROUP}/coordinator-ca"

CREDENTIALS_VOLUME, CREDENTIALS_PATH = "elastrain-credentials", "/var/run/elastrain"
MEMORY_VOLUME, MEMORY_PATH = "elastrain-shm", "/dev/shm"  # noqa: S108 - shared memory, not a temporary file
AUDIENCE = "elastrain.dev"
TOKEN_SECONDS = 3600
GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Coordination:
    """What pods are told of the coordinator: its address, and the certificates (PEM) that vouch for it."""

    url: str
    ca: str

    @property
    def ca_digest(self) -> str:
        """What tells one set of certificates from another."""
        return digest_of(self.ca)


def digest_of(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def template_hash(spec: Mapping[str, Any]) -> str:
    """Return the digest of what pods are made from.

    Args:
        spec: the job's spec as the API server has it: fields that it does not have change nothing, so that a
            newer operator that knows more fields gets the same digest.

    """
    parts = {name: spec[name] for name in ("template", "procsPerNode", "globalBatchSize") if name in spec}
    return digest_of(json.dumps(parts, sort_keys=True, separators=(",", ":")))


def owner_reference(job: TrainJob) -> Json:
    """Return the reference by which an object is the job's and goes with it."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def labels(job: TrainJob) -> dict[str, str]:
    """Return the labels of all of a job's objects."""
    return {
        JOB_LABEL: job.metadata.name,
        "app.kubernetes.io/name": "elastrain",
        "app.kubernetes.io/instance": job.metadata.name,
        "app.kubernetes.io/component": "trainer",
        "app.kubernetes.io/managed-by": "elastrain",
    }


def service(job: TrainJob) -> Json:
    """Return the headless Service by which members find each other before the pods are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.metadata.name,
            "namespace": job.metadata.namespace,
            "labels": labels(job),
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "ipFamilyPolicy": "PreferDualStack",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job.metadata.name},
        },
    }


def pod_name(job: TrainJob, index: int, attempt: int) -> str:
    """Return the name of the pod at a node index."""
    return f"{job.metadata.name}-{index}-{attempt}"


def pod(job: TrainJob, template: Mapping[str, Any], digest: str, index: int, attempt: int, to: Coordination) -> Json:
    """Return a pod of the job.

    Args:
        job: the job.
        template: `spec.template` as the API server has it.
        digest: the `template_hash` of the job's spec.
        index: the node index.
        attempt: how many pods there were before at this index.
        to: the coordinator.

    """
    meta: Mapping[str, Any] = template.get("metadata") or {}
    spec: Json = copy.deepcopy(dict(template.get("spec") or {}))
    trainer = next(c for c in spec["containers"] if c.get("name") == TRAINER)
    name = pod_name(job, index, attempt)
    mine = {JOB_LABEL: job.metadata.name, INDEX_LABEL: str(index), ATTEMPT_LABEL: str(attempt)}
    _add_environment(trainer, _environment(job, index, to))
    _add_credentials(spec, trainer)
    _add_shared_memory(spec, trainer)
    _add_defaults(spec, trainer, job)
    spec.update(hostname=name, subdomain=job.metadata.name, restartPolicy="Never")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {**labels(job), **(meta.get("labels") or {}), **mine},
            "annotations": {**(meta.get("annotations") or {}), TEMPLATE_HASH: digest, COORDINATOR_CA: to.ca},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def _environment(job: TrainJob, index: int, to: Coordination) -> list[Json]:
    """Return the variables of docs/protocol.md, "What a pod finds in its environment"."""
    fixed = environment(job, index, url=to.url, credentials=CREDENTIALS_PATH)
    fields = {
        "ELASTRAIN_POD": "metadata.name",
        "ELASTRAIN_POD_IP": "status.podIP",
        "ELASTRAIN_NODE_NAME": "spec.nodeName",
    }
    return [
        *({"name": name, "value": value} for name, value in fixed.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _items(obj: Json, name: str) -> list[Json]:
    """Return the list in this field, made if it is absent or null."""
    obj[name] = obj.get(name) or []
    found: list[Json] = obj[name]
    return found


def _add_environment(trainer: Json, variables: list[Json]) -> None:
    env = _items(trainer, "env")
    given = {variable.get("name") for variable in env}
    # Ours come first, so that the template's own may refer to them as $(NAME).
    env[:0] = [variable for variable in variables if variable["name"] not in given]


def _add_credentials(spec: Json, trainer: Json) -> None:
    spec.setdefault("automountServiceAccountToken", False)
    _items(spec, "volumes").append(
        {
            "name": CREDENTIALS_VOLUME,
            "projected": {
                "defaultMode": 0o444,  # readable by whatever user the image runs as
                "sources": [
                    {
                        "serviceAccountToken": {
                            "audience": AUDIENCE,
                            "expirationSeconds": TOKEN_SECONDS,
                            "path": "token",
                        }
                    },
                    {
                        "downwardAPI": {
                            "items": [
                                {
                                    "path": "ca.crt",
                                    "fieldRef": {"fieldPath": f"metadata.annotations['{COORDINATOR_CA}']"},
                                }
                            ]
                        }
                    },
                ],
            },
        }
    )
    _items(trainer, "volumeMounts").append(
        {"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_PATH, "readOnly": True}
    )


def _add_shared_memory(spec: Json, trainer: Json) -> None:
    """Give the workers more than the runtime's 64 MiB of shared memory."""
    if any(str(mount.get("mountPath")).rstrip("/") == MEMORY_PATH for mount in trainer["volumeMounts"]):
        return
    spec["volumes"].append({"name": MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}})
    trainer["volumeMounts"].append({"name": MEMORY_VOLUME, "mountPath": MEMORY_PATH})


def _add_defaults(spec: Json, trainer: Json, job: TrainJob) -> None:
    spec.setdefault("terminationGracePeriodSeconds", max(GRACE_SECONDS, job.spec.scaling.leave_seconds))
    spec.setdefault("enableServiceLinks", False)  # thousands of variables in a namespace of many Services
    if spec.get("hostNetwork"):
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")  # else members' names are not found
    trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if not spec.get("affinity"):
        apart = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {JOB_LABEL: job.metadata.name}},
        }
        spec["affinity"] = {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
            }
        }
