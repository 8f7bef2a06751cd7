"""Runs the user's script or module inside a worker, and leaves word of how it failed.

torchrun starts `python -m elastrain_trainer.run SCRIPT ARGUMENTS`. The script finds what it would find under
torchrun itself: its own folder first on the path, its arguments, `__name__ == "__main__"`; and errors are printed as
Python would, without the frames of this module.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import TracebackType

from elastrain_trainer import alone
from elastrain_trainer.checkpoint import StaleRound, raise_fence
from elastrain_trainer.failures import WORD, describe, is_peer_lost

USAGE_EXIT = 2
"""The exit code with which argument parsers refuse a command line."""


class NoScript(Exception):
    """The container's arguments name nothing that can be run."""


def main(arguments: list[str]) -> None:
    """Run the script and end as it ends."""
    faulthandler.enable()
    try:
        if os.environ.get("ELASTRAIN_ALONE"):
            alone.begin()
        else:
            _fence()
        _run(arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            _write_exit(end)
        raise
    except BaseException as error:
        trace = _of_the_user(error.__traceback__)
        reason = _reason(error, trace)
        _write(reason, describe(error, trace))
        if reason != "InvalidArguments" or os.environ.get("LOCAL_RANK", "0") == "0":
            _print(error, trace)
        sys.exit(1)


def _fence() -> None:
    """Keep older rounds from publishing checkpoints, before this one reads any."""
    folder = os.environ.get("ELASTRAIN_CHECKPOINT_PATH")
    if folder and os.environ.get("RANK", "0") == "0":
        try:
            raise_fence(Path(folder))
        except OSError as error:
            print(f"elastrain: cannot write to the checkpoint folder {folder}: {error}", file=sys.stderr)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.is_file():
        known = ", ".join(sorted(p.name for p in Path().glob("*.py"))) or "none"
        raise NoScript(
            f"there is no script {script}; the first of the container's args must name one "
            f"(working directory {Path.cwd()}, scripts there: {known})"
        )
    sys.argv = list(arguments)
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def _of_the_user(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not of this module and the machinery under it."""
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if not (name == __file__ or name.startswith("<frozen") or Path(name).name == "runpy.py"):
            break
        trace = trace.tb_next
    return trace


def _reason(error: BaseException, trace: TracebackType | None) -> str:
    """Return the reason; what cannot be run at all is no failure that another attempt could mend."""
    if trace is None and isinstance(error, NoScript | SyntaxError | ImportError):
        return "InvalidArguments"
    return "PeerLost" if is_peer_lost(error) else "WorkerFailed"


def _write_exit(end: SystemExit) -> None:
    refusal = _refusal(end.__traceback__) if end.code == USAGE_EXIT else None
    if refusal is not None:
        text = " ".join(refusal.split()) or "see the log"
        _write("InvalidArguments", f"the script refused its arguments, {' '.join(sys.argv[1:])}: {text}")
    elif isinstance(end.code, str):
        _write("WorkerFailed", end.code)


def _refusal(trace: TracebackType | None) -> str | None:
    """Return what the parser said, if it was argparse (or something built on it) that ended the script."""
    said = None
    while trace:
        frame = trace.tb_frame
        if Path(frame.f_code.co_filename).name == "argparse.py":
            said = str(frame.f_locals.get("message") or said or "")
        trace = trace.tb_next
    return said


def _write(reason: str, message: str) -> None:
    """Leave word beside the error file that torchrun gave this worker."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not place:
        return
    part = Path(place).with_name(".word")
    part.write_text(json.dumps({"reason": reason, "message": message, "time": time.time()}))
    part.rename(Path(place).with_name(WORD))


def _print(error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, NoScript | StaleRound):
        print(f"elastrain: {error}", file=sys.stderr)
    else:
        sys.excepthook(type(error), error, trace)


if __name__ == "__main__":
    main(sys.argv[1:])
