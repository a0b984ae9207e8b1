# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""A callback for the Hugging Face Trainer.

from zckpt.transformers import VerifyCheckpointCallback
trainer = Trainer(..., callbacks=[VerifyCheckpointCallback()])
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, List, Literal, Optional, Tuple

from transformers import TrainerCallback

import zckpt

__all__ = ["VerifyCheckpointCallback"]

_log = logging.getLogger(__name__)

# Other ranks may still write what these miss.
_UNFINISHED = ("file-empty", "file-truncated", "file-unreadable", "container-damaged")


def _may_be_unfinished(report: zckpt.CheckpointReport) -> bool:
    return any(
        finding.severity != "note" and (finding.code.endswith("-missing") or finding.code in _UNFINISHED)
        for finding in report.findings
    )


class VerifyCheckpointCallback(TrainerCallback):
    """Verifies each checkpoint once it is saved, on rank 0, in a thread that training does not wait for; the log
    ("zckpt.transformers") says what came out, and ``reports`` holds it. For runs with DeepSpeed: zckpt cannot judge
    whether others resume. The end of training waits for the last one.

    ``full``: read every byte; else names and metadata. ``question``: "resume", or "merge" for runs that save their
    weights only. ``raise_at_end``: raise zckpt.CorruptError at the end of training if the answer was no for one that
    still exists. ``grace_seconds``: how long to look again for what other ranks may still be writing.
    """

    def __init__(
        self,
        *,
        full: bool = False,
        question: Literal["resume", "merge"] = "resume",
        raise_at_end: bool = False,
        grace_seconds: float = 10.0,
    ) -> None:
        if question not in ("resume", "merge"):
            raise ValueError(f'question must be "resume" or "merge", not {question!r}')
        self.reports: List[zckpt.CheckpointReport] = []
        self._full = full
        self._question = question
        self._raise_at_end = raise_at_end
        self._grace_seconds = grace_seconds
        # One: checkpoints are judged in their order, and training keeps the other cores.
        self._pool: Optional[ThreadPoolExecutor] = None
        self._pending: List["Future[None]"] = []

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="zckpt-verify")
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        self._pending.append(self._pool.submit(self._judge, path))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.wait()
        bad = [report for report in self.reports if not self._is_good(report) and os.path.isdir(report.path)]
        if self._raise_at_end and bad:
            raise zckpt.CorruptError(
                f"cannot {self._question} from " + ", ".join(report.path for report in bad),
                code="corrupt",
                findings=[finding for report in bad for finding in report.findings],
            )

    def wait(self) -> None:
        """Returns once every checkpoint that was saved is judged."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _is_good(self, report: zckpt.CheckpointReport) -> bool:
        return report.can_merge if self._question == "merge" else report.can_resume

    def _judge(self, path: str) -> None:
        # A failure to judge must not end training.
        try:
            report, seconds = self._verify(path)
        except Exception as error:
            if os.path.isdir(path):
                _log.warning("%s: not verified: %s", path, error)
            else:
                _log.info("%s: removed before it was verified", path)
            return
        self.reports.append(report)
        if self._is_good(report):
            _log.info("%s: %s (verified in %.1f s)", path, report.verdict, seconds)
        elif not os.path.isdir(path):
            _log.info("%s: removed while it was verified", path)
        else:
            _log.error("%s: %s, cannot %s from it", path, report.verdict, self._question)
        for finding in report.findings:
            if finding.severity != "note":
                _log.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s: %s", path, finding)

    def _verify(self, path: str) -> Tuple[zckpt.CheckpointReport, float]:
        start = time.monotonic()
        pause = 0.1
        while True:
            report = zckpt.verify(path, full=self._full, question=self._question, progress=False).checkpoints[0]
            over = time.monotonic() - start + pause > self._grace_seconds
            if over or not _may_be_unfinished(report) or not threading.main_thread().is_alive():
                return report, time.monotonic() - start
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
