"""What a worker leaves word of when the script cannot be run or fails, without torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastrain_trainer.failures import describe_exit, is_peer_lost

REPOSITORY = Path(__file__).parents[3]


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, str] | None]:
    done = subprocess.run(
        [sys.executable, "-m", "elastrain_trainer.run", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "trainer_image"),
            "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
        },
        capture_output=True,
        check=False,
    )
    word = folder / "elastrain.json"
    return done.returncode, json.loads(word.read_text()) if word.exists() else None


@pytest.mark.parametrize(
    ("script", "arguments", "code", "reason", "text"),
    [
        ("def f(:", ("s.py",), 1, "InvalidArguments", "SyntaxError"),
        ("", ("none.py",), 1, "InvalidArguments", "there is no script none.py"),
        ("", ("-m", "no_such_module"), 1, "InvalidArguments", "no_such_module"),
        ("import argparse; argparse.ArgumentParser().parse_args()", ("s.py", "--x"), 2, "InvalidArguments", "nts: --x"),
        ("raise ValueError('bad data')", ("s.py",), 1, "WorkerFailed", "ValueError: bad data"),
        ("import no_such_package", ("s.py",), 1, "WorkerFailed", "No module named 'no_such_package'"),
        ("raise SystemExit('no licence')", ("s.py",), 1, "WorkerFailed", "no licence"),
        ("raise RuntimeError('[gloo/x.cc] Connection closed by peer')", ("s.py",), 1, "PeerLost", "Connection closed"),
        ("raise ConnectionError('database: Connection refused')", ("s.py",), 1, "WorkerFailed", "database"),
    ],
)
def test_failure(tmp_path: Path, script: str, arguments: tuple[str, ...], code: int, reason: str, text: str) -> None:
    (tmp_path / "s.py").write_text(script)
    exit_code, word = run(tmp_path, *arguments)
    assert exit_code == code
    assert word is not None
    assert word["reason"] == reason
    assert text in word["message"]


@pytest.mark.parametrize(("script", "code"), [("pass", 0), ("raise SystemExit(0)", 0), ("raise SystemExit(3)", 3)])
def test_an_exit_code_alone_is_no_word(tmp_path: Path, script: str, code: int) -> None:
    (tmp_path / "s.py").write_text(script)
    assert run(tmp_path, "s.py") == (code, None)


def test_the_script_finds_what_it_would_find_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/beside.py").write_text("X = 7")
    (tmp_path / "sub/s.py").write_text(
        "import sys, beside\nassert __name__ == '__main__' and beside.X == 7 and sys.argv == ['sub/s.py', 'a']"
    )
    assert run(tmp_path, "sub/s.py", "a") == (0, None)


def test_exits_are_named() -> None:
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(3) == "exit code 3"


def test_peer_lost_needs_a_communication_library() -> None:
    assert is_peer_lost(RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"))
    assert not is_peer_lost(RuntimeError("shape mismatch in gloo_layer"))
