"""A job whose every step can be checked: what is learned at any size is what one process learns.

All ranks tell every step that they have done, so that none is missing from the logs of those that live on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

SCRIPT = """
import os, pathlib, sys, time
import torch, torch.nn.functional as F
from accelerate import Accelerator
from elastrain_trainer import Session, report_progress

here = pathlib.Path(os.environ.get("HERE", pathlib.Path(__file__).parent))
torch.set_default_dtype(torch.float64)  # so that the order of additions, which the world size decides, is not seen
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16, momentum=None), torch.nn.Linear(16, 1))
for part in model[1].parameters():
    part.requires_grad = False
model[1].eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 10))
model, optimizer = accelerator.prepare(model, optimizer)
total, pause = int(sys.argv[1]), float(sys.argv[2])

def save(step):
    if session.rank == 0:
        (here / "saved").write_text(str(step))

session = Session(model, optimizer, schedule, save=save)
for step in session.steps(total):
    with session.attempt():
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(12, 8, generator=generator)[session.rank :: session.world_size]
        noise = torch.randn(12, 1, generator=generator)[session.rank :: session.world_size]
        targets = inputs.sum(1, keepdim=True) + noise
        loss = F.mse_loss(model(inputs), targets, reduction="sum") * session.world_size / 12
        mean = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rate = schedule.get_last_lr()[0]
        print(f"step {step} loss {mean:.7f} world {session.world_size} rate {rate:.6f}", flush=True)
        if session.rank == 0:
            report_progress(step=step, total_steps=total)
        time.sleep(0 if (here / "fast").exists() else pause)
"""

LINE = re.compile(r"step (\d+) loss ([\d.]+) world (\d+) rate ([\d.]+)")


def lines(*texts: str) -> dict[int, tuple[float, int, float]]:
    """Return loss, world size and learning rate by step; no step may be there twice with another loss."""
    found: dict[int, tuple[float, int, float]] = {}
    for text in texts:
        for step, loss, world, rate in LINE.findall(text):
            before = found.get(int(step))
            assert before is None or abs(before[0] - float(loss)) < 1e-6, step
            found[int(step)] = float(loss), int(world), float(rate)
    return found


def static(folder: Path, steps: int) -> dict[int, tuple[float, int, float]]:
    """Return what one process learns without an agent.

    Args:
        folder: for the script.
        steps: how many to do.

    """
    (folder / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(steps), "0"],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("ELASTRAIN_")},
            "PYTHONPATH": str(REPOSITORY / "trainer_image"),
            "ELASTRAIN_POD": "none",
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = lines(run.stdout)
    assert len(found) == steps
    assert found[steps][0] < found[1][0]
    return found


def check(found: dict[int, tuple[float, int, float]], expected: dict[int, tuple[float, int, float]]) -> None:
    """Raise an AssertionError unless every step was done, with the losses and rates that are expected."""
    assert sorted(found) == list(range(1, len(expected) + 1))
    for step, (loss, _, rate) in expected.items():
        assert abs(found[step][0] - loss) < 1e-6, step
        assert abs(found[step][2] - rate) < 1e-6, step


def worlds(found: dict[int, tuple[float, int, float]]) -> list[int]:
    """Return the world sizes in which steps were done, one after the other."""
    sizes = [found[step][1] for step in sorted(found)]
    return [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]
