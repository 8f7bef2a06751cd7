"""What workers say reaches the agent: the newest of each kind, in order, however fast they talk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrain_trainer.agent.mailbox import Mailbox
from elastrain_trainer.reports import report_checkpoint, report_progress

STEPS = 500


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    monkeypatch.setenv("ELASTRAIN_AGENT_SOCKET", str(tmp_path / "socket"))
    monkeypatch.setenv("ELASTRAIN_ROUND", "3")
    box = Mailbox(tmp_path / "socket")
    box.of_round(3, 0)
    yield box
    box.close()


class Receiver:
    """The agent's thread, which may be late."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.received: list[dict[str, Any]] = []
        self._mailbox, self._over = mailbox, False
        self._thread = threading.Thread(target=self._receive)

    def _receive(self) -> None:
        while not self._over:
            if report := self._mailbox.receive():
                self.received.append(report)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over = True
        self._mailbox.settle(1)
        self._thread.join()


def test_the_last_step_and_the_checkpoint_arrive_from_a_script_that_talks_more_than_the_queue_holds(
    mailbox: Mailbox,
) -> None:
    receiver = Receiver(mailbox)
    threading.Timer(0.3, receiver.begin).start()  # the agent is late, and the queue is full
    for step in range(1, STEPS + 1):
        report_progress(step=step, total_steps=STEPS)
    report_checkpoint(step=STEPS, path="/checkpoints/last")
    assert mailbox.settle(10)
    receiver.end()
    received = receiver.received
    assert [r["step"] for r in received if r["type"] == "progress"][-1] == STEPS
    assert [(r["step"], r["path"]) for r in received if r["type"] == "checkpoint"] == [(STEPS, "/checkpoints/last")]
    assert {r["round"] for r in received} == {3}


def test_a_script_does_not_wait_for_an_agent_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTRAIN_AGENT_SOCKET", str(tmp_path / "socket"))
    report_progress(step=1, total_steps=1)
    report_checkpoint(step=1, path="/checkpoints/last")


def test_settling_ends_though_nobody_receives(mailbox: Mailbox) -> None:
    assert not mailbox.settle(0.05)
