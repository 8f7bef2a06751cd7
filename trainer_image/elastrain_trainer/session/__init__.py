"""A training loop that goes on while nodes come and go: see `Session`."""

from elastrain_trainer.session.meeting import Mismatch
from elastrain_trainer.session.session import Session, StateLost
from elastrain_trainer.session.state import NotRegistrable
from elastrain_trainer.session.transfer import NotTransferable

__all__ = ["Mismatch", "NotRegistrable", "NotTransferable", "Session", "StateLost"]
