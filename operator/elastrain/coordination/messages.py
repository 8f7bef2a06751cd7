"""The bodies of docs/protocol.md, version 1: strict models of what comes in, plain values of what goes out.

Whatever passes here fits the planner's values and the bounds of the TrainJob's status; what is merely too
long is cut, what is wrong is refused. Unknown fields are ignored, so that a newer agent can talk to an older
coordinator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)
from pydantic import ValidationError as _ValidationError
from pydantic.alias_generators import to_camel

from elastrain.coordination.answers import Answer, Leave
from elastrain.planning import (
    AgentState,
    CheckpointReport,
    Endpoint,
    Outcome,
    Ports,
    ProgressReport,
    Round,
    WorkerFailure,
)

VERSION = 1
BODY_BYTES = 64 * 1024
MESSAGE_CHARACTERS = 1024
METRICS, METRIC_NAME_CHARACTERS, METRIC_VALUE_CHARACTERS = 64, 63, 64


class NotAMessage(ValueError):
    """A body that docs/protocol.md does not know; its text says what is wrong where."""


def _cut(message: Any) -> Any:
    return message[:MESSAGE_CHARACTERS] if isinstance(message, str) else message


def _few(metrics: Mapping[str, str]) -> dict[str, str]:
    first = list(metrics.items())[:METRICS]
    return {name[:METRIC_NAME_CHARACTERS]: value[:METRIC_VALUE_CHARACTERS] for name, value in first if name}


Number = Annotated[int, Field(ge=0, le=2**63 - 1)]  # an int64 of the TrainJob's status
SmallNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]
ExitCode = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Quantity = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Message = Annotated[str, BeforeValidator(_cut)]
FolderPath = Annotated[str, Field(max_length=1024, pattern=r"^/")]
Metrics = Annotated[dict[str, str], AfterValidator(_few)]


class _Model(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", alias_generator=to_camel, hide_input_in_errors=True
    )


class _PortsBody(_Model):
    rendezvous: Port
    store: Port

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.rendezvous == self.store:
            raise ValueError("rendezvous and store need a port each")
        return self


class _FailureBody(_Model):
    reason: Literal["WorkerFailed", "OOMKilled", "PeerLost", "RendezvousFailed", "InvalidArguments"]
    message: Message = ""
    time: AwareDatetime
    rank: SmallNumber | None = None
    exit_code: ExitCode | None = None


class StateReport(_Model):
    """The whole state of an agent."""

    version: Literal[1]
    type: Literal["state"]
    state: AgentState
    round: SmallNumber
    ports_body: _PortsBody = Field(alias="ports")
    failure_body: _FailureBody | None = Field(None, alias="failure")
    in_place: bool = False
    formed: SmallNumber = 0
    stalled: SmallNumber = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.state is AgentState.FAILED) != (self.failure_body is not None):
            raise ValueError("the state failed has a failure, no other has one")
        if self.round == 0 and self.state in (AgentState.RUNNING, AgentState.FINISHED):
            raise ValueError(f"the state {self.state} needs the number of a round")
        return self

    @property
    def ports(self) -> Ports:
        """The ports that the agent holds."""
        return Ports(self.ports_body.rendezvous, self.ports_body.store)

    @property
    def failure(self) -> WorkerFailure | None:
        """How the first worker to fail ended, in the state failed."""
        body = self.failure_body
        if body is None:
            return None
        return WorkerFailure(body.reason, body.message, body.time.astimezone(UTC), body.rank, body.exit_code)


class ProgressBody(_Model):
    """How far the round is."""

    version: Literal[1]
    type: Literal["progress"]
    round: SmallNumber
    step: Number
    total_steps: Number | None = None
    epoch: Quantity | None = None
    samples_per_second: Quantity | None = None
    metrics: Metrics = Field(default_factory=dict)

    def report(self, time: datetime) -> ProgressReport:
        """Return the planner's value of it.

        Args:
            time: when it came, by the coordinator's clock.

        """
        return ProgressReport(
            round=self.round,
            time=time,
            step=self.step,
            total_steps=self.total_steps,
            epoch=self.epoch,
            samples_per_second=self.samples_per_second,
            metrics=self.metrics,
        )


class CheckpointBody(_Model):
    """A complete checkpoint."""

    version: Literal[1]
    type: Literal["checkpoint"]
    round: SmallNumber
    step: Number
    path: FolderPath

    def report(self, time: datetime) -> CheckpointReport:
        """Return the planner's value of it.

        Args:
            time: when it came, by the coordinator's clock.

        """
        return CheckpointReport(round=self.round, time=time, step=self.step, path=self.path)


class PhaseBody(_Model):
    """What the worker is doing."""

    version: Literal[1]
    type: Literal["phase"]
    round: SmallNumber
    phase: Literal["training", "compiling", "evaluating", "saving"]


Report = StateReport | ProgressBody | CheckpointBody | PhaseBody
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="type")])


class _Metric(_Model):
    name: Annotated[str, Field(max_length=1024)]
    value: Annotated[str, Field(max_length=1024)]


class _TrainerStatus(_Model):
    metrics: tuple[_Metric, ...] | None = Field(None, max_length=256)


class KubeflowStatus(_Model):
    """The body of the callback in Transformers, as far as it is believed.

    Source: the TrainJob progress protocol of Kubeflow's proposal 2779. Its percentage starts at 0 and ends at
    100 with every start of the script, also where a change of size ended it, and is not read.
    """

    trainer_status: _TrainerStatus

    @property
    def metrics(self) -> dict[str, str]:
        """All metrics by name."""
        return {metric.name: metric.value for metric in self.trainer_status.metrics or ()}

    def report(self, round_number: int, before: ProgressReport | None, time: datetime) -> ProgressReport:
        """Return the planner's value of it.

        Args:
            round_number: the round that the sender takes part in; the body does not tell it.
            before: the newest progress of that round, which holds where the body says nothing.
            time: when it came, by the coordinator's clock.

        """
        metrics = self.metrics
        step = _whole(metrics.pop("current_step", ""))
        total = _whole(metrics.pop("total_steps", ""))
        epoch = _finite(metrics.pop("current_epoch", ""))
        return ProgressReport(
            round=round_number,
            time=time,
            step=step if step is not None else before.step if before else 0,
            total_steps=total if total is not None else before.total_steps if before else None,
            epoch=epoch if epoch is not None else before.epoch if before else None,
            samples_per_second=before.samples_per_second if before else None,
            metrics=_few(metrics),
        )


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _whole(text: str) -> int | None:
    number = _finite(text)
    return int(number) if number is not None and number <= 2**53 else None


def read_report(body: bytes) -> Report:
    """Return the report in the body.

    Raises:
        NotAMessage: it is none; the text says what is wrong where.

    """
    try:
        return _REPORT.validate_json(body)
    except _ValidationError as error:
        raise NotAMessage(_sentence(error)) from None


def read_kubeflow_status(body: bytes) -> KubeflowStatus:
    """Return the status in the body.

    Raises:
        NotAMessage: it is none; the text says what is wrong where.

    """
    try:
        return KubeflowStatus.model_validate_json(body)
    except _ValidationError as error:
        raise NotAMessage(_sentence(error)) from None


def _sentence(error: _ValidationError) -> str:
    """Tell the first of the faults, without the input: that may be anything."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = _place(first["loc"])
    return f"{where}{first['msg']}; send a body of docs/protocol.md, version {VERSION}"[:MESSAGE_CHARACTERS]


def _place(location: Iterable[int | str]) -> str:
    place = ".".join(str(part) for part in location)
    return f"{place}: " if place else ""


def command(answer: Answer) -> dict[str, Any]:
    """Return the body that tells a pod the answer."""
    match answer:
        case Round():
            return {"version": VERSION, "command": "round", "round": _round(answer)}
        case Leave(reason):
            return {"version": VERSION, "command": "leave", "reason": reason}
        case Outcome(complete, message):
            outcome = "Complete" if complete else "Failed"
            return {"version": VERSION, "command": "done", "outcome": outcome, "message": message}


def _round(round_: Round) -> dict[str, Any]:
    return {
        "number": round_.number,
        "reason": round_.reason,
        "rendezvousId": round_.rendezvous_id,
        "processesPerNode": round_.processes_per_node,
        "members": [
            {"pod": member.pod, "address": member.address, "joining": member.joining} for member in round_.members
        ],
        "leavers": list(round_.leavers),
        "rendezvous": _endpoint(round_.rendezvous),
        "store": _endpoint(round_.store),
    }


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {"host": endpoint.host, "port": endpoint.port}


def refusal(sentence: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"version": VERSION, "error": sentence}
