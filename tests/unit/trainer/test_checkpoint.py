"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrain_trainer.checkpoint import (
    MANIFEST,
    StaleRound,
    latest_checkpoint,
    raise_fence,
    save_checkpoint,
    step_of,
)


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


def belongs_to(monkeypatch: pytest.MonkeyPatch, number: int, job: str = "uid-1") -> None:
    monkeypatch.setenv("ELASTRAIN_ROUND", str(number))
    monkeypatch.setenv("ELASTRAIN_JOB_UID", job)


def test_a_round_that_was_overtaken_may_not_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    belongs_to(monkeypatch, 4)
    raise_fence(tmp_path)
    first = save_checkpoint(tmp_path, 1, write)
    belongs_to(monkeypatch, 5)
    raise_fence(tmp_path)  # the next round begins and has published nothing yet
    belongs_to(monkeypatch, 4)
    with pytest.raises(StaleRound, match=r"round 5 of this job is at work on .*; this process belongs to round 4"):
        save_checkpoint(tmp_path, 2, write)
    with pytest.raises(StaleRound):
        raise_fence(tmp_path)
    assert latest_checkpoint(tmp_path) == first


def test_a_round_that_is_overtaken_while_it_writes_does_not_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(folder: Path) -> None:
        write(folder)
        belongs_to(monkeypatch, 5)
        raise_fence(tmp_path)

    belongs_to(monkeypatch, 4)
    with pytest.raises(StaleRound):
        save_checkpoint(tmp_path, 2, overtaken)
    assert latest_checkpoint(tmp_path) is None


def test_a_job_made_anew_goes_on_from_the_checkpoints_of_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    belongs_to(monkeypatch, 7, job="uid-former")
    raise_fence(tmp_path)
    former = save_checkpoint(tmp_path, 50, write)
    belongs_to(monkeypatch, 1, job="uid-new")
    raise_fence(tmp_path)
    assert latest_checkpoint(tmp_path) == former
    assert latest_checkpoint(tmp_path) != save_checkpoint(tmp_path, 40, write, keep=1)  # started over on purpose
    assert (tmp_path / "step-40").exists()


def test_the_same_step_again_takes_the_place_of_the_former(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, write)
    path = save_checkpoint(tmp_path, 5, lambda folder: (folder / "other").touch())
    assert {p.name for p in path.iterdir()} == {"other", MANIFEST}
    assert [p.name for p in tmp_path.iterdir()] == ["step-5"]


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".partial-3-1-99").mkdir()
    (tmp_path / ".partial-3-1-99/state").touch()
    save_checkpoint(tmp_path, 4, write)
    assert [p.name for p in tmp_path.iterdir()] == ["step-4"]


def test_files_in_folders_belong_to_it(tmp_path: Path) -> None:
    def nested(folder: Path) -> None:
        (folder / "shards").mkdir()
        (folder / "shards/0").write_text("zero")

    path = save_checkpoint(tmp_path, 1, nested)
    assert latest_checkpoint(tmp_path) == path
    (path / "shards/0").write_text("z")
    assert latest_checkpoint(tmp_path) is None
