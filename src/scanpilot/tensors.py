"""Torch tensors to bytes and back, as safetensors: a module's weights, and trees with tensors in them.

Knows no files; `checkpoint` does, and turns the ``ValueError`` of here into one that names the file.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialise_tensors
from torch import Tensor, nn

_TENSOR, _ARRAY = "$tensor", "$array"


def serialise_module(module: nn.Module) -> bytes:
    """A module's weights.

    Raises:
        ValueError: names the weight that holds a number that is not finite.
    """
    state = {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}
    for key, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{key} holds a number that is not finite")
    data: bytes = serialise_tensors(state)
    return data


def load_module(module: nn.Module, data: bytes) -> None:
    """Give a module, which may lie on the device ``meta``, the weights of `serialise_module`.

    Raises:
        ValueError: the data is damaged, or its names, shapes or types are not the module's.
    """
    tensors = _parse(data)
    wanted = module.state_dict()
    if tensors.keys() != wanted.keys():
        odd = sorted(tensors.keys() ^ wanted.keys())
        raise ValueError(f"tensors missing or unknown: {', '.join(odd[:5])}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}")
        if tensor.dtype != wanted[name].dtype:
            raise ValueError(f"{name} is of {tensor.dtype}, expected {wanted[name].dtype}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds a number that is not finite")
    # Cloned: parsed tensors are views of the file's bytes.
    module.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def lift(tree: dict[str, Any]) -> tuple[Any, bytes]:
    """A tree of dicts, lists, tensors, arrays, numbers and text as plain JSON and bytes."""
    tensors: dict[str, Tensor] = {}
    plain = _lift(tree, "", tensors)
    return plain, serialise_tensors(tensors)


def drop(plain: Any, data: bytes) -> dict[str, Any]:
    """The tree that `lift` took apart.

    Raises:
        ValueError: the data is damaged.
    """
    tree = _drop(plain, _parse(data))
    assert isinstance(tree, dict)
    return tree


def _parse(data: bytes) -> dict[str, Tensor]:
    try:
        # safetensors believes the header's length; data shorter than it says is refused here.
        (header,) = struct.unpack("<Q", data[:8])
        if header > len(data) - 8:
            raise ValueError(f"header of {header} bytes in a file of {len(data)}")
        tensors: dict[str, Tensor] = parse_tensors(data)
        return tensors
    except (SafetensorError, struct.error, ValueError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def _lift(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, np.ndarray):
        tensors[path] = torch.from_numpy(tree.copy())
        return {_ARRAY: path}
    if isinstance(tree, Tensor):
        # A copy, since safetensors refuses tensors that share memory.
        tensors[path] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(tree, dict):
        # Escaped as in a JSON pointer, so that {"a/b": ...} and {"a": {"b": ...}} stay apart.
        keys = {k: str(k).replace("~", "~0").replace("/", "~1") for k in tree}
        return {str(k): _lift(v, f"{path}/{keys[k]}", tensors) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_lift(v, f"{path}/{i}", tensors) for i, v in enumerate(tree)]
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


def _drop(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(plain, dict):
        if plain.keys() == {_TENSOR}:
            return tensors[plain[_TENSOR]]
        if plain.keys() == {_ARRAY}:
            return tensors[plain[_ARRAY]].numpy()
        return {k: _drop(v, tensors) for k, v in plain.items()}
    if isinstance(plain, list):
        return [_drop(v, tensors) for v in plain]
    return plain
