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
class Round:
    """A round as this pod sees it: its rank among the joining nodes, and where they meet."""

    number: int
    reason: str
    rendezvous_id: str
    processes_per_node: int
    nodes: int
    node_rank: int
    rendezvous: Endpoint
    store: Endpoint  # of the process group


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
                return _round(body["round"], pod)
            case "leave":
                return Leave(str(body.get("reason", "")))
            case "done":
                return Done(body["outcome"] == "Complete", str(body.get("message", "")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the coordinator's answer lacks or garbles {error}: {str(body)[:500]}") from error
    raise ProtocolError(f"the coordinator sent an unknown command: {body['command']!r}")


def _round(body: Mapping[str, Any], pod: str) -> Round:
    joining = [member["pod"] for member in body["members"] if member["joining"]]
    if pod not in joining:
        raise ProtocolError(f"round {body['number']} does not have this pod, {pod}, among its joining members")
    return Round(
        number=int(body["number"]),
        reason=str(body["reason"]),
        rendezvous_id=str(body["rendezvousId"]),
        processes_per_node=int(body["processesPerNode"]),
        nodes=len(joining),
        node_rank=joining.index(pod),
        rendezvous=_endpoint(body["rendezvous"]),
        store=_endpoint(body["store"]),
    )


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
