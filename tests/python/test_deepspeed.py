# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""zckpt.deepspeed against deepspeed.utils.zero_to_fp32 itself."""

import json
import os
import shutil
import sys

import pytest
import zckpt
from support import FIXTURES, READABLE_ZERO, ZERO_CASES, hf_checkpoints, truth_of, zero

torch = pytest.importorskip("torch")
ours = pytest.importorskip("zckpt.deepspeed")


@pytest.fixture(scope="module")
def theirs():
    # It runs the pickles; client_state of some cases has classes that live here.
    sys.path.insert(0, str(FIXTURES / "generate"))
    pytest.importorskip("deepspeed")
    from deepspeed.utils import zero_to_fp32

    assert hasattr(zero_to_fp32, "convert_zero_checkpoint_to_state_dict"), "made for DeepSpeed 0.19.8"
    yield zero_to_fp32
    sys.path.remove(str(FIXTURES / "generate"))


# What DeepSpeed 0.19.8 cannot read although it wrote it, with its own error.
FAULTS = {
    "v0.14.2-z0-bf16-n3": (ValueError, "is not a zero checkpoint"),  # BF16_Optimizer
    "v0.14.2-z1-bf16-n2-fp32grads": (ValueError, "is not a zero checkpoint"),
    "v0.16.9-z1-bf16-n3-fp32grads": (ValueError, "is not a zero checkpoint"),
    "v0.19.8-z1-bf16-n2-fp32grads": (ValueError, "is not a zero checkpoint"),
    "v0.17.6-z3-bf16-n3-legacy": (RuntimeError, "mmap can only be used"),  # torch.save's older container
    "v0.19.8-z2-bf16-n2-legacy": (RuntimeError, "mmap can only be used"),
    "v0.19.8-z3-bf16-n2-legacy": (RuntimeError, "mmap can only be used"),
    "v0.19.8-z0-bf16-n2": (TypeError, "not iterable"),  # no shards at stage 0
    "v0.19.8-z0-fp16-n1": (TypeError, "not iterable"),
    "v0.19.8-z0-fp32-n2": (TypeError, "not iterable"),
    "v0.19.8-z3-bf16-n2-nvme": (ValueError, "something is wrong"),  # masters in .swp files
}
# Stage 1 has its frozen weights in the model alone, where DeepSpeed does not look.
DROPS_FROZEN = {case for case in READABLE_ZERO if "-z1-" in case and case not in FAULTS}
FROZEN = {"adapter.weight", "adapter.bias"}

CHECKPOINTS = [(case, zero(case)) for case in READABLE_ZERO] + hf_checkpoints()
each_checkpoint = pytest.mark.parametrize("name, folder", CHECKPOINTS, ids=[name for name, _ in CHECKPOINTS])
pytestmark = pytest.mark.filterwarnings("ignore")


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        mine = found[name]
        assert (mine.dtype, mine.shape, mine.device) == (tensor.dtype, tensor.shape, tensor.device), name
        assert mine.is_contiguous() and not mine.requires_grad
        bits = torch.uint8
        assert torch.equal(mine.reshape(-1).view(bits), tensor.contiguous().reshape(-1).view(bits)), name
    # The same names share memory.
    for tensors in (found, expected):
        assert [n for n in tensors if tensors[n].numel()] == list(
            dict.fromkeys(n for n in tensors if tensors[n].numel())
        )
    assert shared(found) == shared(expected)


def shared(tensors):
    places = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            places.setdefault(tensor.data_ptr(), []).append(name)
    return sorted(names for names in places.values() if len(names) > 1)


@each_checkpoint
@pytest.mark.parametrize("exclude", [False, True], ids=["all", "no-frozen"])
def test_state_dict(name, folder, exclude, theirs):
    found = ours.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=exclude)
    if name in FAULTS:
        kind, words = FAULTS[name]
        with pytest.raises(kind, match=words):
            theirs.get_fp32_state_dict_from_zero_checkpoint(str(folder))
        truth, aliases = truth_of(folder)
        # Stage 0 does not say what is frozen.
        left_out = FROZEN & set(truth) if exclude and "v0.19.8-z0" not in name else set()
        assert set(found) == set(truth) - left_out | {alias for alias, kept in aliases.items() if kept in truth}
        return
    expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(folder), exclude_frozen_parameters=exclude)
    if name in DROPS_FROZEN and not exclude:
        assert set(found) - set(expected) == FROZEN
        found = {n: t for n, t in found.items() if n not in FROZEN}
    assert_equal(found, expected)


@pytest.mark.parametrize("case", ["v0.19.8-z2-bf16-n3", "v0.19.8-z3-bf16-n4", "v0.19.8-z3-bf16-n2-headfirst"])
def test_lazy_mode(case, theirs):
    lazy = ours.get_fp32_state_dict_from_zero_checkpoint(zero(case), lazy_mode=True)
    expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(zero(case)), lazy_mode=True)
    assert type(lazy) is type(expected)
    assert list(lazy) == list(expected)
    for name, tensor in expected.items():
        assert (lazy[name].shape, lazy[name].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(lazy[name].contiguous(), tensor.contiguous())
        assert lazy[name].numel() == lazy[name].contiguous().numel()
    assert lazy["head.weight"] is lazy["embed.weight"]
    assert "up.weight" in repr(lazy["up.weight"])


def test_tag_and_latest(tmp_path):
    shutil.copytree(zero("v0.19.8-z2-bf16-n2"), tmp_path / "ckpt")
    (tmp_path / "ckpt" / "latest").unlink()
    with pytest.raises(ValueError, match="latest"):
        ours.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "ckpt")
    with pytest.raises(FileNotFoundError):
        ours.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "ckpt", tag="global_step4")
    assert ours.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "ckpt", tag="global_step3")


def test_mixed_shards_are_refused_where_deepspeed_says_nothing(tmp_path, theirs):
    """Two ranks' shards swapped: DeepSpeed gives wrong weights without a word."""
    folder = shutil.copytree(zero("v0.19.8-z3-bf16-n2"), tmp_path / "ckpt")
    first, second = sorted((folder / "global_step3").glob("*optim_states.pt"))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    truth, _ = truth_of(zero("v0.19.8-z3-bf16-n2"))
    wrong = theirs.get_fp32_state_dict_from_zero_checkpoint(str(folder))
    assert wrong["up.weight"].detach().numpy().tobytes() != truth["up.weight"][2]
    with pytest.raises(zckpt.CorruptError):
        ours.get_fp32_state_dict_from_zero_checkpoint(folder)


def test_frozen_weights_that_are_missing_are_told():
    with pytest.warns(UserWarning, match="frozen"):
        ours.get_fp32_state_dict_from_zero_checkpoint(zero("v0.19.8-z2-bf16-n2-nofrozen"))


# ---- files ----


def weights_in(folder):
    """file -> its tensors, and the index or None."""
    files, index = {}, None
    for path in sorted(folder.iterdir()):
        if path.suffix == ".bin":
            files[path.name] = torch.load(path, weights_only=True)
        elif path.suffix == ".safetensors":
            from safetensors.torch import load_file

            files[path.name] = load_file(path)
        elif path.name.endswith(".index.json"):
            index = json.loads(path.read_text())
    return files, index


CONVERTED = [
    case
    for case in ("v0.19.8-z2-bf16-n3", "v0.19.8-z3-bf16-n4", "v0.18.5-z2-bf16-n3", "v0.19.8-z3-fp16-n3",
                 "v0.19.8-z2-bf16-n2-empty", "v0.19.8-z2-bf16-n2-names", "v0.19.8-z3-bf16-n12")
    if case in ZERO_CASES
]  # fmt: skip


@pytest.mark.parametrize("case", CONVERTED)
@pytest.mark.parametrize("size", ["5GB", "1KB", "3KB", 2000, None], ids=str)
def test_bin_files(case, size, tmp_path, theirs):
    arguments = {"max_shard_size": size}
    theirs.convert_zero_checkpoint_to_fp32_state_dict(str(zero(case)), str(tmp_path / "theirs"), **arguments)
    ours.convert_zero_checkpoint_to_fp32_state_dict(zero(case), tmp_path / "ours", **arguments)
    expected, expected_index = weights_in(tmp_path / "theirs")
    found, index = weights_in(tmp_path / "ours")
    assert list(found) == list(expected)
    for name in expected:
        assert list(found[name]) == list(expected[name]), name
        assert_equal(found[name], expected[name])
    assert (index is None) == (expected_index is None)
    if index is not None:
        assert index["weight_map"] == expected_index["weight_map"]
        assert index["metadata"]["total_size"] == expected_index["metadata"]["total_size"]


@pytest.mark.parametrize("dtype", ["fp16", "bfloat16", torch.float32], ids=str)
def test_other_dtypes(dtype, tmp_path, theirs):
    case = zero("v0.19.8-z3-bf16-n4")
    for module, out in ((theirs, "theirs"), (ours, "ours")):
        module.convert_zero_checkpoint_to_state_dict(str(case), str(tmp_path / out), dtype)
    (found, _), (expected, _) = weights_in(tmp_path / "ours"), weights_in(tmp_path / "theirs")
    assert_equal(found["pytorch_model.bin"], expected["pytorch_model.bin"])


def test_safetensors_files(tmp_path, theirs):
    # DeepSpeed's writer refuses tied weights, which safetensors cannot hold; ours writes them once.
    case = zero("v0.19.8-z3-bf16-n4")
    with pytest.raises(RuntimeError, match="share memory"):
        theirs.convert_zero_checkpoint_to_fp32_state_dict(str(case), str(tmp_path / "theirs"), safe_serialization=True)
    ours.convert_zero_checkpoint_to_fp32_state_dict(case, tmp_path / "ours", safe_serialization=True)
    found, _ = weights_in(tmp_path / "ours")
    assert os.listdir(tmp_path / "ours") == ["model.safetensors"]
    expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(case))
    del expected["head.weight"]
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            tensor = tensor.float()
        assert torch.equal(found["model.safetensors"][name], tensor)
    assert set(found["model.safetensors"]) == set(expected)


def test_writes_into_a_folder_with_other_files(tmp_path):
    out = shutil.copytree(zero("v0.19.8-z3-bf16-n4"), tmp_path / "ckpt")
    (out / "config.json").write_text("{}")
    (out / "pytorch_model.bin").write_text("old")
    before = set(os.listdir(out))
    ours.convert_zero_checkpoint_to_fp32_state_dict(out, out)
    assert set(os.listdir(out)) == before
    assert "up.weight" in torch.load(out / "pytorch_model.bin", weights_only=True)
    assert (out / "config.json").read_text() == "{}"
    # A refusal leaves the folder as it was.
    (out / "global_step3" / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    (out / "pytorch_model.bin").write_text("old")
    with pytest.raises(zckpt.CorruptError):
        ours.convert_zero_checkpoint_to_fp32_state_dict(out, out)
    assert set(os.listdir(out)) == before and (out / "pytorch_model.bin").read_text() == "old"


def test_load_into_a_model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(13, 29)
            self.other = torch.nn.Linear(2, 2)

    model = Model()
    loaded = ours.load_state_dict_from_zero_checkpoint(model, zero("v0.19.8-z3-bf16-n4"))
    assert loaded is model
    truth, _ = truth_of(zero("v0.19.8-z3-bf16-n4"))
    assert model.up.weight.detach().numpy().tobytes() == truth["up.weight"][2]
