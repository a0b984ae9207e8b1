# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Errors and findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Finding:
    """One observation about a checkpoint.

    ``code`` is a stable name (docs/verify.md), ``severity`` is "error", "warning" or "note". ``file`` is relative to
    the checkpoint's folder, ``rank`` is the rank to blame, ``offset`` is in bytes from the start of ``file``; what is
    not known is None.
    """

    code: str
    severity: str
    message: str
    file: Optional[str] = None
    rank: Optional[int] = None
    tensor: Optional[str] = None
    offset: Optional[int] = None

    def __str__(self) -> str:
        place = f" {self.file}:" if self.file else ""
        return f"{self.severity} [{self.code}]{place} {self.message}"


class Error(Exception):
    """What zckpt refuses or fails at. Wrong arguments are ValueError and TypeError, as everywhere.

    ``code`` is "io", "corrupt", "unsupported", "invalid", "conflict", "limit", "interrupted" or "internal";
    ``message`` is one sentence without the place, which ``file``, ``tensor`` and ``offset`` (in bytes) give, or None.
    ``findings`` are the reasons behind a refusal; empty for other errors.
    """

    def __init__(
        self,
        text: str,
        *,
        code: str = "internal",
        message: Optional[str] = None,
        file: Optional[str] = None,
        tensor: Optional[str] = None,
        offset: Optional[int] = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(text)
        self.code = code
        self.message = text if message is None else message
        self.file = file
        self.tensor = tensor
        self.offset = offset
        self.findings: Tuple[Finding, ...] = tuple(findings)

    def __str__(self) -> str:
        text: str = self.args[0]
        # A single reason is the message already.
        reasons = [f for f in self.findings if f.severity == "error" and f.message != self.message]
        return "\n  ".join([text, *map(str, reasons)])


class CorruptError(Error):
    """The input contradicts itself: damaged, incomplete or mixed. An older checkpoint may do."""


class UnsupportedError(Error):
    """Sound as far as can be told, but not what zckpt reads or converts."""


class ConflictError(Error):
    """The output is occupied or in use, or inputs disagree."""


_CLASSES = {"corrupt": CorruptError, "unsupported": UnsupportedError, "conflict": ConflictError}


def findings_from(values: Sequence[Mapping[str, Any]]) -> Tuple[Finding, ...]:
    return tuple(Finding(**value) for value in values)


def from_core(
    code: str,
    message: str,
    text: str,
    file: Optional[str],
    tensor: Optional[str],
    offset: Optional[int],
    findings: Sequence[Mapping[str, Any]],
) -> Error:
    """What the extension raises for its own exception."""
    return _CLASSES.get(code, Error)(
        text,
        code=code,
        message=message,
        file=file,
        tensor=tensor,
        offset=offset,
        findings=findings_from(findings),
    )
