"""How the workers of a round find together while some of them train on: on the store that the round names.

Every worker arrives once it could go into the round: newcomers when the script has come to its session, those that
train as soon as they hear of the round. When all have arrived, those that train agree at a boundary to go over; the
last word is a key of the store that is set once, so that nobody goes alone. If none trains any more, all go at once.
"""

from __future__ import annotations

import threading
import time

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from elastrain_trainer.agent.protocol import Round
from elastrain_trainer.session.group import connect

CONNECT_SECONDS, TRY_SECONDS = 30.0, 5.0

LOOK_SECONDS = 0.02
"""How often a key is looked for: a wait of the store's own blocks its connection, and warns of every time-out."""

DECIDE_SECONDS, WITHDRAW_SECONDS = 10.0, 1.0

GO, NO = b"go", b"no"


class Mismatch(Exception):
    """A newcomer's model or torch is not that of the others."""


class Meeting:
    """One worker at the meeting of one round.

    All that may wait for the store is done in a thread of the meeting's own: the store's host may be the one that is
    lost, and then every question takes seconds.
    """

    def __init__(self, told: Round, rank: int, fingerprint: str, *, trains: bool) -> None:
        """Begin to attend.

        Args:
            told: the round.
            rank: of this worker in it; -1 for one that leaves, which does not arrive but takes part in the decision.
            fingerprint: of what all must have equal.
            trains: whether this worker trains meanwhile, in the group of the round before.

        """
        self.told, self._rank, self._fingerprint = told, rank, fingerprint
        self._lock = threading.Lock()
        self._trains, self._counted, self._arrived = trains, False, False
        self._wish: bytes | None = None
        self._store: Store | None = None
        self._over = False
        self._news = threading.Event()
        self.complete = threading.Event()  # all have arrived, or this one can wait no longer
        self.decided = threading.Event()
        self.go = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._attend, name=f"elastrain-round-{told.number}", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether all members have arrived and nothing is decided yet."""
        return self._rank >= 0 and self.complete.is_set() and not self.decided.is_set()

    def stop_training(self) -> None:
        """Take note that the group in which this worker trained is broken."""
        self._trains = False
        self._news.set()

    def decide(self) -> bool:
        """Say to go, or learn that somebody has decided; return whether to go.

        Raises:
            RuntimeError: the store cannot be reached.

        """
        self._wish = GO
        self._news.set()
        if not self.decided.wait(DECIDE_SECONDS) or self.error:
            raise RuntimeError(f"the store of round {self.told.number} cannot be reached: {self.error or 'no answer'}")
        return self.go

    def withdraw(self) -> bool:
        """Say not to go, unless somebody has decided; return whether to go after all.

        Nobody goes with a worker that has not arrived. If the store does not answer, the others may go and will find
        that their group does not form.
        """
        with self._lock:
            if not self._arrived:
                self._over = True
                return False
        self._wish = NO
        self._news.set()
        self.decided.wait(WITHDRAW_SECONDS)
        return self.go

    def leave(self, *, join: bool = False) -> None:
        """Wait no longer; `join` sees the thread's end, without which the interpreter cannot end well."""
        self._over = True
        self._news.set()
        if join:
            self._thread.join()

    def _attend(self) -> None:
        try:
            self._store = self._connect()
            if self._rank >= 0:
                self._compare()
                self._arrive()
                self._await("all")
                self.complete.set()
            self.go = self._await("decision") == GO
        except (RuntimeError, Mismatch) as error:
            self.error = error
        finally:
            self.complete.set()
            self.decided.set()

    def _connect(self) -> Store:
        end = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                connection = connect(self.told, host=self._rank == 0, seconds=TRY_SECONDS)
            except RuntimeError:
                if self._over or time.monotonic() > end:
                    raise
            else:
                return PrefixStore(f"elastrain/{self.told.number}/meeting", connection)

    def _compare(self) -> None:
        """Let only those go on to arrive that have the model and the torch of those that train."""
        assert self._store is not None
        members = self.told.members
        first = next((rank for rank, member in enumerate(members) if not member.joining), 0)
        if self._rank == first * self.told.processes_per_node:
            self._store.set("fingerprint", self._fingerprint)
            return
        expected = self._await("fingerprint").decode()
        if expected != self._fingerprint:
            raise Mismatch(
                f"this worker cannot join round {self.told.number}: it has {self._fingerprint}, the others have "
                f"{expected}; every node needs the same image and a script that builds the same model"
            )

    def _arrive(self) -> None:
        assert self._store is not None
        with self._lock:
            if self._over:
                raise RuntimeError("the meeting was left")
            self._arrived = True
        self._counted = self._trains
        self._store.add("training", int(self._counted))
        self._store.add("arrived", 1)
        self._look()

    def _look(self) -> None:
        """Draw the conclusions that whoever changed a count last has to draw."""
        assert self._store is not None
        if self._store.add("arrived", 0) < self.told.world_size:
            return
        self._store.set("all", "1")
        if self._store.add("training", 0) == 0:
            self._store.compare_set("decision", "", GO.decode())

    def _await(self, key: str) -> bytes:
        assert self._store is not None
        while not self._store.check([key]):
            if self._over:
                raise RuntimeError("the meeting was left")
            if self._wish:
                self._store.compare_set("decision", "", self._wish.decode())
                self._wish = None
            if self._counted and not self._trains:
                self._counted = False
                self._store.add("training", -1)
                self._look()
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
        return bytes(self._store.get(key))
