"""Pods as processes: each is an agent with its own loopback address, folder and log."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import psutil

from elastrain.planning import Exit, Pod, PodPhase

FIRST_ADDRESS = 2
"""The first pod's address is 127.0.0.2."""


@dataclass(slots=True)
class Node:
    """One pod: the process of its agent, and what the planner is told of it."""

    pod: Pod
    token: str
    folder: Path
    process: subprocess.Popen[bytes]
    kill_at: datetime | None = None  # when it is killed if it has not ended by itself

    @property
    def log(self) -> Path:
        """The file with everything that its agent and workers print."""
        return self.folder / "log"


class Nodes:
    """The pods of one job on this machine."""

    def __init__(self, folder: Path, certificate: bytes) -> None:
        """Make none yet.

        Args:
            folder: gets one folder for each pod.
            certificate: of the authority that signed the coordinator's, in PEM.

        """
        self._folder = folder
        self._certificate = certificate
        self._by_name: dict[str, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._by_name.values()))

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def pods(self) -> tuple[Pod, ...]:
        """What the planner is told of them."""
        return tuple(node.pod for node in self._by_name.values())

    def of_token(self, token: str) -> Node | None:
        """Return the pod that a token was given to."""
        return next((node for node in self if secrets.compare_digest(node.token, token)), None)

    def start(
        self, folder: Path, index: int, attempt: int, digest: str, argv: list[str], variables: Mapping[str, str]
    ) -> Node:
        """Start a pod's agent.

        Args:
            folder: of `make_folder`.
            index: of the node.
            attempt: how many pods there were before at this index.
            digest: of the template that it is made from.
            argv: what the agent is to run.
            variables: its environment, on top of this process's.

        """
        name = folder.name.split(".")[0]
        token = secrets.token_urlsafe(24)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self._certificate)
        address = self._free_address()
        # What is set for this machine's own training must not reach the job.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTRAIN_", "KUBEFLOW_"))}
        environment = {
            **inherited,
            **variables,
            "ELASTRAIN_POD": name,
            "ELASTRAIN_POD_IP": address,
            "ELASTRAIN_TERMINATION_LOG": str(folder / "termination"),
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elastrain_trainer.agent", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        now = datetime.now(UTC)
        uid = f"{name}-{secrets.token_hex(4)}"
        pod = Pod(name, uid, index, attempt, digest, PodPhase.RUNNING, now, address=address, node="localhost")
        self._by_name[name] = node = Node(pod, token, folder, process)
        return node

    def make_folder(self, name: str) -> Path:
        """Make the folder of a new pod: NAME, or NAME.2 and so on where a former one had that name."""
        for number in count(1):
            folder = self._folder / (name if number == 1 else f"{name}.{number}")
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
        return folder

    def delete(self, name: str, until: datetime) -> None:
        """Ask a pod to end; it is gone when it has."""
        node = self._by_name[name]
        node.pod = replace(node.pod, deleting=True)
        node.kill_at = until
        if node.process.poll() is None:
            node.process.send_signal(signal.SIGTERM)

    def kill(self, name: str) -> None:
        """End a pod and all its processes at once, as a power cut does."""
        with suppress(KeyError):
            kill_tree(self._by_name[name].process.pid)

    def look(self, now: datetime) -> bool:
        """Take note of pods that have ended, and kill those whose time is over; return whether anything changed."""
        changed = False
        for name, node in tuple(self._by_name.items()):
            if node.kill_at and node.kill_at <= now:
                kill_tree(node.process.pid)
            code = node.process.poll()
            if code is None or (node.pod.ended and not node.pod.deleting):
                continue
            changed = True
            if node.pod.deleting:
                del self._by_name[name]
            else:
                node.pod = replace(
                    node.pod, phase=PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED, exit=_exit(node, code, now)
                )
        return changed

    def end_of_time(self) -> datetime | None:
        """Return when the next one is to be killed."""
        return min((node.kill_at for node in self if node.kill_at), default=None)

    def _free_address(self) -> str:
        taken = {node.pod.address for node in self}
        return next(a for n in range(FIRST_ADDRESS, 255) if (a := f"127.0.0.{n}") not in taken)


def kill_tree(pid: int) -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        root.suspend()  # so that it starts no more
        for process in [*root.children(recursive=True), root]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _exit(node: Node, code: int, now: datetime) -> Exit:
    try:
        told = json.loads((node.folder / "termination").read_text())
    except (OSError, ValueError):
        told = {}
    status = code if code >= 0 else 128 - code  # as a kubelet tells of a signal
    return Exit(
        exit_code=status,
        reason=str(told.get("reason") or ("Completed" if code == 0 else "Error")),
        message=str(told.get("message") or ""),
        time=now,
        outcome=told.get("outcome"),
        round=told.get("round"),
        rank=told.get("rank"),
    )
