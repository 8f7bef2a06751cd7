"""torchrun's own agent, with exact membership and without what only elastic torchrun needs.

torchrun's parts start and watch the workers (`LocalElasticAgent`); how nodes meet is ours, because the round says
already who they are. The c10d rendezvous that torchrun uses would

- give node ranks by the order of addresses, while the members of a round have an order of their own;
- exchange pickles through a store that anybody who reaches the port can write to;
- find newcomers by asking the store ten times a second, and end with the store's host;
- poll once a second for its completion.

Here the nodes that start workers meet at the same place, a TCPStore on the round's rendezvous endpoint, count each
other there, and take rank, world and the address of the process group's store from the round.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elastrain_trainer.agent.output import WorkerOutput

DOOMED_SECONDS = 5
"""How long workers may take to end when one beside them has failed: what they hang in cannot succeed any more."""


@dataclass(frozen=True)
class Meeting:
    """Who meets where, as the round says it."""

    id: str
    nodes: int  # that start workers
    node_rank: int
    group_nodes: int  # that train together: these and those whose workers go on
    group_rank: int
    host: str
    port: int
    store_host: str
    store_port: int
    seconds: int  # how long to wait for the others


class ExactRendezvous(RendezvousHandler):
    """Waits until all nodes of the round have come to its store; knows their ranks beforehand."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.complete = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes.

        Raises:
            RendezvousConnectionError: the first node's store cannot be reached.
            RendezvousTimeoutError: not all nodes came in time; the text says which did not.

        """
        meeting = self._meeting
        limit = timedelta(seconds=meeting.seconds)
        deadline = time.monotonic() + meeting.seconds
        try:
            tcp = TCPStore(
                meeting.host,
                meeting.port,
                is_master=meeting.node_rank == 0,
                wait_for_workers=False,
                timeout=limit,
            )
            store = PrefixStore(meeting.id, tcp)
            store.set(f"node/{meeting.node_rank}", "1")
            if store.add("nodes", 1) == meeting.nodes:
                store.set("complete", "1")
        except (RuntimeError, ValueError) as error:
            raise RendezvousConnectionError(
                f"node {meeting.node_rank} cannot reach the rendezvous at {meeting.host}:{meeting.port}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        try:
            store.wait(["complete"], timedelta(seconds=max(deadline - time.monotonic(), 1)))
        except RuntimeError as error:
            raise RendezvousTimeoutError(self._absent(store)) from error
        self.complete = True
        place = RendezvousStoreInfo(meeting.store_host, meeting.store_port)
        return RendezvousInfo(store, meeting.group_rank, meeting.group_nodes, place)

    def _absent(self, store: Store) -> str:
        meeting = self._meeting
        try:
            absent = [n for n in range(meeting.nodes) if not store.check([f"node/{n}"])]
        except RuntimeError:
            return f"the rendezvous at {meeting.host}:{meeting.port} has gone away"
        return (
            f"after {meeting.seconds} s {len(absent)} of {meeting.nodes} nodes have not come to the rendezvous at "
            f"{meeting.host}:{meeting.port}: node ranks {', '.join(map(str, absent[:20]))}"
        )

    def num_nodes_waiting(self) -> int:
        """Return 0: members change by rounds alone."""
        return 0

    def get_backend(self) -> str:
        """Return the name of what nodes meet at."""
        return "c10d"

    def get_run_id(self) -> str:
        """Return the id of the rendezvous, which is the round's."""
        return self._meeting.id

    def is_closed(self) -> bool:
        """Return False: nobody closes a rendezvous, it ends with its round."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def shutdown(self) -> bool:
        """Do nothing; the store ends with the process."""
        return True


class PipedLogs(LogsSpecs):
    """Workers print into the pipes of a `WorkerOutput`, and find a place for their error file."""

    def __init__(self, folder: Path, output: WorkerOutput) -> None:
        super().__init__(log_dir=str(folder))
        self._folder, self._output = folder, output

    @property
    def root_log_dir(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the pipes, given the environment of each worker by its local rank."""
        logs = LogsDest()
        for local_rank, variables in envs.items():
            folder = worker_folder(self._folder, local_rank)
            folder.mkdir(parents=True)
            for to, paths in ((1, logs.stdouts), (2, logs.stderrs)):
                self._output.pipe(folder / str(to), int(variables["RANK"]), to)
                paths[local_rank] = str(folder / str(to))
            logs.error_files[local_rank] = str(folder / "error.json")
            variables["TORCHELASTIC_ERROR_FILE"] = logs.error_files[local_rank]
        self._output.begin()
        return logs


def worker_folder(folder: Path, local_rank: int) -> Path:
    """Return where a worker leaves its error file."""
    return folder / str(local_rank)


@dataclass
class Ended:
    """A worker that ended with an error by itself."""

    exit_code: int
    time: float  # Unix time when this was noticed


@dataclass
class Watched:
    """What became of the workers: those that failed, by their local rank, before any was told to end."""

    failed: dict[int, Ended] = field(default_factory=dict)


class NodeAgent(LocalElasticAgent):
    """torchrun's agent; ends with its own workers, and knows which of them failed by themselves."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, shutdown_seconds: int) -> None:
        super().__init__(spec, logs, shutdown_timeout=shutdown_seconds)
        self.watched = Watched()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        processes = getattr(self._pcontext, "subprocess_handlers", {})
        codes = {rank: handler.proc.poll() for rank, handler in processes.items()}
        failed = {rank: Ended(code, time.time()) for rank, code in codes.items() if code}
        if failed and self._pcontext:
            self.watched.failed = failed
            self._pcontext.close(signal.SIGTERM, DOOMED_SECONDS)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _exit_barrier(self) -> None:
        """Do not wait for the other nodes: whether all have finished is the coordinator's to know."""
