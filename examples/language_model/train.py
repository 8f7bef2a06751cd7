"""Train a small transformer on English text with Accelerate.

The text is the help on Python's own language that ships with every interpreter, so nothing is downloaded. The
global batch and the order of the data do not depend on the number of processes: two pods learn what one does, and
so do those of a job whose size changes while it trains.

    python train.py                      one process
    torchrun --nproc-per-node=2 train.py two processes on one machine
    args: [train.py]                     in a TrainJob
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from elastrain_trainer import Session, latest_checkpoint, report_checkpoint, report_progress, save_checkpoint
from elastrain_trainer.checkpoint import step_of


class LanguageModel(torch.nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.position = torch.nn.Parameter(torch.zeros(length, width))
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 256)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits, [batch, length, 256], for tokens [batch, length]."""
        return self.head(self.blocks(self.embedding(tokens) + self.position, mask=self.mask, is_causal=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--batch_size", type=int, default=32, help="samples in one optimizer step, of all processes")
    parser.add_argument("--length", type=int, default=64, help="bytes in one sample")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log_steps", type=int, default=10)
    parser.add_argument("--save_steps", type=int, default=50, help="steps between checkpoints, if there is a folder")
    parser.add_argument("--checkpoints", default=os.environ.get("ELASTRAIN_CHECKPOINT_PATH"), help="a shared folder")
    return parser.parse_args()


def batch(data: torch.Tensor, step: int, arguments: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole global batch of a step, a function of seed and step alone."""
    generator = torch.Generator().manual_seed(arguments.seed * 1_000_003 + step)
    starts = torch.randint(len(data) - arguments.length - 1, (arguments.batch_size,), generator=generator)
    rows = torch.stack([data[start : start + arguments.length + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    arguments = parse_arguments()
    accelerator = Accelerator()
    torch.manual_seed(arguments.seed)
    data = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    model = LanguageModel(arguments.width, arguments.layers, arguments.length)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate))
    found = latest_checkpoint(arguments.checkpoints) if arguments.checkpoints else None
    if found:
        load(found, accelerator, model, optimizer)
    session = Session(
        model,
        optimizer,
        step=step_of(found) if found else 0,
        save=lambda step: save(arguments, accelerator, model, optimizer, step),
    )
    if found and session.rank == 0:  # what an earlier start said last may not have arrived
        print(f"resumed after step {session.step} from {found}", flush=True)
        report_progress(step=session.step, total_steps=arguments.max_steps)
        report_checkpoint(step=step_of(found), path=str(found))
    first, begun = session.step, time.monotonic()
    for step in session.steps(arguments.max_steps):
        with session.attempt():
            rank, world = session.rank, session.world_size
            inputs, targets = (part[rank::world].to(accelerator.device) for part in batch(data, step, arguments))
            logits = model(inputs)
            # Summed over this process's samples and divided by the global count; DDP averages over the processes.
            tokens = arguments.batch_size * arguments.length
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") * world / tokens
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % arguments.log_steps == 0 or step in (1, arguments.max_steps):
                mean = accelerator.reduce(loss.detach(), "mean").item()
                if rank == 0:
                    print(f"step {step} loss {mean:.7f}", flush=True)
                    rate = (step - first) * arguments.batch_size / (time.monotonic() - begun)
                    report_progress(
                        step=step, total_steps=arguments.max_steps, samples_per_second=rate, metrics={"loss": mean}
                    )
            if step % arguments.save_steps == 0 or step == arguments.max_steps:
                save(arguments, accelerator, model, optimizer, step)
    accelerator.end_training()


def load(folder: Path, accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint."""
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def save(
    arguments: argparse.Namespace,
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
) -> None:
    """Save on the main process; the others wait, so that nobody leaves before the checkpoint is whole."""
    if not arguments.checkpoints:
        return
    if accelerator.is_main_process:
        state = {"model": accelerator.unwrap_model(model).state_dict(), "optimizer": optimizer.state_dict()}
        keep = int(os.environ.get("ELASTRAIN_CHECKPOINT_KEEP", "2"))

        def write(folder: Path) -> None:
            torch.save(state, folder / "state.pt")

        path = save_checkpoint(arguments.checkpoints, step, write, keep=keep)
        report_checkpoint(step=step, path=str(path))
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
