"""Whose a token is: the API server is asked by a TokenReview. Results are kept by the coordinator, not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain.kubernetes.client import TOKEN_REVIEWS, Client
from elastrain.kubernetes.manifests import AUDIENCE

POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
USER = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class Bearer:
    """The pod that a token is bound to, and the service account that it is of."""

    namespace: str
    service_account: str
    pod: str
    pod_uid: str


async def review(client: Client, token: str) -> Bearer | None:
    """Return the pod that a token is bound to; None if the token is not good for our audience, or of no pod.

    Args:
        client: asks.
        token: as an agent sent it.

    Raises:
        ApiError: the API server did not say.

    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    # One attempt: the agent that waits for the answer asks again by itself.
    answer = await client.request("POST", TOKEN_REVIEWS.path(), body=body, timeout=10.0, attempts=1)
    return bearer_of(answer.get("status") or {})


def bearer_of(status: Mapping[str, Any]) -> Bearer | None:
    """Return the bearer from the status of a TokenReview; pure."""
    if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
        return None
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    name = str(user.get("username") or "")
    pods: list[str] = extra.get(POD_NAME) or []
    uids: list[str] = extra.get(POD_UID) or []
    if not name.startswith(USER) or len(pods) != 1 or len(uids) != 1:
        return None
    namespace, _, account = name.removeprefix(USER).partition(":")
    return Bearer(namespace, account, str(pods[0]), str(uids[0]))
