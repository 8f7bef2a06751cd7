"""The mark on the leader's own pod, by which the coordinator's Service sends agents to it alone."""

from __future__ import annotations

from elastrain.api import GROUP
from elastrain.kubernetes.client import PODS, Client

LABEL = f"{GROUP}/leader"


async def mark(client: Client, namespace: str, pod: str, *, leads: bool) -> None:
    """Set or remove the mark.

    Args:
        client: writes.
        namespace: where this process's pod is.
        pod: its name; empty: it runs in none, and there is nothing to mark.
        leads: whether it leads.

    Raises:
        ApiError: it could not be done.

    """
    if pod:
        await client.patch(PODS, namespace, pod, {"metadata": {"labels": {LABEL: "true" if leads else None}}})
