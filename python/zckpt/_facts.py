# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Union

StrPath = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Facts:
    """``folder`` holds the tag folder; ``framework`` is "deepspeed", "hf", "accelerate", "lightning" or "weights";
    ``world_size`` counts the data-parallel ranks whose shards make it up; ``step`` is DeepSpeed's global_steps and
    ``optimizer_step`` the optimizer's own count. ``dtype`` ("bf16", ...) is what the model computes with,
    ``master_dtype`` that of the masters. ``aliases`` maps tied names to the kept ones, ``module_order`` lists names as
    state_dict() does. ``frozen_excluded``: the save left frozen weights out. ``notes`` are remarks for a person.
    """

    folder: str
    tag: str
    framework: str
    layout: str
    stage: Optional[int]
    world_size: int
    step: Optional[int]
    optimizer_step: Optional[float]
    deepspeed_version: Optional[str]
    dtype: Optional[str]
    master_dtype: Optional[str]
    aliases: Mapping[str, str]
    module_order: Tuple[str, ...]
    frozen_excluded: bool
    notes: Tuple[str, ...]


@dataclass(frozen=True)
class TensorInfo:
    """``role`` is "master" (a trained weight as the optimizer holds it), "frozen", "buffer", "model" (what the model
    computes with) or "state"; then ``state`` says which ("exp_avg", ...), else it is empty. ``dtype`` is the stored
    one, named as in safetensors ("F32", "BF16"); ``shape`` counts elements.
    """

    name: str
    role: str
    state: str
    dtype: str
    shape: Tuple[int, ...]


def facts_from(values: Mapping[str, Any]) -> Facts:
    return Facts(**values)


def open_options(tag: Optional[str], also: Union[StrPath, Iterable[StrPath]], threads: Optional[int]) -> Dict[str, Any]:
    if isinstance(also, (str, os.PathLike)):
        also = (also,)
    if threads is not None and not 1 <= threads <= 1024:
        raise ValueError(f"threads must be 1 to 1024, not {threads}")
    return {"tag": tag, "also": [os.fsencode(each) for each in also], "threads": threads}


def size_of(value: Union[int, str, None], what: str) -> Optional[int]:
    """Bytes from a number or from text such as "5GB" or "512MiB"; None stays."""
    from zckpt import _core

    if value is None:
        return None
    size = _core.parse_size(value) if isinstance(value, str) else int(value)
    if size <= 0:
        raise ValueError(f"{what} must be more than 0 bytes")
    return size
