"""What a pod is told: an outcome before a leave before a round, and only what is new to it."""

from __future__ import annotations

import pytest
from tests.unit.coordination.values import AFTER_FAILURE, COMPLETE

from elastrain.coordination import Leave, answer
from elastrain.planning import Directive, Outcome, Round

ROUND_3 = Directive(round=AFTER_FAILURE)
LEAVING = Directive(round=AFTER_FAILURE, leaving={"sft-1-1": "shrunk"})
DONE = Directive(round=AFTER_FAILURE, leaving={"sft-1-1": "shrunk"}, outcome=COMPLETE)


@pytest.mark.parametrize(
    ("directive", "pod", "after", "told"),
    [
        (Directive(), "sft-0-0", 0, None),
        (ROUND_3, "sft-0-0", 0, AFTER_FAILURE),
        (ROUND_3, "sft-1-1", 2, AFTER_FAILURE),
        (ROUND_3, "sft-0-0", 3, None),
        (ROUND_3, "sft-0-0", 4, None),
        (ROUND_3, "sft-1-0", 0, None),  # replaced by sft-1-1
        (LEAVING, "sft-1-1", 3, Leave("shrunk")),
        (LEAVING, "sft-1-1", 0, Leave("shrunk")),  # a member in this round, but it is told to go
        (LEAVING, "sft-0-0", 2, AFTER_FAILURE),
        (LEAVING, "sft-0-0", 3, None),
        (DONE, "sft-1-1", 0, COMPLETE),
        (DONE, "sft-0-0", 3, COMPLETE),
        (DONE, "sft-9-9", 0, COMPLETE),
        (Directive(outcome=COMPLETE), "sft-0-0", 0, COMPLETE),
    ],
)
def test_answer(directive: Directive, pod: str, after: int, told: Round | Leave | Outcome | None) -> None:
    assert answer(directive, pod, after) == told
