"""A worker of a round whose other members train already: until its session opens it is in a group of its own.

Scripts and Accelerate make their process group before they make the model; the others meet this worker only once
it has come to its session. So the group that it makes has one member, while rank and world size are the round's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_originals: dict[str, Callable[..., Any]] = {}


def begin() -> None:
    """Have torch.distributed make private groups from now on."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]
    from torch.distributed import distributed_c10d as c10d

    _originals.update(
        init_process_group=c10d.init_process_group,
        get_rank=c10d.get_rank,
        get_world_size=c10d.get_world_size,
    )

    def init_process_group(backend: str | None = None, *_: Any, **options: Any) -> None:
        few = {name: options[name] for name in ("timeout", "pg_options", "device_id") if name in options}
        _originals["init_process_group"](backend, store=HashStore(), rank=0, world_size=1, **few)

    def get_rank(group: Any = None) -> int:
        found: int = _originals["get_rank"](group)
        return int(os.environ["RANK"]) if group is None else found

    def get_world_size(group: Any = None) -> int:
        found: int = _originals["get_world_size"](group)
        return int(os.environ["WORLD_SIZE"]) if group is None else found

    _put({"init_process_group": init_process_group, "get_rank": get_rank, "get_world_size": get_world_size})


def end() -> None:
    """Put everything back."""
    _put(_originals)
    _originals.clear()


def _put(functions: dict[str, Callable[..., Any]]) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    for name, function in functions.items():
        setattr(c10d, name, function)
        setattr(dist, name, function)
