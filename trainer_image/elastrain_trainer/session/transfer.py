"""Sending state from one rank to the others: JSON for the structure, bytes for the tensors, in bounded memory."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

CHUNK_BYTES = 32 * 1024 * 1024
"""The most that one broadcast carries."""


class NotTransferable(TypeError):
    """A state_dict has a value that cannot be sent without a pickle."""


def flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a value as JSON, with its tensors, which are appended to `tensors`, by their places.

    Raises:
        NotTransferable: it has a part that is neither a tensor, a scalar, a string, nor a dict, list or tuple.

    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            tensors.append(value.detach())
            return {"t": [list(value.shape), str(value.dtype).removeprefix("torch.")]}
        case dict():
            return {"d": [[flatten(key, tensors), flatten(item, tensors)] for key, item in value.items()]}
        case tuple():
            return {"u": [flatten(item, tensors) for item in value]}
        case list():
            return {"l": [flatten(item, tensors) for item in value]}
    raise NotTransferable(
        f"a state_dict holds a {type(value).__module__}.{type(value).__name__}, which is not sent to other nodes; "
        "state_dict should return tensors, numbers, strings, and dicts, lists and tuples of them"
    )


def unflatten(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value of a skeleton, with new tensors on the CPU in place of those sent; they are appended."""
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, body),) = skeleton.items()
    if kind == "t":
        shape, dtype = body
        tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
        return tensors[-1]
    if kind == "d":
        return {unflatten(key, tensors): unflatten(item, tensors) for key, item in body}
    items = [unflatten(item, tensors) for item in body]
    return tuple(items) if kind == "u" else items


def share(value: Any, into: list[torch.Tensor], *, source: int, device: torch.device) -> Any:
    """Send a value and tensors from one rank to all; a collective.

    Args:
        value: what the source sends; of no meaning elsewhere.
        into: tensors that all ranks have in the same shapes; they get the source's content in place.
        source: the rank that sends.
        device: where the group communicates.

    Returns:
        The value of the source.

    Raises:
        NotTransferable: on the source, the value cannot be sent; nothing was.

    """
    own = dist.get_rank() == source
    tensors: list[torch.Tensor] = []
    text = json.dumps(flatten(value, tensors)).encode() if own else b""
    size = torch.tensor([len(text)], device=device)
    dist.broadcast(size, source)
    words = (
        torch.frombuffer(bytearray(text), dtype=torch.uint8).clone()
        if own
        else torch.empty(int(size), dtype=torch.uint8)
    )
    _broadcast([words], source, own, device)
    if not own:
        value = unflatten(json.loads(words.numpy().tobytes()), tensors)
    _broadcast([*into, *tensors], source, own, device)
    return value


@torch.no_grad()
def _broadcast(tensors: list[torch.Tensor], source: int, own: bool, device: torch.device) -> None:
    pieces = [piece for tensor in tensors for piece in _pieces(tensor)]
    while pieces:
        batch: list[torch.Tensor] = []
        size = 0
        while pieces and (not batch or size + pieces[0].nbytes <= CHUNK_BYTES):
            size += pieces[0].nbytes
            batch.append(pieces.pop(0))
        staging = torch.empty(size, dtype=torch.uint8, device=device)
        if own:
            torch.cat([_bytes(piece).to(device) for piece in batch], out=staging)
        dist.broadcast(staging, source)
        if not own:
            for piece, content in zip(batch, torch.split(staging, [p.nbytes for p in batch]), strict=True):
                piece.copy_(content.clone().view(piece.dtype).view(piece.shape))


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return views of a tensor of at most `CHUNK_BYTES`: flat ones where its layout allows."""
    if not tensor.numel():
        return []
    if tensor.nbytes <= CHUNK_BYTES or not tensor.is_contiguous():
        return [tensor]
    return list(torch.split(tensor.view(-1), CHUNK_BYTES // tensor.element_size()))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
