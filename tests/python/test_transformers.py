# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""The callback, with the real Trainer and its callback handler."""

import logging
import shutil

import pytest
import zckpt
from support import FIXTURES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState  # noqa: E402

from zckpt.transformers import VerifyCheckpointCallback  # noqa: E402

FULL = FIXTURES / "hf" / "full_z3_bf16" / "checkpoint-2"


class Run:
    """A run that has just saved checkpoint-2, seen by the Trainer's own callback handler."""

    def __init__(self, folder, callback, rank_zero=True):
        self.folder = folder / "checkpoint-2"
        self.args = transformers.TrainingArguments(output_dir=str(folder), report_to=[])
        self.state = TrainerState(global_step=2, is_world_process_zero=rank_zero)
        self.control = TrainerControl()
        self.handler = CallbackHandler([callback], torch.nn.Linear(1, 1), None, None, None)

    def save(self):
        self.handler.on_save(self.args, self.state, self.control)

    def end(self):
        self.handler.on_train_end(self.args, self.state, self.control)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "zckpt.transformers")
    return caplog


def test_a_sound_checkpoint(tmp_path, log):
    callback = VerifyCheckpointCallback(full=True, raise_at_end=True)
    run = Run(tmp_path, callback)
    shutil.copytree(FULL, run.folder)
    run.save()
    run.end()
    (report,) = callback.reports
    assert report.can_resume and report.path == str(run.folder) and report.scan is not None
    assert any("resumable" in record.getMessage() for record in log.records)
    assert all(record.levelno == logging.INFO for record in log.records)


def test_a_damaged_checkpoint(tmp_path, log):
    for raise_at_end in (False, True):
        callback = VerifyCheckpointCallback(raise_at_end=raise_at_end, grace_seconds=0.3)
        run = Run(tmp_path / str(raise_at_end), callback)
        shutil.copytree(FULL, run.folder)
        next(run.folder.glob("*/*rank_1*optim_states.pt")).unlink()
        run.save()
        if raise_at_end:
            with pytest.raises(zckpt.CorruptError) as caught:
                run.end()
            assert "optim-shard-missing" in {finding.code for finding in caught.value.findings}
        else:
            run.end()
        assert [report.verdict for report in callback.reports] == ["damaged"]
    assert any("optim-shard-missing" in r.getMessage() and r.levelno == logging.ERROR for r in log.records)


def test_training_goes_on_meanwhile_and_late_ranks_are_waited_for(tmp_path):
    callback = VerifyCheckpointCallback(raise_at_end=True, grace_seconds=30)
    run = Run(tmp_path, callback)
    shutil.copytree(FULL, run.folder)
    late = next(run.folder.glob("rng_state_1.pth"))
    late.rename(tmp_path / "late")
    run.save()  # returns while rank 1 still writes
    (tmp_path / "late").rename(late)
    run.end()
    assert [f for f in callback.reports[0].findings if f.severity != "note"] == []


def test_only_rank_zero(tmp_path):
    callback = VerifyCheckpointCallback()
    run = Run(tmp_path, callback, rank_zero=False)
    shutil.copytree(FULL, run.folder)
    run.save()
    run.end()
    assert callback.reports == []


def test_a_checkpoint_that_was_rotated_away(tmp_path, log):
    callback = VerifyCheckpointCallback(raise_at_end=True, grace_seconds=0)
    run = Run(tmp_path, callback)
    run.save()
    run.end()
    assert callback.reports == []
    assert any("removed" in record.getMessage() for record in log.records)


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": ((self.linear(x).squeeze(-1) - labels) ** 2).mean()}


def test_in_a_real_trainer(tmp_path, log):
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(8)]
    callback = VerifyCheckpointCallback(question="merge", raise_at_end=True, grace_seconds=0)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=2, logging_strategy="no",
    )  # fmt: skip
    transformers.Trainer(model=Sum(), args=args, train_dataset=data, callbacks=[callback]).train()
    assert [report.path for report in callback.reports] == [str(tmp_path / f"checkpoint-{n}") for n in (2, 4)]
    assert all(report.can_merge for report in callback.reports)
