# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor, read as little as possible."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Callable, Generic, List, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from zckpt._arrays import ArrayT, Framework, item_size, numel_of

if TYPE_CHECKING:
    # (firsts, numel, out): runs of numel elements that begin at firsts, one after the other into out.
    ReadRuns = Callable[[npt.NDArray[np.uint64], int, npt.NDArray[np.uint8]], None]

# What beginning another run costs, in bytes that could be read meanwhile.
_RUN_COST = 16 << 10
# The most that is read beside the result.
_SCRATCH_BYTES = 32 << 20


class TensorSlice(Generic[ArrayT]):
    """A tensor that is read where it is indexed, as in safetensors' safe_open.

    Takes what NumPy calls basic indexing: integers, slices with any step, Ellipsis and None. Unlike safetensors it also
    takes negative steps. The answer is always an array, of no dimension where NumPy would give a scalar, and a copy.
    Memory beside the answer: 32 MiB.
    """

    def __init__(self, shape: Tuple[int, ...], dtype: str, framework: Framework[ArrayT], read: "ReadRuns") -> None:
        self._shape = shape
        self._dtype = dtype
        self._framework = framework
        self._read = read

    def get_shape(self) -> List[int]:
        """Elements along each axis."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """The dtype of what indexing gives, named as in safetensors: "F32", "BF16"."""
        return self._dtype

    def __getitem__(self, key: Any) -> ArrayT:
        """Raises IndexError and TypeError as NumPy does, ValueError once the checkpoint is closed, zckpt.Error."""
        axes, shape = _parse(key, self._shape)
        result = self._framework.empty(self._dtype, shape)
        if numel_of(shape) > 0:
            _fill(axes, self._shape, item_size(self._dtype), self._framework.memory(result), self._read)
        return result

    def __repr__(self) -> str:
        return f"TensorSlice(shape={list(self._shape)}, dtype={self._dtype!r})"


def _index(item: Any) -> int:
    if isinstance(item, (bool, np.bool_)):
        raise IndexError("a bool is no index here")
    try:
        return operator.index(item)
    except TypeError:
        raise IndexError("only integers, slices, Ellipsis and None are valid indices here") from None


def _parse(key: Any, shape: Tuple[int, ...]) -> Tuple[List[range], Tuple[int, ...]]:
    """What indices are taken of each axis, and the shape of the result."""
    items = list(key) if isinstance(key, tuple) else [key]
    named = sum(1 for item in items if item is not None and item is not Ellipsis)
    if sum(1 for item in items if item is Ellipsis) > 1:
        raise IndexError("an index can have only one Ellipsis")
    if named > len(shape):
        raise IndexError(f"{named} indices for a tensor of {len(shape)} dimensions")
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    axes: List[range] = []
    result: List[int] = []
    for item in items:
        if item is None:
            result.append(1)
        elif item is Ellipsis:
            for size in shape[len(axes) : len(axes) + len(shape) - named]:
                axes.append(range(size))
                result.append(size)
        elif isinstance(item, slice):
            axes.append(range(*item.indices(shape[len(axes)])))
            result.append(len(axes[-1]))
        else:
            size = shape[len(axes)]
            index = _index(item)
            if not -size <= index < size:
                raise IndexError(f"index {index} is out of bounds for axis {len(axes)} with size {size}")
            axes.append(range(index % size, index % size + 1))
    return axes, tuple(result)


def _span(axis: range) -> int:
    """Indices from the least to the greatest of ``axis``."""
    return abs(axis[-1] - axis[0]) + 1


def _read_axis(axes: Sequence[range], shape: Tuple[int, ...], size: int) -> int:
    """The axis whose span is read in one run, with all behind it: which costs least."""
    best, least = 0, None
    runs = 1
    for k, axis in enumerate(axes):
        cost = runs * (_RUN_COST + _span(axis) * numel_of(shape[k + 1 :]) * size)
        if least is None or cost < least:
            best, least = k, cost
        runs *= len(axis)
    return best


def _relative(axis: range, start: int) -> slice:
    """``axis`` as a slice of an array whose first index is ``start``."""
    stop = axis.stop - start
    return slice(axis.start - start, None if stop < 0 else stop, axis.step)


def _fill(
    axes: List[range], shape: Tuple[int, ...], size: int, memory: "npt.NDArray[np.uint8]", read: "ReadRuns"
) -> None:
    """Fills the result's bytes. REQUIRES: no axis is empty."""
    if not axes:
        read(np.zeros(1, np.uint64), 1, memory)
        return
    k = _read_axis(axes, shape, size)
    behind = numel_of(shape[k + 1 :])
    # Where each run begins, but for the axis that is read.
    starts = np.zeros(1, np.uint64)
    for d in range(k):
        offsets = np.asarray(axes[d], np.uint64) * np.uint64(numel_of(shape[d + 1 :]))
        starts = (starts[:, None] + offsets).reshape(-1)
    whole = all(axis == range(n) for axis, n in zip(axes[k + 1 :], shape[k + 1 :]))
    if whole and (axes[k].step == 1 or len(axes[k]) == 1):
        read(starts + np.uint64(axes[k][0] * behind), len(axes[k]) * behind, memory)
        return
    rows = max(1, _SCRATCH_BYTES // (behind * size) // abs(axes[k].step))
    out = memory.view(f"u{size}").reshape([len(starts)] + [len(axis) for axis in axes[k:]])
    for i in range(0, len(axes[k]), rows):
        part = axes[k][i : i + rows]
        low = min(part[0], part[-1])
        numel = _span(part) * behind
        batch = max(1, _SCRATCH_BYTES // (numel * size))
        taken = (slice(None), _relative(part, low), *(_relative(axis, 0) for axis in axes[k + 1 :]))
        for j in range(0, len(starts), batch):
            firsts = starts[j : j + batch] + np.uint64(low * behind)
            scratch = np.empty(len(firsts) * numel, out.dtype)
            read(firsts, numel, scratch.view(np.uint8))
            found = scratch.reshape([len(firsts), _span(part), *shape[k + 1 :]])
            out[j : j + batch, i : i + rows] = found[taken]
