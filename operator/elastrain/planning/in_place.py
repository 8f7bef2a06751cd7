"""Which members keep their workers over a change of round, and how far a round that they go into has formed.

The workers of a script with a session go on into the next round as they are. Until all of its members have
arrived they train on in the round before (`RoundStatus.previous`). What follows from that is decided in
`membership`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from elastrain.api import RoundStatus, ScalingMode, TrainJob
from elastrain.planning.observed import Agent, AgentState, Observed
from elastrain.planning.seats import Seat, Seats

FORM_LIMIT = timedelta(seconds=120)
"""How long the members of a round that some go into in place may take to arrive."""

FINISH_LIMIT = timedelta(seconds=600)
"""How long members may go on, undisturbed by planned changes, after another one has finished."""

STALL_LIMIT = timedelta(seconds=3)
"""How long workers may wait with a broken group before they are given a new one, though nobody is lost."""


def can_go_on(current: RoundStatus | None, name: str, agent: Agent | None) -> bool:
    """Return whether the workers of a pod are members of the present round and can go into the next one.

    Args:
        current: the present round.
        name: the pod's name.
        agent: its agent.

    """
    if current is None or name not in current.members or agent is None:
        return False
    if agent.state is not AgentState.RUNNING or not agent.in_place or agent.formed == 0:
        return False
    # An agent that has not answered yet to the present round goes from the one before into the next as well.
    told = agent.round == current.number
    return told or (name in current.continuing and 0 < current.previous <= agent.round)


def going(job: TrainJob, seats: Seats) -> tuple[Seat, ...]:
    """Return the seats that keep their workers in the next round, in the order of their present ranks."""
    current = job.status.round
    if current is None or job.spec.scaling.mode is ScalingMode.RESTART:
        return ()
    place = {name: rank for rank, name in enumerate(current.members)}
    able = [(place[s.pod.name], s) for s in seats.eligible if s.pod and can_go_on(current, s.pod.name, s.agent)]
    return tuple(seat for _, seat in sorted(able, key=lambda pair: pair[0]))


def round_size(job: TrainJob, nodes: int) -> int:
    """Return the size of the largest round of at most so many nodes; 0 if they are too few."""
    size = nodes - nodes % job.spec.node_multiple
    return size if size >= job.spec.effective_min_nodes else 0


def departures(job: TrainJob, seats: Seats, observed: Observed) -> frozenset[str]:
    """Return the members that are being deleted and can train on until a round without them has formed.

    None if too few would be left: then their deletion is a loss like any other.
    """
    current = job.status.round
    if current is None or job.spec.scaling.mode is ScalingMode.RESTART:
        return frozenset()
    doomed = frozenset(
        pod.name
        for pod in observed.pods
        if pod.deleting and not pod.ended and can_go_on(current, pod.name, observed.agents.get(pod.uid))
    )
    return doomed if doomed and round_size(job, len(going(job, seats))) else frozenset()


def leavers(current: RoundStatus, without: frozenset[str], observed: Observed) -> tuple[str, ...]:
    """Return the pods that train now, or may, and leave with the next round.

    Args:
        current: the present round.
        without: the names of the next round's members, and of those that are lost.
        observed: its pods and agents.

    """
    pods = {pod.name: pod for pod in observed.pods if not pod.ended}
    names = []
    for name in (*current.members, *current.leavers):
        if name in without or name not in pods or pods[name].silent:
            continue
        agent = observed.agents.get(pods[name].uid)
        if agent is None or (agent.state is AgentState.RUNNING and agent.formed > 0):
            names.append(name)
    return tuple(names)


def member_agents(current: RoundStatus, observed: Observed) -> Iterator[tuple[str, Agent | None]]:
    """Yield the members' names and agents; None for an agent that has not been heard."""
    uids = {pod.name: pod.uid for pod in observed.pods}
    for name in current.members:
        yield name, observed.agents.get(uids.get(name, ""))


def is_formed(current: RoundStatus, agent: Agent | None) -> bool:
    """Return whether the workers of a member have trained in the present round."""
    if agent is None:
        return False
    return agent.formed == current.number or (agent.state is AgentState.FINISHED and agent.round == current.number)


def only_newcomers(current: RoundStatus, pods: frozenset[str]) -> bool:
    """Return whether these members of a round are yet to come in, so that nobody who trains misses them."""
    return current.previous > 0 and not pods & set(current.continuing)


def with_formed(current: RoundStatus | None, observed: Observed) -> RoundStatus | None:
    """Return the round as it is on record once all its members have come together."""
    if current is None or not current.previous:
        return current
    if all(is_formed(current, agent) for _, agent in member_agents(current, observed)):
        return current.model_copy(update={"previous": 0})
    return current


def forming_until(current: RoundStatus, observed: Observed) -> datetime | None:
    """Return until when planned changes wait for the present round; None if they need not.

    Only rounds with sessions are waited for. A member that has not been heard does not count.
    """
    agents = [agent for _, agent in member_agents(current, observed) if agent]
    if current.start_time is None or not (current.continuing or any(agent.in_place for agent in agents)):
        return None
    finished = [agent.since + FINISH_LIMIT for agent in agents if agent.state is AgentState.FINISHED]
    unformed = [current.start_time + FORM_LIMIT for agent in agents if not is_formed(current, agent)]
    return max((*finished, *unformed[:1]), default=None)


def stalled_until(job: TrainJob, current: RoundStatus, seats: Seats, observed: Observed) -> datetime | None:
    """Return when workers that wait with a broken group are to be given a new round; None: they do not wait.

    While the present round is yet to form, those of the round before wait for its newcomers only if they are
    too few without them.
    """
    agents = dict(member_agents(current, observed))
    late = any(not is_formed(current, agent) for name, agent in agents.items() if name not in current.continuing)
    early = bool(current.previous) and late and round_size(job, len(going(job, seats))) > 0
    times = [
        agent.stalled_since + STALL_LIMIT
        for agent in agents.values()
        if agent and agent.state is AgentState.RUNNING and agent.stalled_since
        if agent.stalled == current.number or (early and agent.stalled)
    ]
    return min(times, default=None)


def all_heard(current: RoundStatus, observed: Observed, since: datetime) -> bool:
    """Return whether every member has been heard of after a moment: if not, it may be why others wait."""
    heard = [observed.heard.get(pod.uid) for pod in observed.pods if pod.name in current.members]
    return observed.listening_since is None or all(time and time > since for time in heard)


def stalled(current: RoundStatus, observed: Observed) -> tuple[str, ...]:
    """Return the members whose workers wait for a new group because theirs is broken."""
    return tuple(
        name
        for name, agent in member_agents(current, observed)
        if agent and agent.state is AgentState.RUNNING and agent.stalled
    )
