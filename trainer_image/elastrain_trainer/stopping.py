"""Stopping together: ranks are told at different moments and must leave the loop after the same step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopSignal:
    """Whether this job was asked to stop at the next step boundary, agreed over all ranks.

    Make one before the loop. SIGTERM then only sets a flag; `agreed` is a collective that all ranks call after
    each step, and from which all of them get the same answer. It does not wait for the step to end on the device:
    what it returns was asked of the ranks a step before.
    """

    def __init__(self) -> None:
        self._received = self._agreed = False
        self._pending: tuple[Any, Any] | None = None  # what is reduced, and the work that does it
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
        if self._pending:
            flag, work = self._pending
            work.wait()
            self._agreed = self._agreed or bool(flag.item())
            self._pending = None
        if not self._agreed:
            flag = torch.tensor(float(self._received), device=device)
            self._pending = flag, dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)
        return self._agreed
