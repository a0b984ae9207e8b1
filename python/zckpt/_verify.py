# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Can a run resume from a checkpoint, can it be merged?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Iterable, Literal, Mapping, Optional, Tuple, Union

from zckpt import _core
from zckpt._arrays import conversion
from zckpt._errors import Finding, findings_from
from zckpt._facts import Facts, StrPath, facts_from, open_options, size_of
from zckpt._progress import Progress, progress_of


@dataclass(frozen=True)
class ScanFacts:
    """What reading every byte came to: bytes read, CRCs compared and those that were never written, tensors compared
    with the model's own copies and with gathered weights.
    """

    bytes: int
    checked_records: int
    unchecked_records: int
    compared_tensors: int
    compared_with_sidecar: int


@dataclass(frozen=True)
class CheckpointReport:
    """The answer for one checkpoint.

    ``path`` is as a resume would be told; ``verdict`` is "resumable", "weights-only", "damaged", "unsupported" or
    "not-a-checkpoint"; ``step`` orders the checkpoints of a run; severities of ``findings`` answer the question asked;
    ``scan`` is there with ``full``.
    """

    path: str
    tag: str
    verdict: str
    can_resume: bool
    can_merge: bool
    facts: Facts
    step: Optional[int]
    findings: Tuple[Finding, ...]
    scan: Optional[ScanFacts]


@dataclass(frozen=True)
class VerifyReport:
    """The answer for a path: one checkpoint, or all of a run, newest first.

    ``newest_resumable`` is a path or None; ``ok`` is whether the answer to the question is yes for one of them.
    """

    path: str
    is_run: bool
    checkpoints: Tuple[CheckpointReport, ...]
    newest_resumable: Optional[str]
    ok: bool


def _report(values: Mapping[str, Any]) -> CheckpointReport:
    made = dict(values)
    made["facts"] = facts_from(made["facts"])
    made["findings"] = findings_from(made["findings"])
    if made["scan"] is not None:
        made["scan"] = ScanFacts(**made["scan"])
    return CheckpointReport(**made)


def verify(
    path: StrPath,
    *,
    full: bool = False,
    question: Literal["resume", "merge"] = "resume",
    strict: bool = False,
    newest_only: bool = False,
    world_size: Optional[int] = None,
    stage: Optional[int] = None,
    dtype: object = None,
    framework: Optional[Literal["hf", "deepspeed", "accelerate", "lightning"]] = None,
    tag: Optional[str] = None,
    also: Union[StrPath, Iterable[StrPath]] = (),
    threads: Optional[int] = None,
    memory: Union[int, str, None] = None,
    progress: Progress = None,
) -> VerifyReport:
    """Judges a checkpoint, or every checkpoint of a run folder, from names and metadata; with ``full`` it also reads
    every byte. What is wrong is a finding, never an exception.

    ``question``: "resume", can the framework go on from it, or "merge", can its weights be put together. ``strict``:
    warnings count as errors. ``newest_only``: of a run, no further than the newest that resumes. ``world_size``,
    ``stage``, ``dtype`` ("fp32", "bf16", "fp16"), ``framework``: of the run that wants to resume, where it is not the
    one that saved. ``memory``: for buffers, 16 MiB unless given. Progress counts bytes read, with ``full``.
    Raises zckpt.Error where the path does not exist or cannot be listed.
    """
    if question not in ("resume", "merge"):
        raise ValueError(f'question must be "resume" or "merge", not {question!r}')
    if framework not in (None, "hf", "deepspeed", "accelerate", "lightning"):
        raise ValueError(f"framework must be hf, deepspeed, accelerate or lightning, not {framework!r}")
    options = {
        **open_options(tag, also, threads),
        "question": question,
        "strict": strict,
        "full": full,
        "newest_only": newest_only,
        "world_size": world_size,
        "stage": stage,
        "dtype": conversion(dtype),
        "framework": framework,
        "memory": size_of(memory, "memory"),
    }
    with progress_of(progress, "verify") as callback:
        values = _core.verify(os.fsencode(path), options, callback)
    checkpoints = tuple(_report(each) for each in values["checkpoints"])
    newest = values["newest_resumable"]
    return VerifyReport(
        path=os.fspath(path),
        is_run=values["is_run"],
        checkpoints=checkpoints,
        newest_resumable=None if newest is None else checkpoints[newest].path,
        ok=any(each.can_merge if question == "merge" else each.can_resume for each in checkpoints),
    )


def newest_resumable(run_dir: StrPath, *, full: bool = False) -> Optional[str]:
    """The path of the newest checkpoint in ``run_dir`` that a run can resume from, or None if there is none.

    Older ones are not looked at; ``full`` reads every byte. Raises zckpt.Error where the path does not exist.
    """
    return verify(run_dir, full=full, newest_only=True, progress=False).newest_resumable
