"""Checkpoints that are whole or not there: written aside, made durable, then renamed.

A checkpoint is a folder `step-<n>` with a manifest that names its files and their sizes, and the round that wrote
it. A folder whose manifest does not fit is never chosen. A round that was overtaken may not publish: each round
puts its number into a fence file before it reads a checkpoint, and whoever finds a higher one there is stale. Works
on any POSIX file system that all pods share.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "elastrain.json"
FENCE = ".elastrain-round"
_PARTIAL = ".partial-"


class StaleRound(Exception):
    """A newer round of the job is at work: this process was left behind and must not write."""


@dataclass(frozen=True)
class _Writer:
    """Who writes: rounds are compared within one job only, since a job of the same name may follow on its folder."""

    job: str
    round: int


def save_checkpoint(folder: str | Path, step: int, write: Callable[[Path], None], *, keep: int = 2) -> Path:
    """Write a checkpoint and publish it; call it on one rank.

    Args:
        folder: where checkpoints are kept, shared by all pods.
        step: optimizer steps that it contains.
        write: writes the files into the empty folder that it is given.
        keep: how many of the newest complete checkpoints stay, at least 1.

    Returns:
        The folder of the checkpoint.

    Raises:
        StaleRound: a newer round of this job has begun.

    """
    root, writer = Path(folder), _this_writer()
    root.mkdir(parents=True, exist_ok=True)
    _refuse_if_stale(root, writer)
    partial, target = root / f"{_PARTIAL}{step}-{writer.round}-{os.getpid()}", root / f"step-{step}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        _seal(partial, step, writer)
        _refuse_if_stale(root, writer)
        _replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _tidy(root, target, max(keep, 1))
    return target


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; None if there is none."""
    return next(iter(_complete(Path(folder))), None)


def step_of(checkpoint: Path) -> int:
    """Return how many optimizer steps a checkpoint contains."""
    return int(json.loads((checkpoint / MANIFEST).read_text())["step"])


def raise_fence(root: Path) -> None:
    """Keep older rounds of this job from publishing in a folder.

    Raises:
        StaleRound: a newer round has done so already.

    """
    writer = _this_writer()
    root.mkdir(parents=True, exist_ok=True)
    _refuse_if_stale(root, writer)
    part = root / f"{FENCE}-{os.getpid()}"
    part.write_text(json.dumps({"job": writer.job, "round": writer.round}))
    _sync(part)
    part.replace(root / FENCE)
    _sync(root)


def _this_writer() -> _Writer:
    return _Writer(os.environ.get("ELASTRAIN_JOB_UID", ""), int(os.environ.get("ELASTRAIN_ROUND", "0")))


def _refuse_if_stale(root: Path, writer: _Writer) -> None:
    try:
        fence = json.loads((root / FENCE).read_text())
        at_work = _Writer(str(fence["job"]), int(fence["round"]))
    except (OSError, ValueError, KeyError, TypeError):
        return
    if at_work.job == writer.job and at_work.round > writer.round:
        raise StaleRound(
            f"round {at_work.round} of this job is at work on {root}; this process belongs to round {writer.round}"
        )


def _seal(partial: Path, step: int, writer: _Writer) -> None:
    """Make what was written durable, and add the manifest."""
    found = sorted(partial.rglob("*"))
    files = {str(path.relative_to(partial)): path.stat().st_size for path in found if path.is_file()}
    for name in files:
        _sync(partial / name)
    manifest = {
        "step": step,
        "job": writer.job,
        "round": writer.round,
        "worldSize": int(os.environ.get("WORLD_SIZE", "1")),
        "files": files,
    }
    (partial / MANIFEST).write_text(json.dumps(manifest))
    for folder in (partial / MANIFEST, *(path for path in found if path.is_dir()), partial):
        _sync(folder)


def _replace(partial: Path, target: Path) -> None:
    """Put a sealed checkpoint into its place; one of the same step that is there gives way."""
    if target.exists():
        former = target.with_name(f"{_PARTIAL}former-{target.name}-{os.getpid()}")
        target.rename(former)
        partial.rename(target)
        shutil.rmtree(former, ignore_errors=True)
    else:
        partial.rename(target)
    _sync(target.parent)


def _tidy(root: Path, published: Path, keep: int) -> None:
    """Delete what is superseded, and what writers that were killed left behind; never the one just published."""
    for old in _complete(root)[keep:]:
        if old != published:
            shutil.rmtree(old, ignore_errors=True)
    for left in root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)


def _complete(root: Path) -> list[Path]:
    found = [(step, path) for path in root.glob("step-*") if (step := _verified(path)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def _verified(path: Path) -> int | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = all((path / name).stat().st_size == size for name, size in manifest["files"].items())
        return int(manifest["step"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
