# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from zckpt._arrays import ArrayT, Framework, item_size, numel_of
from zckpt._facts import TensorInfo

if TYPE_CHECKING:
    from zckpt import _core


def stream_arrays(
    stream: "_core.Stream",
    names: Mapping[int, str],
    tensors: Sequence[TensorInfo],
    dtype_of: Callable[[int], str],
    framework: Framework[ArrayT],
    check_open: Callable[[], object],
) -> Iterator[Tuple[str, ArrayT]]:
    """Puts the pieces of a stream together. Large tensors come in several, without others in between."""
    array: Optional[ArrayT] = None
    memory: "npt.NDArray[np.uint8]" = np.empty(0, np.uint8)
    while True:
        check_open()
        piece = stream.next()
        if piece is None:
            return
        index, first, data = piece
        dtype = dtype_of(index)
        if array is None:
            array = framework.empty(dtype, tensors[index].shape)
            memory = framework.memory(array)
        begin = first * item_size(dtype)
        memory[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
        if begin + len(data) == numel_of(tensors[index].shape) * item_size(dtype):
            # Nothing here keeps it alive while the caller works.
            whole, array, memory = [array], None, np.empty(0, np.uint8)
            yield names[index], whole.pop()
