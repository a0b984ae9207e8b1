# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Reads, checks and merges DeepSpeed ZeRO checkpoints, without DeepSpeed and without running anything out of a file.

    with zckpt.open("output/run") as checkpoint:
        weight = checkpoint["model.embed_tokens.weight"]

Importing this imports neither PyTorch nor transformers. zckpt.deepspeed stands in for deepspeed.utils.zero_to_fp32,
zckpt.transformers has a callback for the Trainer; import them by their names.
"""

from zckpt._checkpoint import Checkpoint, OptimizerStates, WeightStates, open
from zckpt._core import version as __version__
from zckpt._errors import ConflictError, CorruptError, Error, Finding, UnsupportedError
from zckpt._facts import Facts, TensorInfo
from zckpt._slice import TensorSlice
from zckpt._verify import CheckpointReport, ScanFacts, VerifyReport, newest_resumable, verify
from zckpt._writers import (
    ConfigChange,
    ExportResult,
    ExtractResult,
    LoraReport,
    MergedAdapter,
    MergeResult,
    OutputFile,
    SideFile,
    export_hf,
    extract_lora,
    merge,
)

__all__ = [
    "Checkpoint",
    "CheckpointReport",
    "ConfigChange",
    "ConflictError",
    "CorruptError",
    "Error",
    "ExportResult",
    "ExtractResult",
    "Facts",
    "Finding",
    "LoraReport",
    "MergeResult",
    "MergedAdapter",
    "OptimizerStates",
    "OutputFile",
    "ScanFacts",
    "SideFile",
    "TensorInfo",
    "TensorSlice",
    "UnsupportedError",
    "VerifyReport",
    "WeightStates",
    "__version__",
    "export_hf",
    "extract_lora",
    "merge",
    "newest_resumable",
    "open",
    "verify",
]
