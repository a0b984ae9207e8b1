# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""What writes weights: merge, export_hf, extract_lora."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Literal, Mapping, Optional, Tuple, Union

from zckpt import _core
from zckpt._arrays import conversion
from zckpt._errors import Finding, findings_from
from zckpt._facts import Facts, StrPath, facts_from, open_options, size_of
from zckpt._progress import Progress, progress_of

Check = Literal["full", "sample", "none"]
Globs = Union[str, Iterable[str]]
Adapter = Union[StrPath, Tuple[StrPath, float]]


@dataclass(frozen=True)
class OutputFile:
    """One file: its name in the output folder, its size in bytes, the names of its tensors (none of an index)."""

    name: str
    size_bytes: int
    tensors: Tuple[str, ...]


@dataclass(frozen=True)
class MergeResult:
    """What was written, or with ``dry_run`` would be.

    ``tensors`` and ``parameters`` (elements, buffers left out) are counts; ``dtype`` is None where stored ones are
    kept; ``aliases`` maps dropped names to kept ones; ``overflowed`` counts finite values that became infinite;
    ``checked_records`` CRCs that were compared and ``unchecked_records`` those whose writer left none;
    ``checked_elements`` those compared with the model's own copy; ``findings`` are warnings and notes.
    """

    output: Optional[str]
    dry_run: bool
    facts: Facts
    files: Tuple[OutputFile, ...]
    tensors: int
    parameters: int
    dtype: Optional[str]
    aliases: Mapping[str, str]
    notes: Tuple[str, ...]
    findings: Tuple[Finding, ...]
    overflowed: int
    checked_records: int
    unchecked_records: int
    checked_elements: int
    reads: int
    bytes_read: int


@dataclass(frozen=True)
class SideFile:
    """A file that was copied, and the folder it came from."""

    name: str
    folder: str


@dataclass(frozen=True)
class ConfigChange:
    """A key of config.json and its values as JSON; ``before`` is None where the key was not there."""

    key: str
    before: Optional[str]
    after: str


@dataclass(frozen=True)
class MergedAdapter:
    """An adapter (its folder, or the name of the checkpoint's own), its weight, and its number of tensors, all used."""

    label: str
    weight: float
    tensors: int


@dataclass(frozen=True)
class LoraReport:
    """What merging did to one weight: deltas are of abs(merged - base) before rounding; ``overflowed`` became infinite
    in the output, ``nonfinite`` were NaN or infinite before that.
    """

    name: str
    rank: int
    max_delta: float
    mean_delta: float
    overflowed: int
    nonfinite: int


@dataclass(frozen=True)
class ExportResult:
    """``base`` is the folder that base weights came from, if any; ``config_from`` that of config.json."""

    written: MergeResult
    base: Optional[str]
    config_from: str
    side_files: Tuple[SideFile, ...]
    config_changes: Tuple[ConfigChange, ...]
    adapters: Tuple[MergedAdapter, ...]
    lora: Tuple[LoraReport, ...]
    notes: Tuple[str, ...]


@dataclass(frozen=True)
class ExtractResult:
    """``config_from`` is the file that was copied, None where one was made; ``modules`` counts pairs of factors."""

    written: MergeResult
    adapter_name: str
    config_from: Optional[str]
    modules: int
    notes: Tuple[str, ...]


_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")


def _output_options(output: Optional[StrPath], extension: Optional[str], dry_run: bool) -> Dict[str, Any]:
    """``extension``: of an output that is one file; None where it must be a folder."""
    if output is None:
        if not dry_run:
            raise TypeError("an output is required unless dry_run is True")
        return {"output": None, "single_file": False}
    name = os.path.basename(os.fspath(output))
    single = extension is not None and name.endswith(extension)
    if not single and name.endswith(_WEIGHT_FILES):
        wanted = f", or NAME{extension} for one file" if extension else ""
        raise ValueError(
            f"the output {name!r} looks like a weight file that is not written here; give a folder{wanted}"
        )
    return {"output": os.fsencode(output), "single_file": single}


def _globs(patterns: Globs) -> Tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _merge_result(values: Mapping[str, Any], output: Optional[StrPath], dry_run: bool) -> MergeResult:
    made = dict(values)
    made["facts"] = facts_from(made["facts"])
    made["files"] = tuple(OutputFile(*file) for file in made["files"])
    made["findings"] = findings_from(made["findings"])
    return MergeResult(output=None if output is None else os.fspath(output), dry_run=dry_run, **made)


def merge(
    path: StrPath,
    output: Optional[StrPath] = None,
    *,
    dtype: object = "fp32",
    format: Literal["safetensors", "bin"] = "safetensors",
    max_shard_size: Union[int, str] = "5GB",
    include: Globs = (),
    exclude: Globs = (),
    strip_prefix: str = "",
    aliases: Literal["drop", "copy"] = "drop",
    order: Literal["module", "param_shapes"] = "module",
    exclude_frozen: bool = False,
    check: Check = "sample",
    force: bool = False,
    sync: bool = True,
    dry_run: bool = False,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    threads: Optional[int] = None,
    memory: Union[int, str, None] = None,
    progress: Progress = None,
) -> MergeResult:
    """Writes the full weights of a checkpoint: a folder, or one file where ``output`` ends in .safetensors (in .bin
    with ``format="bin"``, which torch.load reads). All options are those of ``zckpt merge`` (docs/cli.md).

    ``dtype``: "fp32", "bf16", "fp16" or "keep". Sizes (``max_shard_size``, ``memory`` for buffers, 16 MiB unless given)
    are bytes, or text such as "5GB" and "64MiB". ``include`` and ``exclude`` are globs on names. ``progress``: a
    callable that is given (done, total) bytes, or whether to show a bar; None: if tqdm is installed and stderr is a
    terminal.

    The output appears at once or not at all: after an error or Ctrl-C nothing is left, and an old output is as it was.
    Raises zckpt.CorruptError (with ``findings`` where checks failed), zckpt.ConflictError for an output that is
    occupied (``force`` replaces it) or in use, zckpt.UnsupportedError, zckpt.Error, ValueError for options that make no
    sense.
    """
    options = {
        **open_options(tag, also, threads),
        **_output_options(output, "." + format, dry_run),
        "dtype": conversion(dtype, keep="keep"),
        "format": format,
        "max_shard_bytes": size_of(max_shard_size, "max_shard_size"),
        "include": _globs(include),
        "exclude": _globs(exclude),
        "strip_prefix": strip_prefix,
        "aliases": aliases,
        "order": order,
        "exclude_frozen": exclude_frozen,
        "check": check,
        "force": force,
        "sync": sync,
        "dry_run": dry_run,
        "memory": size_of(memory, "memory"),
    }
    with progress_of(progress, "merge") as callback:
        return _merge_result(_core.merge(os.fsencode(path), options, callback), output, dry_run)


def _adapter_options(name: Optional[str], config: Optional[StrPath], alpha: Optional[float]) -> Dict[str, Any]:
    return {
        "adapter_name": name,
        "adapter_config": None if config is None else os.fsencode(config),
        "lora_alpha": alpha,
    }


def _weighted(adapter: Adapter) -> Tuple[bytes, float]:
    if isinstance(adapter, tuple):
        return os.fsencode(adapter[0]), float(adapter[1])
    return os.fsencode(adapter), 1.0


def export_hf(
    path: StrPath,
    output: Optional[StrPath] = None,
    *,
    base: Optional[StrPath] = None,
    adapters: Union[StrPath, Iterable[Adapter]] = (),
    adapter_name: Optional[str] = None,
    adapter_config: Optional[StrPath] = None,
    lora_alpha: Optional[float] = None,
    lora_math: Literal["exact", "peft"] = "exact",
    dtype: object = "auto",
    format: Literal["safetensors", "bin"] = "safetensors",
    max_shard_size: Union[int, str] = "5GB",
    check: Check = "sample",
    force: bool = False,
    sync: bool = True,
    dry_run: bool = False,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    threads: Optional[int] = None,
    memory: Union[int, str, None] = None,
    progress: Progress = None,
) -> ExportResult:
    """Writes a folder that transformers loads, LoRA merged: options as ``zckpt export-hf`` (docs/cli.md).

    ``base``: the folder of the model that the run began with, for what the checkpoint lacks. ``adapters``: folders of
    PEFT adapters, or (folder, weight), merged in this order. ``dtype``: "auto" takes that of config.json; else as
    merge(). Output, progress, sizes and errors are as with merge(); ``memory`` is 64 MiB unless given.
    """
    if isinstance(adapters, (str, os.PathLike)):
        adapters = (adapters,)
    options = {
        **open_options(tag, also, threads),
        **_output_options(output, None, dry_run),
        **_adapter_options(adapter_name, adapter_config, lora_alpha),
        "base": None if base is None else os.fsencode(base),
        "adapters": [_weighted(adapter) for adapter in adapters],
        "lora_math": lora_math,
        "auto_dtype": dtype == "auto",
        "dtype": None if dtype == "auto" else conversion(dtype, keep="keep"),
        "format": format,
        "max_shard_bytes": size_of(max_shard_size, "max_shard_size"),
        "check": check,
        "force": force,
        "sync": sync,
        "dry_run": dry_run,
        "memory": size_of(memory, "memory"),
    }
    with progress_of(progress, "export") as callback:
        made = dict(_core.export_hf(os.fsencode(path), options, callback))
    made["written"] = _merge_result(made["written"], output, dry_run)
    made["side_files"] = tuple(SideFile(*each) for each in made["side_files"])
    made["config_changes"] = tuple(ConfigChange(*each) for each in made["config_changes"])
    made["adapters"] = tuple(MergedAdapter(*each) for each in made["adapters"])
    made["lora"] = tuple(LoraReport(*each) for each in made["lora"])
    return ExportResult(**made)


def extract_lora(
    path: StrPath,
    output: Optional[StrPath] = None,
    *,
    adapter_name: Optional[str] = None,
    adapter_config: Optional[StrPath] = None,
    lora_alpha: Optional[float] = None,
    dtype: object = "keep",
    check: Check = "sample",
    force: bool = False,
    sync: bool = True,
    dry_run: bool = False,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    threads: Optional[int] = None,
    memory: Union[int, str, None] = None,
    progress: Progress = None,
) -> ExtractResult:
    """Writes the PEFT adapter that a LoRA run's checkpoint holds, a folder: options as ``zckpt extract-lora``
    (docs/cli.md). ``dtype``: "keep" (fp32 masters as a rule), "fp32", "bf16", "fp16". Else as merge().
    """
    options = {
        **open_options(tag, also, threads),
        **_output_options(output, None, dry_run),
        **_adapter_options(adapter_name, adapter_config, lora_alpha),
        "dtype": conversion(dtype, keep="keep"),
        "check": check,
        "force": force,
        "sync": sync,
        "dry_run": dry_run,
        "memory": size_of(memory, "memory"),
    }
    with progress_of(progress, "extract") as callback:
        made = dict(_core.extract_lora(os.fsencode(path), options, callback))
    made["written"] = _merge_result(made["written"], output, dry_run)
    return ExtractResult(**made)
