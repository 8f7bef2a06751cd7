"""elastrain in the pod: what a training script may use, and the agent that starts it.

Importing it needs the standard library alone; torch is imported where it is used. Outside a pod everything here
is harmless: reports go nowhere, nobody asks to stop.
"""

from elastrain_trainer.checkpoint import latest_checkpoint, save_checkpoint
from elastrain_trainer.reports import report_checkpoint, report_phase, report_progress
from elastrain_trainer.stopping import StopSignal

__all__ = [
    "StopSignal",
    "latest_checkpoint",
    "report_checkpoint",
    "report_phase",
    "report_progress",
    "save_checkpoint",
]
