# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Values against what the training run held in memory."""

import numpy as np
import pytest
import zckpt
from support import (
    READABLE_ZERO, ZERO_CASES, case_json, described, hf_checkpoints, raw_tensors, truth_of, zero,
)  # fmt: skip

CHECKPOINTS = [(case, zero(case)) for case in READABLE_ZERO] + hf_checkpoints()
each_checkpoint = pytest.mark.parametrize("folder", [f for _, f in CHECKPOINTS], ids=[name for name, _ in CHECKPOINTS])


def expected_of(checkpoint, folder):
    """The truth under the names that a checkpoint should have, tied ones included."""
    tensors, aliases = truth_of(folder)
    facts = checkpoint.facts
    for alias, kept in {**aliases, **facts.aliases}.items():
        if kept in tensors:
            tensors.setdefault(alias, tensors[kept])
    if facts.frozen_excluded:
        # The save left them out; a stage-2 model file still holds what is tied to them, under the other name.
        tied = "base_model.model.model.embed_tokens.weight"
        if tied in tensors:
            tensors.setdefault("base_model.model.lm_head.weight", tensors[tied])
        tensors = {name: value for name, value in tensors.items() if name in checkpoint}
    return tensors


def test_every_case_is_here():
    assert len(READABLE_ZERO) >= 85
    assert len(hf_checkpoints()) >= 20


@each_checkpoint
def test_load_gives_the_truth(folder, framework):
    with zckpt.open(folder, framework=framework) as checkpoint:
        expected = expected_of(checkpoint, folder)
        trained = {t.name for t in checkpoint.tensors if t.role == "master"}
        assert trained <= set(expected)
        loaded = checkpoint.load(check="full")
        assert set(loaded) == set(expected) == set(checkpoint)
        for name, array in loaded.items():
            assert described(array) == expected[name], name
        for alias, kept in checkpoint.facts.aliases.items():
            if kept in loaded:
                assert loaded[alias] is loaded[kept]


@each_checkpoint
def test_one_by_one_and_streamed(folder):
    with zckpt.open(folder) as checkpoint:
        expected = expected_of(checkpoint, folder)
        for name in checkpoint:
            assert described(checkpoint[name]) == expected[name], name
        for order in ("file", "name"):
            streamed = list(checkpoint.stream(order=order, buffer_bytes=1000))
            names = [name for name, _ in streamed]
            assert sorted(names) == sorted(set(expected) - set(checkpoint.facts.aliases))
            assert order == "file" or names == sorted(names)
            for name, array in streamed:
                assert described(array) == expected[name], name


@pytest.mark.parametrize("case", READABLE_ZERO)
def test_optimizer_states(case, framework):
    truth = zero(case).parent / "truth_optim.safetensors"
    # States of stage 0 have no names in the file, so they are not given.
    expected = raw_tensors(truth) if truth.exists() and "v0.19.8-z0" not in case else {}
    with zckpt.open(zero(case), framework=framework) as checkpoint:
        aliases = checkpoint.facts.aliases
        found = {
            f"{name}|{state}": described(array)
            for name, states in checkpoint.optimizer.load().items()
            for state, array in states.items()
            if state != "step" and name not in aliases
        }
        assert found == expected
        step = case_json("zero", case)["optimizer_step"]
        for name, states in checkpoint.optimizer.items():
            assert list(states) == list(dict(states))
            if checkpoint.facts.optimizer_step is not None:
                assert states["step"] == step
            for state in set(states) - {"step"}:
                assert described(states[state]) == expected[f"{aliases.get(name, name)}|{state}"]


def test_optimizer_is_a_mapping():
    with zckpt.open(zero("v0.19.8-z2-bf16-n3")) as checkpoint:
        optimizer = checkpoint.optimizer
        assert set(optimizer["up.weight"]) == {"exp_avg", "exp_avg_sq", "step"}
        assert optimizer["up.weight"]["step"] == 3.0
        # A tied name has the states of the kept one; what is frozen has none.
        assert np.array_equal(optimizer["head.weight"]["exp_avg"], optimizer["embed.weight"]["exp_avg"])
        assert "adapter.weight" not in optimizer and "mask" not in optimizer
        with pytest.raises(KeyError):
            optimizer["adapter.weight"]
        with pytest.raises(KeyError):
            optimizer["up.weight"]["momentum"]


@pytest.mark.parametrize("case", [case for case in ZERO_CASES if case not in READABLE_ZERO])
def test_other_layouts_are_refused_by_name(case):
    with pytest.raises(zckpt.UnsupportedError, match="not read yet"):
        zckpt.open(zero(case))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_conversion_is_that_of_torch(dtype):
    torch = pytest.importorskip("torch")
    target = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    for case in ("v0.19.8-z2-bf16-n3", "v0.19.8-z3-fp16-n3"):
        stored = zckpt.open(zero(case), framework="pt").load()
        for wanted in (dtype, target):
            with zckpt.open(zero(case), framework="pt", dtype=wanted) as checkpoint:
                for name, tensor in checkpoint.load().items():
                    expected = stored[name].to(target) if stored[name].is_floating_point() else stored[name]
                    assert tensor.dtype == expected.dtype and torch.equal(tensor, expected), name
                    assert torch.equal(checkpoint[name], expected), name
                for name, tensor in checkpoint.stream(buffer_bytes="1KB"):
                    assert torch.equal(tensor, checkpoint[name]), name


def test_also_takes_shards_from_other_folders(tmp_path):
    source = zero("v0.19.8-z3-bf16-n2") / "global_step3"
    near, far = tmp_path / "a" / "global_step3", tmp_path / "b" / "global_step3"
    near.mkdir(parents=True), far.mkdir(parents=True)
    for file in source.iterdir():
        folder = far if "rank_1" in file.name else near
        (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(zckpt.CorruptError):
        zckpt.open(near)
    with zckpt.open(near, also=far.parent) as checkpoint:
        whole = zckpt.open(source).load()
        assert {n: described(a) for n, a in checkpoint.load().items()} == {n: described(a) for n, a in whole.items()}
