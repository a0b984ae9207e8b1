# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and PyTorch as memory to read into. Neither PyTorch nor ml_dtypes is imported before it is needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Tuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)

# safetensors name -> bytes of an element, NumPy's or ml_dtypes' name, torch's name.
_DTYPES: Dict[str, Tuple[int, str, str]] = {
    "BOOL": (1, "bool", "bool"),
    "U8": (1, "uint8", "uint8"),
    "I8": (1, "int8", "int8"),
    "F8_E5M2": (1, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3": (1, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E8M0": (1, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (1, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (1, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "I16": (2, "int16", "int16"),
    "U16": (2, "uint16", "uint16"),
    "F16": (2, "float16", "float16"),
    "BF16": (2, "bfloat16", "bfloat16"),
    "I32": (4, "int32", "int32"),
    "U32": (4, "uint32", "uint32"),
    "F32": (4, "float32", "float32"),
    "C64": (8, "complex64", "complex64"),
    "F64": (8, "float64", "float64"),
    "I64": (8, "int64", "int64"),
    "U64": (8, "uint64", "uint64"),
}

_CONVERSIONS = {
    "fp32": "F32",
    "float32": "F32",
    "bf16": "BF16",
    "bfloat16": "BF16",
    "fp16": "F16",
    "float16": "F16",
}


def item_size(name: str) -> int:
    return _DTYPES[name][0]


def is_floating(name: str) -> bool:
    return name.startswith(("F", "BF"))


def conversion(dtype: object, keep: Optional[str] = None) -> Optional[str]:
    """The safetensors name for "bf16", torch.bfloat16 and the like; None for None and for the word ``keep``."""
    if dtype is None or dtype == keep:
        return None
    # NumPy's scalar types print as classes.
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    if name.startswith("torch."):
        name = name[len("torch.") :]
    if name not in _CONVERSIONS:
        words = ["fp32", "bf16", "fp16"] + ([keep] if keep else [])
        raise ValueError(f"dtype must be one of {', '.join(words)}, not {dtype!r}")
    return _CONVERSIONS[name]


def numpy_dtype(name: str) -> "np.dtype[Any]":
    word = _DTYPES[name][1]
    if word == "bfloat16" or word.startswith("float8"):
        import ml_dtypes

        found: "np.dtype[Any]" = np.dtype(getattr(ml_dtypes, word))
        return found
    return np.dtype(word)


class Framework(Protocol[ArrayT]):
    """How arrays of one kind are made and looked into."""

    def empty(self, name: str, shape: Tuple[int, ...]) -> ArrayT:
        """An array of the dtype with this safetensors name, its values arbitrary."""
        ...

    def memory(self, array: ArrayT) -> "npt.NDArray[np.uint8]":
        """The bytes of an array that empty() made, to be written."""
        ...


class NumpyFramework:
    def empty(self, name: str, shape: Tuple[int, ...]) -> "npt.NDArray[Any]":
        return np.empty(shape, numpy_dtype(name))

    def memory(self, array: "npt.NDArray[Any]") -> "npt.NDArray[np.uint8]":
        # A view of bytes: NumPy exports no buffer of ml_dtypes.
        return array.reshape(-1).view(np.uint8)


class TorchFramework:
    def __init__(self) -> None:
        import torch

        self._torch = torch

    def empty(self, name: str, shape: Tuple[int, ...]) -> "torch.Tensor":
        word = _DTYPES[name][2]
        dtype = getattr(self._torch, word, None)
        if dtype is None:
            raise TypeError(f'this PyTorch has no torch.{word}; framework="numpy" reads it')
        return self._torch.empty(shape, dtype=dtype, device="cpu")

    def memory(self, array: "torch.Tensor") -> "npt.NDArray[np.uint8]":
        flat: npt.NDArray[np.uint8] = array.reshape(-1).view(self._torch.uint8).numpy()
        return flat


def framework_named(name: str) -> "Framework[Any]":
    if name in ("numpy", "np"):
        return NumpyFramework()
    if name in ("pt", "torch", "pytorch"):
        return TorchFramework()
    raise ValueError(f'framework must be "numpy" or "pt", not {name!r}')


def numel_of(shape: Tuple[int, ...]) -> int:
    return math.prod(shape)
