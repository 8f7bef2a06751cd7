"""The process between the agent and its workers for one round: torchrun as the agent starts it.

The only part of the agent that imports torch (through `elastic`), so that the agent itself stays small and is
there at once. Understands the arguments of torchrun that matter here, and leaves word of how the first worker
failed where the agent finds it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastrain_trainer.agent.output import WorkerOutput
from elastrain_trainer.failures import ABORTED, PEER_LOST, WORD, cut, describe_exit, is_connection_lost

if TYPE_CHECKING:
    from elastrain_trainer.agent.elastic import Ended, Meeting

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Failed:
    """How one worker failed: in its own words if it left any."""

    reason: str
    message: str
    time: float
    rank: int
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """Return it as the agent reads it."""
        time = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "reason": self.reason,
            "message": cut(self.message),
            "time": time,
            "rank": self.rank,
            "exitCode": self.exit_code,
        }


def main(arguments: list[str]) -> int:
    """Start the workers of this node and wait for them; 0 if all of them ended with 0."""
    _end_with_the_agent()
    border = arguments.index("--")
    options, command = _parser().parse_args(arguments[:border]), arguments[border + 1 :]
    try:
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from elastrain_trainer.agent.elastic import ExactRendezvous, NodeAgent, PipedLogs
    except (ImportError, OSError) as error:
        message = f"torch cannot be imported from this image: {type(error).__name__}: {error}"
        # No other attempt finds what the image does not have; drivers differ from node to node.
        reason = "InvalidArguments" if isinstance(error, ModuleNotFoundError) else "WorkerFailed"
        _say(options.failure_file, {"reason": reason, "message": message})
        print(f"elastrain: {message}", file=sys.stderr)
        return 1

    rendezvous, output = ExactRendezvous(_meeting(options)), WorkerOutput()
    spec = WorkerSpec(
        role="trainer",
        local_world_size=options.nproc_per_node,
        entrypoint=sys.executable,
        args=("-u", "-m", "elastrain_trainer.run", *command),
        rdzv_handler=rendezvous,
        max_restarts=0,
        local_addr=options.local_addr,
    )
    agent = NodeAgent(spec, PipedLogs(options.log_dir, output), options.shutdown_timeout)
    try:
        result = agent.run()
    except SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:
        reason = PEER_LOST if rendezvous.complete else "RendezvousFailed"
        message = f"{type(error).__name__}: {error}"
        _say(options.failure_file, {"reason": reason, "message": message})
        print(f"elastrain: the workers could not be started: {message}", file=sys.stderr)
        return 1
    finally:
        output.end()
    if not result.is_failed():
        return 0
    base = options.group_rank * options.nproc_per_node
    _say(options.failure_file, first_failure(options.log_dir, agent.watched.failed, base, output).to_json())
    return 1


def first_failure(folder: Path, failed: dict[int, Ended], base: int, output: WorkerOutput) -> Failed:
    """Return the failure that the others of this pod follow from.

    Workers that saw a broken connection are asked last: whoever broke it may take longer to end than they do.

    Args:
        folder: where workers leave word.
        failed: the workers that ended by themselves, by local rank.
        base: the global rank of local rank 0.
        output: what they printed.

    """
    noticed = max(ended.time for ended in failed.values())
    found = []
    for place in sorted(folder.iterdir()):
        local_rank = int(place.name)
        word, ended = _word(place), failed.get(local_rank)
        # What a worker says after it was told to end is no cause of anything.
        if word and word["time"] <= noticed:
            code = ended.exit_code if ended else 1
            found.append(Failed(word["reason"], word["message"], word["time"], base + local_rank, code))
        elif ended:
            found.append(_wordless(base + local_rank, ended, output.last_lines(base + local_rank)))
    return min(found, key=lambda failure: (failure.reason == PEER_LOST, failure.time))


def _wordless(rank: int, ended: Ended, printed: str) -> Failed:
    reason = PEER_LOST if ended.exit_code == ABORTED and is_connection_lost(printed) else "WorkerFailed"
    return Failed(reason, f"{describe_exit(ended.exit_code)}\n{printed}".strip(), ended.time, rank, ended.exit_code)


def _word(place: Path) -> dict[str, Any] | None:
    try:
        word = json.loads((place / WORD).read_text())
        return {"reason": str(word["reason"]), "message": str(word["message"]), "time": float(word["time"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elastrain_trainer.agent.launch", epilog="then -- and SCRIPT or -m MODULE, with its arguments"
    )
    parser.add_argument("--nnodes", type=int, required=True, help="how many nodes start workers")
    parser.add_argument("--node-rank", type=int, required=True, help="among them")
    parser.add_argument("--group-nodes", type=int, required=True, help="how many nodes train together")
    parser.add_argument("--group-rank", type=int, required=True, help="of this node among those")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--rdzv-id", required=True)
    parser.add_argument("--rdzv-endpoint", required=True, help="host:port, an IPv6 address in brackets")
    parser.add_argument("--master-endpoint", required=True, help="of the process group's store: host:port")
    parser.add_argument("--join-timeout", type=int, required=True, help="seconds to wait for the other nodes")
    parser.add_argument("--shutdown-timeout", type=int, required=True, help="seconds that workers have to end")
    parser.add_argument("--local-addr", required=True)
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--failure-file", type=Path, required=True)
    return parser


def _meeting(options: argparse.Namespace) -> Meeting:
    from elastrain_trainer.agent.elastic import Meeting

    host, port = parse_endpoint(options.rdzv_endpoint)
    store_host, store_port = parse_endpoint(options.master_endpoint)
    return Meeting(
        id=options.rdzv_id,
        nodes=options.nnodes,
        node_rank=options.node_rank,
        group_nodes=options.group_nodes,
        group_rank=options.group_rank,
        host=host,
        port=port,
        store_host=store_host,
        store_port=store_port,
        seconds=options.join_timeout,
    )


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of `host:port`, where an IPv6 address has brackets."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _end_with_the_agent() -> None:
    """Have the kernel send SIGTERM when the agent ends: nobody may train whom nobody can stop."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _say(path: Path, body: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(body))
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
