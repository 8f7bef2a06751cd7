"""What a session carries over: models, optimizers and whatever else has a state_dict; pure of any membership."""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class NotRegistrable(TypeError):
    """An object was given to a session that it cannot carry over."""


class State:
    """The registered objects, what they were when the step in flight began, and how to go back to that."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        """Register objects.

        Raises:
            NotRegistrable: one of them is neither a module nor an optimizer and has no state_dict.

        """
        modules = [obj for obj in objects if isinstance(obj, torch.nn.Module)]
        self.wrappers: list[Any] = [part for module in modules for part in module.modules() if _is_ddp(part)]
        self.modules: list[torch.nn.Module] = [_unwrapped(module) for module in modules]
        self.optimizers = [obj for obj in objects if isinstance(obj, Optimizer)]
        self.others = [obj for obj in objects if not isinstance(obj, torch.nn.Module | Optimizer)]
        for other in self.others:
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise NotRegistrable(
                    f"a session cannot carry over a {type(other).__name__}: it has no state_dict and load_state_dict"
                )
        self._updates = 0
        for optimizer in self.optimizers:
            getattr(optimizer, "optimizer", optimizer).register_step_post_hook(self._count)
        self._random: tuple[Any, ...] = ()
        self._before: list[Any] = []
        self._moved = [False] * len(self.others)
        self._versions: list[int] = []
        self._buffers: list[torch.Tensor | None] = []

    def _count(self, *_: object) -> None:
        self._updates += 1

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters and buffers by name."""
        for index, module in enumerate(self.modules):
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{index}.{name}", tensor

    def fingerprint(self) -> str:
        """Return in words what all workers must have equal: torch, and the names, shapes and types of the model."""
        shapes = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in self.tensors()]
        count = sum(tensor.numel() for _, tensor in self.tensors())
        digest = hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:12]
        return f"torch {torch.__version__} and a model of {count:,} numbers in {len(shapes)} tensors ({digest})"

    # The step in flight.

    def begin_step(self) -> None:
        """Keep what is needed to do the step again."""
        self._random = _random_state()
        now = [copy.deepcopy(other.state_dict()) for other in self.others]
        if self._before:
            self._moved = [before != after for before, after in zip(self._before, now, strict=True)]
        self._before = now
        self._updates = 0
        buffers = [tensor for module in self.modules for tensor in module.buffers()]
        versions = [tensor._version for tensor in buffers]
        changing = [version != before for version, before in zip(versions, self._versions, strict=False)]
        keep = changing or [True] * len(buffers)
        self._buffers = [tensor.detach().clone() if kept else None for tensor, kept in zip(buffers, keep, strict=True)]
        self._versions = versions

    @property
    def is_applied(self) -> bool:
        """Whether every optimizer has made its update in the step in flight."""
        return bool(self.optimizers) and self._updates >= len(self.optimizers)

    @property
    def is_partial(self) -> bool:
        """Whether some optimizers have made it and others not."""
        return 0 < self._updates < len(self.optimizers)

    def undo_step(self) -> None:
        """Go back to where the step began; parameters have not changed since."""
        _restore_random(self._random)
        for other, before in zip(self.others, self._before, strict=True):
            other.load_state_dict(before)
        buffers = [tensor for module in self.modules for tensor in module.buffers()]
        with torch.no_grad():
            for tensor, before in zip(buffers, self._buffers, strict=True):
                if before is not None:
                    tensor.copy_(before)
        self.drop_gradients()

    def finish_step(self) -> None:
        """Do what a step, whose update was made, had yet to do: the schedule moves with every update."""
        for other, before, moved in zip(self.others, self._before, self._moved, strict=True):
            if moved and hasattr(other, "step") and other.state_dict() == before:
                other.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget what a broken backward left."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    # The process group.

    def detach(self) -> list[dict[str, Any]]:
        """Have DistributedDataParallel let go of its process group; return what `attach` needs."""
        kept = []
        for wrapper in self.wrappers:
            attributes = wrapper.__getstate__()
            hooks = list(getattr(wrapper, "_comm_hooks", ()))
            wrapper.reducer = wrapper.process_group = wrapper.logger = None
            kept.append({"attributes": attributes, "hooks": hooks})
        return kept

    def attach(self, kept: list[dict[str, Any]]) -> None:
        """Have DistributedDataParallel use the present process group, with new buckets."""
        for wrapper, was in zip(self.wrappers, kept, strict=True):
            wrapper.__setstate__(was["attributes"])
            wrapper._comm_hooks = []
            for hook, state in was["hooks"]:
                wrapper.register_comm_hook(state, hook)

    # What newcomers get.

    def extract(self) -> dict[str, Any]:
        """Return all but the model: what `restore` takes."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "others": [other.state_dict() for other in self.others],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `extract` returned elsewhere."""
        for optimizer, value in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(value)
        for other, value in zip(self.others, state["others"], strict=True):
            other.load_state_dict(value)
        self._before = []


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    inner: torch.nn.Module = module.module if _is_ddp(module) else module  # type: ignore[assignment]
    return inner


def _is_ddp(module: object) -> bool:
    return isinstance(module, DistributedDataParallel)


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None, cuda


def _restore_random(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])
    if state[3] is not None:
        torch.cuda.set_rng_state_all(state[3])
