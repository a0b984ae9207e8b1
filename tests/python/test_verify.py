# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""verify and newest_resumable."""

import shutil

import pytest
import zckpt
from support import FIXTURES, READABLE_ZERO, case_json, zero

FULL = FIXTURES / "hf" / "full_z3_bf16" / "checkpoint-2"


@pytest.fixture
def run(tmp_path):
    """checkpoint-3 lacks a shard, checkpoint-2 is sound, checkpoint-1 as well."""
    for step in (1, 2, 3):
        shutil.copytree(FULL, tmp_path / "run" / f"checkpoint-{step}")
    next((tmp_path / "run" / "checkpoint-3").glob("*/*rank_1*optim_states.pt")).unlink()
    return tmp_path / "run"


def test_a_sound_checkpoint():
    report = zckpt.verify(FULL)
    assert report.ok and not report.is_run and report.newest_resumable == str(FULL)
    (one,) = report.checkpoints
    assert (one.path, one.verdict, one.can_resume, one.can_merge) == (str(FULL), "resumable", True, True)
    assert one.facts.world_size == 2 and one.scan is None
    assert all(finding.severity == "note" for finding in one.findings)


def test_full_reads_every_byte():
    scan = zckpt.verify(FULL, full=True).checkpoints[0].scan
    assert scan.bytes > 100_000 and scan.checked_records > 10 and scan.unchecked_records == 0


@pytest.mark.parametrize("case", READABLE_ZERO)
def test_verdict_is_that_of_deepspeed(case):
    assert zckpt.verify(zero(case)).checkpoints[0].can_resume == case_json("zero", case)["resumes"]


def test_questions_and_strictness():
    weights_only = FIXTURES / "hf" / "lora_z3_fp32_save_only" / "checkpoint-2"
    report = zckpt.verify(weights_only)
    assert not report.ok and report.checkpoints[0].verdict == "weights-only" and report.newest_resumable is None
    findings = {finding.code: finding for finding in report.checkpoints[0].findings}
    assert findings["scheduler-missing"].severity == "error"
    assert zckpt.verify(weights_only, question="merge").ok
    assert not zckpt.verify(FULL, world_size=3).ok
    assert zckpt.verify(FULL, world_size=2, stage=3, dtype="bf16", framework="hf").ok
    with pytest.raises(ValueError):
        zckpt.verify(FULL, question="load")
    with pytest.raises(ValueError):
        zckpt.verify(FULL, dtype="int8")


def test_a_run(run):
    report = zckpt.verify(run)
    assert report.is_run and report.ok
    assert [one.step for one in report.checkpoints] == [3, 2, 1]
    assert [one.can_resume for one in report.checkpoints] == [False, True, True]
    finding = next(f for f in report.checkpoints[0].findings if f.code == "optim-shard-missing")
    assert finding.rank == 1 and finding.severity == "error" and "optim-shard-missing" in str(finding)
    assert report.newest_resumable == str(run / "checkpoint-2")
    assert [one.step for one in zckpt.verify(run, newest_only=True).checkpoints] == [3, 2]


def test_newest_resumable(run, tmp_path):
    assert zckpt.newest_resumable(run) == str(run / "checkpoint-2")
    assert zckpt.newest_resumable(run, full=True) == str(run / "checkpoint-2")
    for step in (1, 2):
        shutil.rmtree(run / f"checkpoint-{step}")
    assert zckpt.newest_resumable(run) is None
    with pytest.raises(zckpt.Error) as caught:
        zckpt.newest_resumable(tmp_path / "none")
    assert caught.value.code == "io"


def test_no_checkpoint(tmp_path):
    report = zckpt.verify(tmp_path)
    assert not report.ok and report.checkpoints[0].verdict == "not-a-checkpoint"
    assert zckpt.newest_resumable(tmp_path) is None
