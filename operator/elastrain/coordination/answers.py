"""What one pod is to be told, as a pure function of the job's directive."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.planning import Directive, Outcome, Round


@dataclass(frozen=True, slots=True)
class Leave:
    """The pod is to stop at the next boundary and exit."""

    reason: str


Answer = Round | Leave | Outcome


def answer(directive: Directive, pod: str, after: int) -> Answer | None:
    """Return what the pod is to be told, or None while it has to wait.

    Args:
        directive: what holds for the agents of the pod's job.
        pod: the name of the pod that asks.
        after: the number of the last round that the pod heard of; 0: of none.

    """
    if directive.outcome:
        return directive.outcome
    if pod in directive.leaving:
        return Leave(directive.leaving[pod])
    published = directive.round
    if (
        published
        and published.number > after
        and (pod in published.leavers or any(member.pod == pod for member in published.members))
    ):
        return published
    return None
