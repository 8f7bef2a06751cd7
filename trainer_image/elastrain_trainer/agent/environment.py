"""What the operator put into the pod's environment, read once (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class EnvironmentIncomplete(Exception):
    """A variable that the operator sets is missing: the agent was not started in a pod of a TrainJob."""


@dataclass(frozen=True)
class Environment:
    """The agent's surroundings."""

    coordinator_url: str
    credentials: Path
    namespace: str
    job: str
    pod: str
    pod_ip: str
    node_name: str
    leave_seconds: int
    termination_log: Path

    @property
    def path(self) -> str:
        """The path of the job at the coordinator."""
        return f"/v1/namespaces/{self.namespace}/trainjobs/{self.job}"


def read(variables: Mapping[str, str]) -> Environment:
    """Read the environment.

    Raises:
        EnvironmentIncomplete: a variable is missing; the text names it.

    """

    def get(name: str) -> str:
        value = variables.get(name)
        if not value:
            raise EnvironmentIncomplete(
                f"{name} is not set: elastrain-agent runs in the pods of a TrainJob, where the operator sets it; "
                "to train without a cluster start the script with torchrun"
            )
        return value

    return Environment(
        coordinator_url=get("ELASTRAIN_COORDINATOR_URL").rstrip("/"),
        credentials=Path(get("ELASTRAIN_CREDENTIALS")),
        namespace=get("ELASTRAIN_NAMESPACE"),
        job=get("ELASTRAIN_JOB"),
        pod=get("ELASTRAIN_POD"),
        pod_ip=get("ELASTRAIN_POD_IP"),
        node_name=variables.get("ELASTRAIN_NODE_NAME", ""),
        leave_seconds=int(variables.get("ELASTRAIN_LEAVE_SECONDS", "120")),
        termination_log=Path(variables.get("ELASTRAIN_TERMINATION_LOG", "/dev/termination-log")),
    )
