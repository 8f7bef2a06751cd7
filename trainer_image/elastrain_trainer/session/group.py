"""The process group of a round: made and unmade in the process that goes on, and cut when a peer is lost."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from elastrain_trainer.agent.protocol import Round

FORM_SECONDS = 10.0
"""How long the members of a round, all of which have arrived, may take to connect."""

COLLECTIVE_SECONDS = 1800.0
"""How long a collective may take: losses are told of by the coordinator, so this need not be short."""


class Unformed(RuntimeError):
    """A group could not be made: a member has gone between its arrival and the last word."""


def connect(told: Round, *, host: bool, seconds: float) -> TCPStore:
    """Return a new connection to the store of a round.

    Args:
        told: the round.
        host: whether this process hosts the store, alone or together with other connections of its own.
        seconds: how long to try, and how long an answer may take.

    Raises:
        RuntimeError: it cannot be reached.

    """
    return TCPStore(
        told.store.host,
        told.store.port,
        is_master=host,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timedelta(seconds=seconds),
    )


class Group:
    """The default process group of torch.distributed, of one round after the other."""

    def __init__(self) -> None:
        self.told: Round | None = None
        self._sockets: tuple[int, ...] = ()
        self._cut = False
        self._backend: str | None = None

    @property
    def number(self) -> int:
        """The round of the group; 0 while there is none."""
        return self.told.number if self.told else 0

    @property
    def is_cut(self) -> bool:
        """Whether it was cut because a peer is lost."""
        return self._cut

    @property
    def device(self) -> torch.device:
        """Where collectives communicate."""
        nccl = dist.is_initialized() and "nccl" in dist.get_backend_config() and "gloo" not in dist.get_backend_config()
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def form(self, told: Round, rank: int) -> None:
        """Make the group of a round, of which all members have arrived.

        Raises:
            Unformed: a member did not come after all.

        """
        if self._backend is None:
            self._backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        limit = timedelta(seconds=FORM_SECONDS)
        try:
            store = PrefixStore(f"elastrain/{told.number}", connect(told, host=rank == 0, seconds=FORM_SECONDS))
            before = _open_sockets()
            dist.init_process_group(
                self._backend, store=store, rank=rank, world_size=told.world_size, timeout=limit, device_id=_device()
            )
        except RuntimeError as error:
            raise Unformed(f"round {told.number}: {error}") from error
        self._sockets = tuple(_open_sockets() - before)
        dist.distributed_c10d.set_timeout(timedelta(seconds=COLLECTIVE_SECONDS))
        self.told, self._cut = told, False

    def cut(self) -> None:
        """Have all collectives of the group fail now, in whichever thread they wait; from any thread.

        gloo has no call for it, so its connections are shut. NCCL has one.
        """
        self._cut = True
        if self._backend and "nccl" in self._backend:
            dist.distributed_c10d._abort_process_group()
        for inode in self._sockets:
            _shut(inode)

    def destroy(self) -> None:
        """Unmake the group, whole or broken, whoever made it."""
        self.told, self._sockets = None, ()
        if dist.is_initialized():
            self._backend = dist.get_backend_config()
            dist.destroy_process_group()


def _device() -> torch.device | None:
    """Return the device that NCCL communicates from; it must not guess it from the rank."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else None


def _open_sockets() -> set[int]:
    """Return the inodes of all sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _shut(inode: int) -> None:
    """Shut a connection by the inode of its socket; a listening socket stays, since gloo cannot lose that."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) != f"socket:[{inode}]":
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
