"""The agent's last word: the termination message that tells the operator how this pod ended."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from elastrain_trainer.agent import protocol
from elastrain_trainer.agent.protocol import Failure

log = logging.getLogger("elastrain.agent")

LIMIT = 4096
"""The kubelet keeps as many bytes of a termination message."""


def last_word(outcome: str, round_number: int, failure: Failure | None = None) -> bytes:
    """Return the termination message of docs/protocol.md, in as many bytes as the kubelet keeps."""
    body: dict[str, Any] = {"version": protocol.VERSION, "outcome": outcome, "round": round_number}
    if failure:
        body |= {name: value for name, value in failure.to_json().items() if name != "time"}
    while len(text := json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")) > LIMIT:
        body["message"] = body["message"][: -(len(text) - LIMIT) // 6 or -1]
    return text


def leave(path: Path, word: bytes) -> None:
    """Write it where the kubelet looks, in place of what was written before."""
    try:
        path.write_bytes(word)
    except OSError as error:
        log.warning("cannot write the termination message to %s: %s", path, error)
