"""The places of a job: which pod sits at each node index, and which of them could take part in a round now.

A seat is a node index. It has at most one pod that counts (the newest attempt that has neither ended nor is
being deleted) and any number of former ones. Who is taken into a round is decided in `membership`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from elastrain.api import TrainJob
from elastrain.planning.observed import Agent, AgentState, Observed, Pod, PodPhase


@dataclass(frozen=True, slots=True)
class Seat:
    """One node index with its present pod, if any, and its former ones, newest first."""

    index: int
    pod: Pod | None
    agent: Agent | None
    former: tuple[Pod, ...]

    @property
    def available(self) -> bool:
        """Whether the pod could start workers as soon as a round is published."""
        return (
            self.pod is not None
            and self.pod.phase is PodPhase.RUNNING
            and self.pod.address is not None
            and self.agent is not None
            and self.agent.state is not AgentState.LEFT
        )


@dataclass(frozen=True, slots=True)
class Seats:
    """All seats of a job: the wanted ones, present or empty, and the surplus ones that still have pods."""

    wanted: tuple[Seat, ...]
    surplus: tuple[Seat, ...]
    template_hash: str

    def outdated(self, pod: Pod) -> bool:
        """Whether the pod was made from another template than the job's present one."""
        return pod.template_hash != self.template_hash

    @property
    def live(self) -> tuple[Pod, ...]:
        """The pods that count, in order of index."""
        return tuple(seat.pod for seat in (*self.wanted, *self.surplus) if seat.pod)

    @property
    def eligible(self) -> tuple[Seat, ...]:
        """The wanted seats whose pod may be a member of the next round."""
        return tuple(s for s in self.wanted if s.pod and s.available and not self.outdated(s.pod))

    def ready(self, members: tuple[str, ...]) -> int:
        """Return how many wanted pods could take part in a round, or do.

        A member that runs counts also while its agent has not been heard since this operator began.
        """
        running = [s.pod for s in self.wanted if s.pod and s.pod.phase is PodPhase.RUNNING]
        eligible = {s.pod.name for s in self.eligible if s.pod}
        return sum(pod.name in eligible or pod.name in members for pod in running)


def seats_of(job: TrainJob, observed: Observed) -> Seats:
    """Return the seats of a job.

    Args:
        job: the job; its `spec.wanted_nodes` says how many seats are wanted.
        observed: what is known of its pods and agents.

    """
    by_index: dict[int, list[Pod]] = defaultdict(list)
    for pod in observed.pods:
        by_index[pod.index].append(pod)
    wanted = job.spec.wanted_nodes
    return Seats(
        wanted=tuple(_seat(index, by_index.get(index, []), observed) for index in range(wanted)),
        surplus=tuple(_seat(index, by_index[index], observed) for index in sorted(by_index) if index >= wanted),
        template_hash=observed.template_hash,
    )


def _seat(index: int, pods: list[Pod], observed: Observed) -> Seat:
    newest_first = sorted(pods, key=lambda pod: (pod.attempt, pod.created, pod.uid), reverse=True)
    pod = next((p for p in newest_first if not p.deleting and not p.ended), None)
    agent = observed.agents.get(pod.uid) if pod else None
    return Seat(index, pod, agent, tuple(p for p in newest_first if p is not pod))


def next_attempt(job: TrainJob, seat: Seat) -> int:
    """Return the attempt of the next pod at this seat: above every one that exists or is in the round.

    A name that the present round knows is never given to another pod, even when the old one is gone.
    """
    attempts = [pod.attempt for pod in seat.former]
    if job.status.round:
        prefix = f"{job.metadata.name}-{seat.index}-"
        known = (*job.status.round.members, *job.status.round.leavers)
        attempts += [int(name[len(prefix) :]) for name in known if name.startswith(prefix)]
    return max(attempts, default=-1) + 1
