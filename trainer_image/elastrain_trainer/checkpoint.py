"""Checkpoints that are whole or not there: written aside, made durable, then renamed.

A checkpoint is a folder `step-<n>` with a manifest that names its files and their sizes and the round that wrote
it. A folder whose manifest does not fit is never chosen; a round older than the newest one on record may not
publish. Works on any POSIX file system that all pods share.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

MANIFEST = "elastrain.json"


class StaleRound(Exception):
    """A newer round has published already: this process was left behind and must not write."""


def save_checkpoint(folder: str | Path, step: int, write: Callable[[Path], None], *, keep: int = 2) -> Path:
    """Write a checkpoint and publish it; call it on one rank.

    Args:
        folder: where checkpoints are kept, shared by all pods.
        step: optimizer steps that it contains.
        write: writes the files into the empty folder that it is given.
        keep: how many of the newest complete checkpoints stay.

    Returns:
        The folder of the checkpoint.

    Raises:
        StaleRound: a newer round has published a checkpoint here.

    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    number = int(os.environ.get("ELASTRAIN_ROUND", "0"))
    _refuse_if_stale(root, number)
    partial, target = root / f".partial-{step}-{number}-{os.getpid()}", root / f"step-{step}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        files = {str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
        for name in files:
            _sync(partial / name)
        manifest = {"step": step, "round": number, "worldSize": int(os.environ.get("WORLD_SIZE", "1")), "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest))
        _sync(partial / MANIFEST)
        _sync(partial)
        _refuse_if_stale(root, number)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _sync(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in _complete(root)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; None if there is none."""
    return next(iter(_complete(Path(folder))), None)


def step_of(checkpoint: Path) -> int:
    """Return how many optimizer steps a checkpoint contains."""
    return int(json.loads((checkpoint / MANIFEST).read_text())["step"])


def _complete(root: Path) -> list[Path]:
    found = [(step, path) for path in root.glob("step-*") if (step := _verified(path)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def _verified(path: Path) -> int | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = all((path / name).stat().st_size == size for name, size in manifest["files"].items())
        return int(manifest["step"]) if whole else None
    except (OSError, ValueError, KeyError):
        return None


def _refuse_if_stale(root: Path, number: int) -> None:
    newest = latest_checkpoint(root)
    if newest is None:
        return
    written = int(json.loads((newest / MANIFEST).read_text())["round"])
    if number and written > number:
        raise StaleRound(f"{newest} was written by round {written}; this process belongs to round {number}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
