"""Runs the user's script or module inside a worker, and leaves word of how it failed.

torchrun starts `python -m elastrain_trainer.run SCRIPT ARGUMENTS`. The script finds what it would find under
torchrun itself: its own folder first on the path, its arguments, `__name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path

from elastrain_trainer.failures import describe, is_peer_lost

USAGE_EXIT = 2
"""The exit code with which argument parsers refuse a command line."""


def main(arguments: list[str]) -> None:
    """Run the script; whatever it raises goes on to the interpreter."""
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            _write_exit(end)
        raise
    except BaseException as error:
        _write(_reason(error), describe(error))
        raise


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        sys.path.insert(0, "")
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.is_file():
        known = ", ".join(sorted(p.name for p in Path().glob("*.py"))) or "none"
        raise FileNotFoundError(f"there is no script {script} (working directory {Path.cwd()}, scripts there: {known})")
    sys.argv = list(arguments)
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def _reason(error: BaseException) -> str:
    """Return the reason; what cannot be run at all is no failure that another attempt could mend."""
    frames = 0
    trace = error.__traceback__
    while trace:
        name = trace.tb_frame.f_code.co_filename
        frames += not (name == __file__ or name.startswith("<frozen") or Path(name).name == "runpy.py")
        trace = trace.tb_next
    if frames == 0 and isinstance(error, FileNotFoundError | SyntaxError | ImportError):
        return "InvalidArguments"
    return "PeerLost" if is_peer_lost(error) else "WorkerFailed"


def _write_exit(end: SystemExit) -> None:
    trace, parser = end.__traceback__, False
    while trace:
        parser = parser or Path(trace.tb_frame.f_code.co_filename).name == "argparse.py"
        trace = trace.tb_next
    if end.code == USAGE_EXIT and parser:
        _write("InvalidArguments", f"the script refused its arguments: {' '.join(sys.argv)}")
    elif isinstance(end.code, str):
        _write("WorkerFailed", end.code)


def _write(reason: str, message: str) -> None:
    """Leave word beside the error file that torchrun gave this worker."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not place:
        return
    time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    body = {"reason": reason, "message": message, "time": time}
    Path(place).with_name("elastrain.json").write_text(json.dumps(body))


if __name__ == "__main__":
    main(sys.argv[1:])
