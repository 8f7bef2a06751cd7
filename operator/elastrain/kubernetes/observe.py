"""From the API server's objects to what the planner is told; pure.

Whatever is missing or malformed in an object is taken for unknown: a status is written by many hands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from elastrain.api import GROUP, KIND, TRAINER
from elastrain.kubernetes.cache import Entry, Key, Owner, version_of
from elastrain.kubernetes.manifests import ATTEMPT_LABEL, COORDINATOR_CA, INDEX_LABEL, TEMPLATE_HASH, digest_of
from elastrain.planning import Exit, Obstacle, Pod, PodPhase

Json = Mapping[str, Any]

OUTCOMES = ("finished", "left", "retry", "userError", "nodeFault", "hang")
LONGEST_MESSAGE = 1024

HARMLESS_WAITING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that are the ordinary way to its start."""

DISRUPTIONS = (
    "Evicted",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeLost",
    "NodeShutdown",
    "OutOf",  # OutOfcpu, OutOfpods, OutOfnvidia.com/gpu: the node was fuller than the scheduler knew
    "Preempting",
    "Shutdown",
    "Terminated",  # by the kubelet's graceful shutdown of its node
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
)
"""What status.reason begins with when the kubelet, not the containers, ended a pod."""


def owner_of(obj: Json) -> Owner | None:
    """Return the TrainJob that controls an object; None if none does."""
    metadata = obj["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        ours = reference.get("kind") == KIND and str(reference.get("apiVersion", "")).startswith(f"{GROUP}/")
        if ours and reference.get("controller"):
            return Owner(Key(metadata.get("namespace", ""), reference["name"]), reference["uid"])
    return None


def service_entry(obj: Json) -> Entry[str] | None:
    """Return what is kept of a Service: its name; None if it is no job's or is going away."""
    owner = owner_of(obj)
    metadata = obj["metadata"]
    if owner is None or metadata.get("deletionTimestamp"):
        return None
    return Entry(metadata["uid"], owner, version_of(obj), metadata["name"])


def pod_entry(obj: Json) -> Entry[tuple[Pod, str]] | None:
    """Return what is kept of a pod: what decisions need, and the digest of the certificates that it was given.

    None if it is no job's, or has lost the labels by which its place is known.
    """
    owner = owner_of(obj)
    pod = pod_of(obj)
    if owner is None or pod is None:
        return None
    ca = str((obj["metadata"].get("annotations") or {}).get(COORDINATOR_CA) or "")
    return Entry(pod.uid, owner, version_of(obj), (pod, digest_of(ca)))


def pod_of(obj: Json) -> Pod | None:
    """Return a pod as the planner sees it; None if its labels do not tell its place."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index, attempt = _number(labels.get(INDEX_LABEL)), _number(labels.get(ATTEMPT_LABEL))
    if index is None or attempt is None:
        return None
    phase = _phase(status)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        index=index,
        attempt=attempt,
        template_hash=str(annotations.get(TEMPLATE_HASH) or ""),
        phase=phase,
        created=time_of(metadata.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC),
        deleting=bool(metadata.get("deletionTimestamp")),
        address=status.get("podIP") or None,
        node=spec.get("nodeName") or None,
        obstacle=_obstacle(status) if phase is PodPhase.PENDING else None,
        exit=_exit(status, phase),
        disruption=_disruption(status),
        ready=not any(c.get("type") == "Ready" and c.get("status") == "False" for c in status.get("conditions") or ()),
        lingers=status.get("phase") == PodPhase.RUNNING and phase is not PodPhase.RUNNING,
    )


def time_of(text: object) -> datetime | None:
    """Return the instant of an RFC 3339 string; None if it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def _phase(status: Json) -> PodPhase:
    """Return the pod's phase, judged by the trainer alone: a sidecar does not keep a job from ending."""
    try:
        phase = PodPhase(status.get("phase") or "Pending")
    except ValueError:
        return PodPhase.UNKNOWN
    ended = _terminated(status)
    if phase is PodPhase.RUNNING and ended is not None:
        return PodPhase.SUCCEEDED if ended.get("exitCode") == 0 else PodPhase.FAILED
    return phase


def _container(status: Json, name: str = TRAINER) -> Json:
    statuses: Iterable[Json] = status.get("containerStatuses") or ()
    return next((c for c in statuses if c.get("name") == name), {})


def _terminated(status: Json) -> Json | None:
    found: Json | None = (_container(status).get("state") or {}).get("terminated")
    return found


def _obstacle(status: Json) -> Obstacle | None:
    """Return the scheduler's or the kubelet's reason why a pod does not run yet."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False" and condition.get("reason"):
            return Obstacle(str(condition["reason"]), _cut(condition.get("message")))
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason and reason not in HARMLESS_WAITING:
            return Obstacle(str(reason), _cut(f"container {container.get('name')}: {waiting.get('message') or reason}"))
    return None


def _exit(status: Json, phase: PodPhase) -> Exit | None:
    ended = _terminated(status)
    if ended is None:
        ended = _failed_init(status) if phase is PodPhase.FAILED else None
    if ended is None:
        return None
    text = str(ended.get("message") or "")
    told = _told(text)
    code = ended.get("exitCode")
    reason = str(ended.get("reason") or "Error")
    time = time_of(ended.get("finishedAt")) or datetime.fromtimestamp(0, UTC)
    if told is None:
        return Exit(code if isinstance(code, int) else 1, reason, _cut(text, tail=True), time)
    return Exit(
        exit_code=_int(told.get("exitCode"), code if isinstance(code, int) else 1),
        # The kubelet knows of the memory limit what the agent, killed with its workers, cannot tell.
        reason=reason if reason == "OOMKilled" else str(told.get("reason") or reason),
        message=_cut(told.get("message"), tail=True),
        time=time,
        outcome=str(told["outcome"]),
        round=_int(told.get("round"), None),
        rank=_int(told.get("rank"), None),
    )


def _failed_init(status: Json) -> Json | None:
    """Return the end of the first init container that failed, and with it the pod."""
    for container in status.get("initContainerStatuses") or ():
        ended: Json | None = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return {**ended, "message": f"init container {container.get('name')}: {ended.get('message') or ''}"}
    return None


def _told(text: str) -> dict[str, Any] | None:
    """Return the agent's termination message (docs/protocol.md), if it is one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # the script may write whatever it likes
        return None
    if not isinstance(found, dict) or found.get("outcome") not in OUTCOMES:
        return None
    return found


def _int(value: object, otherwise: Any) -> Any:
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
    return value if fits else otherwise


def _disruption(status: Json) -> str | None:
    """Return the cluster's reason for ending the pod, if it has one."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "DisruptionTarget")
    reason = str(status.get("reason") or "")
    return reason if reason.startswith(DISRUPTIONS) else None


def _cut(text: object, *, tail: bool = False) -> str:
    """Return at most as much of a text as a status takes; the end of a log tells more than its beginning."""
    found = str(text or "").strip().encode("utf-8", "replace").decode()  # JSON may hold half of a surrogate pair
    return found[-LONGEST_MESSAGE:] if tail else found[:LONGEST_MESSAGE]
