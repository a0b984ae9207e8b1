# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Progress of long calls."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Union

ProgressCallback = Callable[[int, int], object]
Progress = Union[None, bool, ProgressCallback]


def _wants_bar(progress: Optional[bool]) -> bool:
    if progress is None:
        stream = sys.stderr
        return stream is not None and stream.isatty()
    return progress


@contextmanager
def progress_of(progress: Progress, what: str) -> Iterator[Optional[ProgressCallback]]:
    """A callback for (done, total) in bytes, or None.

    ``progress``: a callable; True for a bar; False for nothing; None for a bar where tqdm is installed and standard
    error is a terminal.
    """
    if callable(progress):
        yield progress
        return
    if not _wants_bar(progress):
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if progress:
            raise
        yield None
        return
    bar: Any = tqdm(desc=what, unit="B", unit_scale=True, leave=False)

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        bar.close()
