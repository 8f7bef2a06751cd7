"""What the operator put into the pod's environment, read once (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")


class EnvironmentIncomplete(Exception):
    """The agent cannot do its work with what it was given: not started in a pod of a TrainJob, or without a script."""


@dataclass(frozen=True)
class Environment:
    """The agent's surroundings, and what it is to run."""

    arguments: tuple[str, ...]  # SCRIPT or -m MODULE, and its arguments
    coordinator_url: str
    credentials: Path
    namespace: str
    job: str
    pod: str
    pod_ip: str
    leave_seconds: int
    termination_log: Path

    @property
    def path(self) -> str:
        """The path of the job at the coordinator."""
        return f"/v1/namespaces/{self.namespace}/trainjobs/{self.job}"


def read(variables: Mapping[str, str], arguments: list[str]) -> Environment:
    """Read the environment.

    Raises:
        EnvironmentIncomplete: a variable or the script is missing or wrong; the text says which and what to do.

    """

    def get(name: str) -> str:
        value = variables.get(name)
        if not value:
            raise EnvironmentIncomplete(
                f"{name} is not set: the agent runs in the pods of a TrainJob, where the operator sets it; "
                "to train without a cluster start the script with torchrun"
            )
        return value

    if arguments in ([], ["-m"]):
        raise EnvironmentIncomplete(
            "there is nothing to run: give the container `trainer` a script, `args: [train.py, ...]`, or a module, "
            "`args: [-m, package.module, ...]`"
        )
    url = get("ELASTRAIN_COORDINATOR_URL").rstrip("/")
    if not url.startswith("https://"):
        raise EnvironmentIncomplete(f"ELASTRAIN_COORDINATOR_URL: {url} must begin with https://, as a token is sent")
    seconds = variables.get("ELASTRAIN_LEAVE_SECONDS", "120")
    if not seconds.isdecimal():
        raise EnvironmentIncomplete(f"ELASTRAIN_LEAVE_SECONDS: {seconds!r} is not a number of seconds")
    return Environment(
        arguments=tuple(arguments),
        coordinator_url=url,
        credentials=Path(get("ELASTRAIN_CREDENTIALS")),
        namespace=get("ELASTRAIN_NAMESPACE"),
        job=get("ELASTRAIN_JOB"),
        pod=get("ELASTRAIN_POD"),
        pod_ip=get("ELASTRAIN_POD_IP"),
        leave_seconds=int(seconds),
        termination_log=termination_log(variables),
    )


def termination_log(variables: Mapping[str, str]) -> Path:
    """Return where the kubelet looks for a container's last words."""
    return Path(variables.get("ELASTRAIN_TERMINATION_LOG") or TERMINATION_LOG)
