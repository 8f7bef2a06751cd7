"""What the kernel says of this container's limits: processors, and processes killed for want of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def oom_kills(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return how many processes of this container the memory limit has killed; 0 where that is not told."""
    for folder in _folders("memory", root, membership):
        for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
            for line in _read(folder / name).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def processors(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this container may use, rounded down, at least 1."""
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in _folders("cpu", root, membership):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if all(words):
            quota, period = words
            # No limit is `max` in version 2, -1 in version 1.
            return max(int(allowed if quota in ("max", "-1") else min(allowed, int(quota) / int(period))), 1)
    return max(int(allowed), 1)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Return where to look, the best first: containers see their own group as the root, or under its whole path."""
    for line in _read(membership).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield root / path.lstrip("/")
        elif controller in controllers.split(","):
            yield root / controllers / path.lstrip("/")
            yield root / controller / path.lstrip("/")
    yield root
    yield root / controller


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
