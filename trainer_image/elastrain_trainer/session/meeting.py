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

GO, NO = b"go", b"no"


class Mismatch(Exception):
    """A newcomer's model or torch is not that of the others."""


class Meeting:
    """One worker at the meeting of one round; arriving and waiting happen in a thread of its own."""

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
        self._trains, self._arrived = trains, False
        self._store: Store | None = None
        self._over = False
        self.complete = threading.Event()  # all have arrived, or this one can wait no longer
        self.decided = threading.Event()
        self.go = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._attend, name=f"elastrain-round-{told.number}", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether all members have arrived and nothing is decided yet."""
        return self.complete.is_set() and not self.decided.is_set()

    def _attend(self) -> None:
        try:
            self._store = self._connect()
            if self._rank < 0:
                return
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
            self._store.add("training", int(self._trains))
            self._store.add("arrived", 1)
            self._arrived = True
        self._look()

    def _look(self) -> None:
        """Draw the conclusions that whoever changed a count last has to draw."""
        assert self._store is not None
        if self._store.add("arrived", 0) < self.told.world_size:
            return
        self._store.set("all", "1")
        if self._store.add("training", 0) == 0:
            self._store.compare_set("decision", "", GO.decode())

    def stop_training(self) -> None:
        """Take note that the group in which this worker trained is broken."""
        with self._lock:
            if not self._trains:
                return
            self._trains = False
            if not self._arrived or self._store is None:
                return
            self._store.add("training", -1)
        self._look()

    def decide(self, *, go: bool) -> bool:
        """Give the last word, or learn that somebody has given it; return whether to go.

        Raises:
            RuntimeError: the store cannot be reached.

        """
        if self._store is None:
            self.complete.wait(CONNECT_SECONDS)
        if self._store is None:
            raise RuntimeError(f"the store of round {self.told.number} cannot be reached: {self.error}")
        return bytes(self._store.compare_set("decision", "", (GO if go else NO).decode())) == GO

    def leave(self, *, join: bool = False) -> None:
        """Wait no longer; `join` sees the thread's end, without which the interpreter cannot end well."""
        self._over = True
        if join:
            self._thread.join()

    def _await(self, key: str) -> bytes:
        assert self._store is not None
        while not self._store.check([key]):
            if self._over:
                raise RuntimeError("the meeting was left")
            time.sleep(LOOK_SECONDS)
        return bytes(self._store.get(key))
