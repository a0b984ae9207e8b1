# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for deepspeed.utils.zero_to_fp32: the same calls with the same answers, without DeepSpeed, after zckpt's
checks. Where DeepSpeed 0.19.8 fails or drops weights the answers differ: docs/python.md lists it.

    from zckpt.deepspeed import get_fp32_state_dict_from_zero_checkpoint
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Set, Tuple, TypeVar, Union

import zckpt
from zckpt._arrays import conversion, is_floating
from zckpt._facts import StrPath

if TYPE_CHECKING:
    import torch

__all__ = [
    "LazyTensor",
    "convert_zero_checkpoint_to_fp32_state_dict",
    "convert_zero_checkpoint_to_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
]

_log = logging.getLogger(__name__)
ModelT = TypeVar("ModelT")

_UNLIMITED = 1 << 62
# Files of weights by the names that loaders look for.
_WEIGHTS = re.compile(r"(pytorch_model|model).*\.(bin|safetensors)(\.index\.json)?$")


class LazyTensor:
    """A weight that contiguous() reads. ``shape`` and ``dtype`` are those of the tensor it gives."""

    def __init__(self, checkpoint: "zckpt.Checkpoint[torch.Tensor]", index: int, dtype: str) -> None:
        import torch

        self._checkpoint = checkpoint
        self._index = index
        self._dtype = dtype
        self.shape = torch.Size(checkpoint.tensors[index].shape)
        # Of an empty one torch itself tells the dtype.
        self.dtype: torch.dtype = checkpoint._framework.empty(dtype, (0,)).dtype

    def numel(self) -> int:
        return int(self.shape.numel())

    def contiguous(self) -> "torch.Tensor":
        """Reads the weight into a new tensor. Raises zckpt.Error."""
        return self._checkpoint._read([self._index], [self._dtype])[0]

    def __repr__(self) -> str:
        return f"LazyTensor({self._checkpoint.tensors[self._index].name!r}, {list(self.shape)}, {self.dtype})"


def _tag_folder(checkpoint_dir: StrPath, tag: Optional[str]) -> str:
    folder = os.fspath(checkpoint_dir)
    if tag is None:
        latest = os.path.join(folder, "latest")
        if not os.path.isfile(latest):
            raise ValueError(f"there is no file {latest} that names the tag: give tag")
        with open(latest, encoding="utf-8") as file:
            tag = file.read().strip()
    found = os.path.join(folder, tag)
    if not os.path.isdir(found):
        raise FileNotFoundError(f"there is no folder {found}")
    return found


def _warn_of_what_is_missing(facts: zckpt.Facts, exclude_frozen: bool) -> bool:
    """Whether frozen weights have to be left out, as DeepSpeed does without a word."""
    if facts.frozen_excluded and not exclude_frozen:
        warnings.warn(
            "the save left the frozen weights out: this is not the full model. zckpt.export_hf(base=...) takes them "
            "from the base model; exclude_frozen_parameters=True says that this is meant",
            stacklevel=3,
        )
    return exclude_frozen or facts.frozen_excluded


_Chosen = List[Tuple[str, int, str]]


def _choose(checkpoint: "zckpt.Checkpoint[Any]", exclude_frozen: bool) -> _Chosen:
    """(name, tensor, dtype) in DeepSpeed's order: buffers, frozen weights, trained ones, tied names."""
    weights = checkpoint._weights
    chosen: _Chosen = []
    for role in ("buffer", "frozen", "master", "model"):
        if role == "frozen" and exclude_frozen:
            continue
        for index, tensor in enumerate(checkpoint.tensors):
            if tensor.role == role and weights.get(tensor.name) == index:
                # Buffers become fp32; what is frozen or a master is not converted.
                to_fp32 = role == "buffer" and is_floating(tensor.dtype)
                chosen.append((tensor.name, index, "F32" if to_fp32 else tensor.dtype))
    dtypes = {index: dtype for _, index, dtype in chosen}
    for alias in checkpoint.facts.aliases:
        index = weights.get(alias, -1)
        if index in dtypes:
            chosen.append((alias, index, dtypes[index]))
    return chosen


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: StrPath,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Dict[str, Any]:
    """The weights of a checkpoint as tensors on the CPU, for ``model.load_state_dict()``.

    ``checkpoint_dir``: the folder that holds the tag folders; ``tag``: which, else what ``latest`` names. Masters have
    the dtype they are kept in, fp32 as a rule, floating buffers become fp32, frozen weights keep the model's dtype.
    Tied names share a tensor. With ``lazy_mode`` weights are read one by one, by their contiguous().

    Raises ValueError without ``latest``, FileNotFoundError without the tag folder, zckpt.Error with ``findings`` where
    shards are damaged, missing or of different saves.
    """
    checkpoint = zckpt.open(_tag_folder(checkpoint_dir, tag), framework="pt")
    _log.info("%s: %s, %d ranks", checkpoint.facts.folder, checkpoint.facts.layout, checkpoint.facts.world_size)
    exclude = _warn_of_what_is_missing(checkpoint.facts, exclude_frozen_parameters)
    chosen = _choose(checkpoint, exclude)
    dtypes = {index: dtype for _, index, dtype in chosen}
    if lazy_mode:
        lazy = {index: LazyTensor(checkpoint, index, dtype) for index, dtype in dtypes.items()}
        return OrderedDict((name, lazy[index]) for name, index, _ in chosen)
    arrays = dict(zip(dtypes, checkpoint._read(list(dtypes), list(dtypes.values()))))
    return {name: arrays[index] for name, index, _ in chosen}


def _warn_of_others(folder: str, written: Set[str]) -> None:
    """Loaders look for weights by name, and may prefer files that were there before."""
    others = sorted(name for name in os.listdir(folder) if _WEIGHTS.match(name) and name not in written)
    if others:
        warnings.warn(
            f"{folder} also holds {', '.join(others[:4])}: loaders may take these for the model's weights",
            stacklevel=5,
        )


def _write_into(folder: str, tag_folder: str, options: Mapping[str, Any]) -> None:
    """Writes weights into a folder that may hold other files, which stay. Files appear whole, the index last."""
    if not os.path.isdir(folder) or not os.listdir(folder):
        zckpt.merge(tag_folder, folder, **options)
        return
    scratch = tempfile.mkdtemp(prefix=".zckpt-", dir=folder)
    try:
        made = os.path.join(scratch, "weights")
        result = zckpt.merge(tag_folder, made, **options)
        for file in result.files:
            os.replace(os.path.join(made, file.name), os.path.join(folder, file.name))
        _warn_of_others(folder, {file.name for file in result.files})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def convert_zero_checkpoint_to_state_dict(
    checkpoint_dir: StrPath,
    output_dir: StrPath,
    dtype: object = "fp32",
    max_shard_size: Union[int, str, None] = "5GB",
    safe_serialization: bool = False,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the weights into ``output_dir``: pytorch_model.bin, or with ``safe_serialization`` model.safetensors; in
    several files with an index beyond ``max_shard_size`` (bytes, or text such as "5GB"; None: one file).

    ``dtype`` ("fp32", "fp16", "bf16" or a torch dtype) is that of all floating weights. Other files in the folder stay,
    those of the same names are replaced. Memory: 16 MiB. Raises as get_fp32_state_dict_from_zero_checkpoint().
    """
    tag_folder = _tag_folder(checkpoint_dir, tag)
    target = conversion(dtype)
    if target is None:
        raise ValueError("dtype must be fp32, fp16 or bf16")
    with zckpt.open(tag_folder) as checkpoint:
        exclude = _warn_of_what_is_missing(checkpoint.facts, exclude_frozen_parameters)
    options = {
        "dtype": {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}[target],
        "format": "safetensors" if safe_serialization else "bin",
        "max_shard_size": _UNLIMITED if max_shard_size is None else max_shard_size,
        "order": "param_shapes",
        "exclude_frozen": exclude,
    }
    _write_into(os.fspath(output_dir), tag_folder, options)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: StrPath,
    output_dir: StrPath,
    max_shard_size: Union[int, str, None] = "5GB",
    safe_serialization: bool = False,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """convert_zero_checkpoint_to_state_dict() to fp32."""
    convert_zero_checkpoint_to_state_dict(
        checkpoint_dir,
        output_dir,
        "fp32",
        max_shard_size,
        safe_serialization,
        tag,
        exclude_frozen_parameters,
    )


def load_state_dict_from_zero_checkpoint(model: ModelT, checkpoint_dir: StrPath, tag: Optional[str] = None) -> ModelT:
    """Moves ``model`` to the CPU, loads the weights into it (names that only one has are ignored), returns it."""
    weights = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    on_cpu: Any = model
    on_cpu = on_cpu.cpu()
    result = on_cpu.load_state_dict(weights, strict=False)
    if len(result.unexpected_keys) == len(weights):
        warnings.warn("no name of the checkpoint is one of the model: nothing was loaded", stacklevel=2)
    moved: ModelT = on_cpu
    return moved
