"""What a training script tells the agent of its pod: datagrams that never block and never fail the script."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Literal


def send(body: Mapping[str, Any]) -> bool:
    """Send one report to the agent; return whether it was taken (there may be no agent, or it may be busy)."""
    address = os.environ.get("ELASTRAIN_AGENT_SOCKET")
    if not address:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(json.dumps({k: v for k, v in body.items() if v is not None}).encode(), address)
    except OSError:
        return False
    return True


def report_progress(
    *,
    step: int,
    total_steps: int | None = None,
    epoch: float | None = None,
    samples_per_second: float | None = None,
    metrics: Mapping[str, float | str] | None = None,
) -> None:
    """Report progress; call it from rank 0 as often as you like, at most one a second is sent on.

    Args:
        step: optimizer steps done since the job began, over all restarts.
        total_steps: optimizer steps that the job will do.
        epoch: epochs done, with a fraction.
        samples_per_second: samples of the whole job in a second.
        metrics: the newest values of what is logged, by name.

    """
    values = {name: value if isinstance(value, str) else f"{value:.6g}" for name, value in (metrics or {}).items()}
    send(
        {
            "type": "progress",
            "step": step,
            "totalSteps": total_steps,
            "epoch": epoch,
            "samplesPerSecond": samples_per_second,
            "metrics": values or None,
        }
    )


def report_checkpoint(*, step: int, path: str) -> None:
    """Report a complete checkpoint; call it from rank 0 once it can be loaded.

    Args:
        step: optimizer steps that it contains.
        path: its folder.

    """
    send({"type": "checkpoint", "step": step, "path": path})


def report_phase(phase: Literal["training", "compiling", "evaluating", "saving"]) -> None:
    """Report what the worker is doing, where that may take longer than a step."""
    send({"type": "phase", "phase": phase})
