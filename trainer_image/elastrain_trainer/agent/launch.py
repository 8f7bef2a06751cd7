"""torchrun, with three small differences, as the agent starts it (this is the only part that imports torch).

The node rank is the one that the round says: torchrun gives ranks by the order of the nodes' addresses, while
the members of a round have an order of their own. The agent is told as soon as all workers of this node have
ended well, since torchrun itself waits for its peers, five minutes if one of them failed. And how the first
worker failed is written down where the agent finds it.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastrain_trainer.failures import LINES, describe_exit, last_lines
from elastrain_trainer.reports import send


def main(arguments: list[str]) -> int:
    """Run torchrun; 0 if all workers of this node ended with 0."""
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except (ImportError, OSError) as error:
        _write({"reason": "WorkerFailed", "message": f"torch cannot be imported from this image: {error}"})
        raise

    parsed = run.parse_args(arguments)
    _keep_node_rank(int(os.environ["ELASTRAIN_NODE_RANK"]))
    _announce_the_end()
    try:
        run.run(parsed)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _write(_child(rank, failure, Path(parsed.log_dir)))
        return 1
    except SignalException as error:
        return 128 + error.sigval
    except Exception as error:
        _write({"reason": "RendezvousFailed", "message": f"{type(error).__name__}: {error}"})
        print(f"elastrain: torchrun could not start the workers: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _keep_node_rank(node_rank: int) -> None:
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    sorted_world = DynamicRendezvousHandler._get_world

    def world(self: Any) -> tuple[int, int]:
        return node_rank, sorted_world(self)[1]

    DynamicRendezvousHandler._get_world = world  # type: ignore[method-assign]


def _announce_the_end() -> None:
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    barrier = SimpleElasticAgent._exit_barrier

    def announced(self: Any) -> None:
        send({"type": "workersFinished"})
        barrier(self)

    SimpleElasticAgent._exit_barrier = announced  # type: ignore[method-assign]


def _child(rank: int, failure: Any, logs: Path) -> dict[str, Any]:
    """Return the report on a failed worker: its own words if it left any, else the end of what it printed."""
    folder = next(logs.glob(f"*/attempt_*/{failure.local_rank}"), Path())
    time = datetime.fromtimestamp(failure.timestamp, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    body = {"reason": "WorkerFailed", "rank": rank, "exitCode": failure.exitcode, "time": time}
    try:
        said = json.loads((folder / "elastrain.json").read_text())
    except (OSError, ValueError):
        printed = last_lines(folder / "stderr.log", LINES)
        return {**body, "message": f"{describe_exit(failure.exitcode)}\n{printed}".strip()}
    return {**body, **said}


def _write(body: dict[str, Any]) -> None:
    path = os.environ.get("ELASTRAIN_FAILURE_FILE")
    if path:
        Path(path).write_text(json.dumps(body))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
