# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""An open checkpoint."""

from __future__ import annotations

import os
import warnings
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
    cast,
    overload,
)

import numpy as np
import numpy.typing as npt

from zckpt import _core
from zckpt._arrays import ArrayT, Framework, conversion, framework_named, is_floating
from zckpt._errors import Finding, findings_from
from zckpt._facts import Facts, StrPath, TensorInfo, facts_from, open_options, size_of
from zckpt._progress import Progress, progress_of
from zckpt._slice import TensorSlice
from zckpt._stream import stream_arrays

if TYPE_CHECKING:
    import torch

Check = Literal["full", "sample", "none"]


class Checkpoint(Mapping[str, ArrayT]):
    """The weights of a checkpoint by name, and what is known about it. Made by :func:`open`.

    A mapping: names are those of the training run's state_dict(), in its order, tied names included;
    ``checkpoint[name]`` reads the best value there is (the optimizer's master, else the frozen weight, the buffer, the
    model's own copy) into a new array of the model's shape. Nothing is kept: reading a name twice reads it twice.

    Immutable, and safe to use from several threads at once. A context manager; once closed, reading raises ValueError.
    """

    def __init__(
        self,
        opened: "_core.Opened",
        framework: Framework[ArrayT],
        dtype: Optional[str],
        threads: Optional[int],
    ) -> None:
        self._opened: Optional[_core.Opened] = opened
        self._framework = framework
        self._dtype = dtype
        self._threads = threads
        self._facts = facts_from(opened.facts())
        self._findings = findings_from(opened.findings())
        self._tensors = tuple(TensorInfo(*each) for each in opened.tensors())
        self._weights = _names_in_order(self._facts, self._tensors, opened.weights())
        self._states: Dict[str, Dict[str, int]] = {}
        for index, tensor in enumerate(self._tensors):
            if tensor.role == "state":
                self._states.setdefault(tensor.name, {})[tensor.state] = index

    # ---- what it is ----

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def findings(self) -> Tuple[Finding, ...]:
        """Warnings and notes of opening it."""
        return self._findings

    @property
    def tensors(self) -> Tuple[TensorInfo, ...]:
        """Everything that can be read, as it is stored: a name once for each role and state it has."""
        return self._tensors

    def __repr__(self) -> str:
        state = "" if self._opened is not None else ", closed"
        return f"<zckpt.Checkpoint {self._facts.folder} {self._facts.layout}, {len(self)} names{state}>"

    # ---- the mapping ----

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    # As a mapping it would compare every value of both.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, name: str) -> ArrayT:
        """Reads one weight. Raises KeyError, ValueError once closed, zckpt.Error."""
        index = self._weights[name]
        return self._read([index], [self._dtype_of(index)])[0]

    def get_slice(self, name: str) -> TensorSlice[ArrayT]:
        """The weight as something to index, which reads only what is asked for. Raises KeyError."""
        index = self._weights[name]
        dtype = self._dtype_of(index)

        def read(firsts: "npt.NDArray[np.uint64]", numel: int, out: "npt.NDArray[np.uint8]") -> None:
            self._handle().load_runs(index, firsts, numel, dtype, out, {"threads": self._threads})

        return TensorSlice(self._tensors[index].shape, dtype, self._framework, read)

    # ---- many at once ----

    def load(
        self,
        names: Optional[Iterable[str]] = None,
        *,
        check: Check = "sample",
        progress: Progress = False,
    ) -> Dict[str, ArrayT]:
        """Reads these weights, or all of them, in one go: neighbours in a file share a read, threads share the work.

        Tied names share one array. ``check``: "sample" compares the CRC of records that are read nearly whole, "full"
        of every record that is touched, "none" of none. Memory: the arrays and 16 MiB. Raises KeyError, ValueError once
        closed, zckpt.CorruptError where a CRC differs, zckpt.Error.
        """
        if isinstance(names, str):
            raise TypeError("names must be several; checkpoint[name] reads one")
        chosen = list(self) if names is None else list(names)
        indices = list(dict.fromkeys(self._weights[name] for name in chosen))
        dtypes = [self._dtype_of(index) for index in indices]
        arrays = dict(zip(indices, self._read(indices, dtypes, check, progress)))
        return {name: arrays[self._weights[name]] for name in chosen}

    def state_dict(self) -> Dict[str, ArrayT]:
        """All weights, as load() gives them."""
        return self.load()

    def stream(
        self,
        names: Optional[Iterable[str]] = None,
        *,
        order: Literal["file", "name"] = "file",
        buffer_bytes: Union[int, str] = 64 << 20,
        check: Check = "sample",
    ) -> Iterator[Tuple[str, ArrayT]]:
        """Gives (name, array) of these weights, or all of them, one after the other, in bounded memory.

        ``order``: as they lie in the files, which is fastest, or by name. A tied name is given only if it is named in
        ``names``, and never besides the kept one. Memory: ``buffer_bytes`` (or text such as "256MB"), 16 MiB, the array
        that is being read, and those that the caller keeps. A record's CRC is compared once all of it was read: what
        was given counts only when the iteration has ended without an error. Raises as load().
        """
        indices: Dict[int, str] = {}
        for name in self if names is None else names:
            index = self._weights[name]
            if names is None:
                name = self._tensors[index].name
            indices.setdefault(index, name)
        stream = _core.Stream(
            self._handle(),
            list(indices),
            self._dtype,
            _order_named(order),
            size_of(buffer_bytes, "buffer_bytes") or 0,
            {"check": check, "threads": self._threads},
        )
        return stream_arrays(stream, indices, self._tensors, self._dtype_of, self._framework, self._handle)

    # ---- the optimizer ----

    @property
    def optimizer(self) -> "OptimizerStates[ArrayT]":
        """The optimizer's states by the name of the trained weight."""
        return OptimizerStates(self)

    # ---- its end ----

    def close(self) -> None:
        """Lets go of the files. Calls that run in other threads end as if nothing had happened."""
        self._opened = None

    def __enter__(self) -> "Checkpoint[ArrayT]":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    # ---- for the package ----

    def _handle(self) -> "_core.Opened":
        opened = self._opened
        if opened is None:
            raise ValueError("the checkpoint is closed")
        return opened

    def _dtype_of(self, index: int) -> str:
        stored = self._tensors[index].dtype
        return self._dtype if self._dtype is not None and is_floating(stored) else stored

    def _read(
        self, indices: Sequence[int], dtypes: Sequence[str], check: str = "sample", progress: Progress = False
    ) -> List[ArrayT]:
        """Whole tensors, each in the dtype given."""
        handle = self._handle()
        arrays = [self._framework.empty(dtype, self._tensors[i].shape) for i, dtype in zip(indices, dtypes)]
        memory = [self._framework.memory(array) for array in arrays]
        with progress_of(progress, "load") as callback:
            counts = handle.load(indices, dtypes, memory, {"check": check, "threads": self._threads}, callback)
        if counts["overflowed"]:
            warnings.warn(
                f"{counts['overflowed']} finite values are too large for the dtype and became infinite",
                RuntimeWarning,
                stacklevel=3,
            )
        return arrays


class OptimizerStates(Mapping[str, Mapping[str, Union[ArrayT, float]]]):
    """The states of each trained weight: a mapping of names to mappings of "exp_avg" and the like.

    A state has the shape of its weight unless the optimizer keeps it otherwise, and the dtype it is stored in:
    ``dtype`` of open() does not concern it. "step" is the optimizer's count of updates, a number, where it is known.
    """

    def __init__(self, checkpoint: Checkpoint[ArrayT]) -> None:
        self._checkpoint = checkpoint
        states = checkpoint._states
        aliases = checkpoint.facts.aliases
        kept = {name: aliases.get(name, name) for name in checkpoint}
        ordered = {name: states[data] for name, data in kept.items() if data in states}
        self._states = {**ordered, **{name: own for name, own in states.items() if name not in ordered}}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def __getitem__(self, name: str) -> "WeightStates[ArrayT]":
        """Raises KeyError for what is not trained. Reads nothing yet."""
        return WeightStates(self._checkpoint, self._states[name])

    def load(self, names: Optional[Iterable[str]] = None) -> Dict[str, Dict[str, Union[ArrayT, float]]]:
        """Reads the states of these weights, or of all, in one go. Tied names share arrays."""
        chosen = list(self) if names is None else list(names)
        indices = list(dict.fromkeys(i for name in chosen for i in self._states[name].values()))
        dtypes = [self._checkpoint.tensors[i].dtype for i in indices]
        arrays = dict(zip(indices, self._checkpoint._read(indices, dtypes)))
        step = self._checkpoint.facts.optimizer_step
        loaded: Dict[str, Dict[str, Union[ArrayT, float]]] = {}
        for name in chosen:
            loaded[name] = {state: arrays[i] for state, i in self._states[name].items()}
            if step is not None:
                loaded[name].setdefault("step", step)
        return loaded


class WeightStates(Mapping[str, Union[ArrayT, float]]):
    """The optimizer's states of one weight, read when asked for."""

    def __init__(self, checkpoint: Checkpoint[ArrayT], indices: Mapping[str, int]) -> None:
        self._checkpoint = checkpoint
        self._indices = indices
        step = checkpoint.facts.optimizer_step
        self._names = list(indices)
        if step is not None and "step" not in indices:
            self._names.append("step")

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, state: object) -> bool:
        return state in self._names

    def __getitem__(self, state: str) -> Union[ArrayT, float]:
        if state not in self._names:
            raise KeyError(state)
        index = self._indices.get(state)
        if index is None:
            return cast(float, self._checkpoint.facts.optimizer_step)
        return self._checkpoint._read([index], [self._checkpoint.tensors[index].dtype])[0]


def _order_named(order: str) -> str:
    if order not in ("file", "name"):
        raise ValueError(f'order must be "file" or "name", not {order!r}')
    return order


def _names_in_order(facts: Facts, tensors: Sequence[TensorInfo], weights: Sequence[int]) -> Dict[str, int]:
    """Every name that has a value, tied ones included, in the order of state_dict()."""
    stored = {tensors[index].name: index for index in weights}
    named = dict(stored)
    for alias, kept in facts.aliases.items():
        if kept in stored:
            named.setdefault(alias, stored[kept])
    ordered = {name: named[name] for name in facts.module_order if name in named}
    return {**ordered, **{name: index for name, index in named.items() if name not in ordered}}


@overload
def open(
    path: StrPath,
    *,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    framework: Literal["numpy", "np"] = "numpy",
    dtype: object = None,
    threads: Optional[int] = None,
) -> Checkpoint[npt.NDArray[Any]]: ...


@overload
def open(
    path: StrPath,
    *,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    framework: Literal["pt"],
    dtype: object = None,
    threads: Optional[int] = None,
) -> "Checkpoint[torch.Tensor]": ...


@overload
def open(
    path: StrPath,
    *,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    framework: str,
    dtype: object = None,
    threads: Optional[int] = None,
) -> Checkpoint[Any]: ...


def open(
    path: StrPath,
    *,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    framework: str = "numpy",
    dtype: object = None,
    threads: Optional[int] = None,
) -> Checkpoint[Any]:
    """Opens the checkpoint at ``path``, of a run the newest, after all checks that merge() makes before it writes.

    ``path``: a run folder, a checkpoint, the folder that holds ``latest``, a tag folder, or Hugging Face weights.
    ``tag``: which tag folder; ``also``: further folders with shards of the same save, as node-local disks leave them.
    ``framework``: "numpy" for arrays (bf16 and 8-bit kinds by ml_dtypes) or "pt" for tensors on the CPU.
    ``dtype``: what floating weights are converted to: "fp32", "bf16", "fp16" (round to nearest even; what is too large
    becomes infinite); None keeps what is stored. ``threads``: 1 to 1024; None: one per core, at most 4.

    Frozen weights that the save left out are no error: the names are missing, and ``facts.frozen_excluded`` is True.
    Raises zckpt.CorruptError with ``findings`` for shards that are damaged, missing or of different saves,
    zckpt.UnsupportedError for layouts that are not read, zckpt.Error where there is no checkpoint.
    """
    made = framework_named(framework)
    target = conversion(dtype, keep="keep")
    opened = _core.open(os.fsencode(path), open_options(tag, also, threads))
    return Checkpoint(opened, made, target, threads)
