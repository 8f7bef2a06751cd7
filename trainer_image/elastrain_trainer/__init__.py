"""elastrain in the pod: what a training script may use, and the agent that starts it.

Importing it needs the standard library alone; torch is imported where it is used. Outside a pod everything here
is harmless: reports go nowhere, nobody asks to stop.
"""

from typing import TYPE_CHECKING, Any

from elastrain_trainer.checkpoint import latest_checkpoint, save_checkpoint
from elastrain_trainer.reports import report_checkpoint, report_phase, report_progress
from elastrain_trainer.stopping import StopSignal

if TYPE_CHECKING:
    from elastrain_trainer.session import Session

__all__ = [
    "Session",
    "StopSignal",
    "latest_checkpoint",
    "report_checkpoint",
    "report_phase",
    "report_progress",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    """Import the session, and with it torch, only where it is used."""
    if name != "Session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from elastrain_trainer.session import Session

    return Session
