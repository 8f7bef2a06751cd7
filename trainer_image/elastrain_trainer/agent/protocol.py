"""The messages of docs/protocol.md, version 1, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain_trainer.failures import cut

VERSION = 1


class ProtocolError(Exception):
    """The coordinator said something that this agent does not understand."""


@dataclass(frozen=True)
class Endpoint:
    """A host name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Member:
    """One pod of a round; `joining`: its workers start anew."""

    pod: str
    joining: bool


@dataclass(frozen=True)
class Round:
    """A round as one pod sees it: who trains together, and where they meet.

    `leavers` train on in the round before until this one is complete, and end then.
    """

    pod: str
    number: int
    reason: str
    rendezvous_id: str
    processes_per_node: int
    members: tuple[Member, ...]
    leavers: tuple[str, ...]
    rendezvous: Endpoint
    store: Endpoint  # of the process group

    @property
    def nodes(self) -> int:
        """How many pods train together."""
        return len(self.members)

    @property
    def node_rank(self) -> int:
        """This pod's place among them; -1 for one that leaves."""
        return next((rank for rank, member in enumerate(self.members) if member.pod == self.pod), -1)

    @property
    def leaves(self) -> bool:
        """Whether this pod is to end once the round is complete."""
        return self.node_rank < 0

    @property
    def joining(self) -> tuple[str, ...]:
        """The pods whose workers start anew, in the order of ranks."""
        return tuple(member.pod for member in self.members if member.joining)

    @property
    def joins(self) -> bool:
        """Whether this pod's workers start anew."""
        return self.pod in self.joining

    @property
    def in_place(self) -> bool:
        """Whether any member's workers go on as they are."""
        return len(self.joining) < len(self.members)

    @property
    def world_size(self) -> int:
        """How many workers train together."""
        return self.nodes * self.processes_per_node

    def to_json(self) -> dict[str, Any]:
        """Return it as `parse_round` reads it."""
        return {
            "number": self.number,
            "reason": self.reason,
            "rendezvousId": self.rendezvous_id,
            "processesPerNode": self.processes_per_node,
            "members": [{"pod": member.pod, "joining": member.joining} for member in self.members],
            "leavers": list(self.leavers),
            "rendezvous": {"host": self.rendezvous.host, "port": self.rendezvous.port},
            "store": {"host": self.store.host, "port": self.store.port},
        }


@dataclass(frozen=True)
class Leave:
    """Stop at the next boundary and exit."""

    reason: str


@dataclass(frozen=True)
class Done:
    """The job is over."""

    complete: bool
    message: str


Command = Round | Leave | Done


def parse(body: Mapping[str, Any], pod: str) -> Command:
    """Return what the coordinator says to this pod.

    Raises:
        ProtocolError: it is not a command of version 1, or a round without this pod.

    """
    try:
        match body["command"]:
            case "round":
                return _checked(parse_round(body["round"], pod))
            case "leave":
                return Leave(str(body.get("reason", "")))
            case "done":
                return Done(body["outcome"] == "Complete", str(body.get("message", "")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the coordinator's answer lacks or garbles {error}: {str(body)[:500]}") from error
    raise ProtocolError(f"the coordinator sent an unknown command: {body['command']!r}")


def parse_round(body: Mapping[str, Any], pod: str) -> Round:
    """Return a round as this pod sees it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not the body of a round.

    """
    return Round(
        pod=pod,
        number=int(body["number"]),
        reason=str(body["reason"]),
        rendezvous_id=str(body["rendezvousId"]),
        processes_per_node=int(body["processesPerNode"]),
        members=tuple(Member(str(member["pod"]), bool(member["joining"])) for member in body["members"]),
        leavers=tuple(str(name) for name in body.get("leavers", ())),
        rendezvous=_endpoint(body["rendezvous"]),
        store=_endpoint(body["store"]),
    )


def _checked(told: Round) -> Round:
    if told.leaves and told.pod not in told.leavers:
        raise ProtocolError(f"round {told.number} does not have this pod, {told.pod}, among its members")
    return told


def _endpoint(body: Mapping[str, Any]) -> Endpoint:
    return Endpoint(str(body["host"]), int(body["port"]))


@dataclass(frozen=True)
class Failure:
    """How the first worker of this pod to fail ended."""

    reason: str
    message: str
    time: str  # RFC 3339
    rank: int | None = None
    exit_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as in a state report."""
        body: dict[str, Any] = {"reason": self.reason, "message": cut(self.message), "time": self.time}
        if self.rank is not None:
            body["rank"] = self.rank
        if self.exit_code is not None:
            body["exitCode"] = self.exit_code
        return body
