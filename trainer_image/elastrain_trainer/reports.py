"""What a training script tells the agent of its pod: datagrams that hardly ever block and never fail the script."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

MATTERS_SECONDS = 2.0
"""How long a report that no later one will replace waits for room: a socket's queue may hold as few as ten."""


def send(body: Mapping[str, Any], *, patience: float = 0) -> bool:
    """Send one report to the agent.

    Args:
        body: of the report.
        patience: how many seconds to wait for room if the agent is busy.

    Returns:
        Whether it was taken: there may be no agent, or it may be busy.

    """
    address = os.environ.get("ELASTRAIN_AGENT_SOCKET")
    if not address:
        return False
    told = {name: value for name, value in body.items() if value is not None}
    number = os.environ.get("ELASTRAIN_ROUND", "")
    if number.isdecimal():
        told["round"] = int(number)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.connect(address)
            out.settimeout(patience)
            out.send(json.dumps(told).encode())
    except (OSError, TypeError, ValueError):
        return False
    return True


def report_progress(
    *,
    step: int,
    total_steps: int | None = None,
    epoch: float | None = None,
    samples_per_second: float | None = None,
    metrics: Mapping[str, SupportsFloat | str] | None = None,
) -> None:
    """Report progress; call it from rank 0 as often as you like, at most one a second is sent on.

    Args:
        step: optimizer steps done since the job began, over all restarts.
        total_steps: optimizer steps that the job will do.
        epoch: epochs done, with a fraction.
        samples_per_second: samples of the whole job in a second.
        metrics: the newest values of what is logged, by name.

    """
    values = {name: value if isinstance(value, str) else _text(value) for name, value in (metrics or {}).items()}
    last = _whole(step) is not None and _whole(step) == _whole(total_steps)
    send(
        {
            "type": "progress",
            "step": _whole(step),
            "totalSteps": _whole(total_steps),
            "epoch": _finite(epoch),
            "samplesPerSecond": _finite(samples_per_second),
            "metrics": values or None,
        },
        patience=MATTERS_SECONDS if last else 0,
    )


def report_checkpoint(*, step: int, path: str | os.PathLike[str]) -> None:
    """Report a complete checkpoint; call it from rank 0 once it can be loaded.

    Args:
        step: optimizer steps that it contains.
        path: its folder.

    """
    body = {"type": "checkpoint", "step": _whole(step), "path": os.path.abspath(path)}  # noqa: PTH100 - links stay
    send(body, patience=MATTERS_SECONDS)


def report_phase(phase: Literal["training", "compiling", "evaluating", "saving"]) -> None:
    """Report what the worker is doing, where that may take longer than a step."""
    send({"type": "phase", "phase": phase})


def _whole(value: int | None) -> int | None:
    number = _finite(value)
    return None if number is None else int(number)


def _finite(value: SupportsFloat | None) -> float | None:
    """Return a number of any kind, a tensor's or an array's too; None for what a report has no place for."""
    try:
        number = float(value) if value is not None else math.nan
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _text(value: SupportsFloat) -> str:
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:100]
