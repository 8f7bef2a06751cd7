"""Stopping together: ranks are told at different moments and must leave the loop after the same step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopSignal:
    """Whether this job was asked to stop at the next step boundary, agreed over all ranks.

    Make one before the loop. SIGTERM then only sets a flag; `agreed` is a collective that all ranks call after
    each step, and from which all of them get the same answer.
    """

    def __init__(self) -> None:
        self._received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True

    def agreed(self, device: Any = None) -> bool:
        """Return whether any rank was asked to stop.

        Args:
            device: where the process group communicates, such as `accelerator.device`; None: the CPU.

        """
        import torch
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return self._received
        flag = torch.tensor(float(self._received), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
