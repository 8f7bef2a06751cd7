"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrain_trainer.checkpoint import MANIFEST, StaleRound, latest_checkpoint, save_checkpoint, step_of


def write(folder: Path) -> None:
    (folder / "state").write_text("x" * 100)


def test_saved_and_found(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    path = save_checkpoint(tmp_path, 10, write)
    assert latest_checkpoint(tmp_path) == path
    assert step_of(path) == 10


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 11, 100):
        save_checkpoint(tmp_path, step, write, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-100", "step-11"]


@pytest.mark.parametrize("harm", ["truncate", "remove", "no manifest", "garbled manifest"])
def test_a_torn_one_is_never_chosen(tmp_path: Path, harm: str) -> None:
    good = save_checkpoint(tmp_path, 1, write)
    torn = save_checkpoint(tmp_path, 2, write)
    if harm == "truncate":
        (torn / "state").write_text("x")
    elif harm == "remove":
        (torn / "state").unlink()
    elif harm == "no manifest":
        (torn / MANIFEST).unlink()
    else:
        (torn / MANIFEST).write_text("{")
    assert latest_checkpoint(tmp_path) == good


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path, 1, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_stale_round_may_not_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTRAIN_ROUND", "5")
    save_checkpoint(tmp_path, 1, write)
    monkeypatch.setenv("ELASTRAIN_ROUND", "4")
    with pytest.raises(StaleRound, match="was written by round 5; this process belongs to round 4"):
        save_checkpoint(tmp_path, 2, write)
    monkeypatch.setenv("ELASTRAIN_ROUND", "6")
    save_checkpoint(tmp_path, 2, write)
