# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""merge, export_hf and extract_lora."""

import dataclasses
import os

import pytest
import zckpt
from support import FIXTURES, raw_tensors, truth_of, zero

CASE = zero("v0.19.8-z2-bf16-n3")
LORA = FIXTURES / "hf" / "lora_z3_fp32"


def test_merge_writes_the_truth(tmp_path):
    result = zckpt.merge(CASE, tmp_path / "out", dtype="keep")
    tensors, aliases = truth_of(CASE)
    assert raw_tensors(tmp_path / "out" / "model.safetensors") == tensors
    assert result.aliases == aliases
    assert (result.tensors, result.parameters, result.dtype) == (15, 1512, None)
    assert result.output == str(tmp_path / "out") and not result.dry_run
    assert [file.name for file in result.files] == ["model.safetensors"]
    assert set(result.files[0].tensors) == set(tensors)
    assert result.files[0].size_bytes == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert result.checked_records > 0 and result.checked_elements > 0 and result.bytes_read > 0
    assert result.facts.layout == "ZeRO-2"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.tensors = 0


def test_merge_options(tmp_path):
    out = tmp_path / "out"
    result = zckpt.merge(
        CASE, out, dtype="bf16", max_shard_size="1KB", include=["*.weight", "*bias"], exclude="norm*", aliases="copy",
        order="param_shapes", exclude_frozen=True, check="full", sync=False, threads=1, memory="1MiB",
    )  # fmt: skip
    names = {name for file in result.files for name in file.tensors}
    assert names == {"embed.weight", "head.weight", "up.weight", "up.bias", "down.weight", "down.bias"}
    assert result.files[-1].name == "model.safetensors.index.json" and result.files[-1].tensors == ()
    assert sorted(os.listdir(out)) == sorted(file.name for file in result.files)
    assert len(result.files) > 2 and result.dtype == "bf16"
    with pytest.raises(zckpt.ConflictError) as caught:
        zckpt.merge(CASE, out)
    assert caught.value.code == "conflict"
    zckpt.merge(CASE, out, force=True)
    assert os.listdir(out) == ["model.safetensors"]


def test_merge_to_bin(tmp_path):
    torch = pytest.importorskip("torch")
    zckpt.merge(CASE, tmp_path / "model.bin", format="bin")
    loaded = torch.load(tmp_path / "model.bin", weights_only=True)
    with zckpt.open(CASE, framework="pt", dtype="fp32") as checkpoint:
        assert set(loaded) == set(checkpoint)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in checkpoint.items())
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()


def test_dry_run_writes_nothing(tmp_path):
    result = zckpt.merge(CASE, dry_run=True)
    assert result.dry_run and result.output is None and result.tensors == 15
    assert zckpt.merge(CASE, tmp_path / "out", dry_run=True).files == result.files
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError):
        zckpt.merge(CASE)
    for output, options in (
        ("out.bin", {}),
        ("out.safetensors", {"format": "bin"}),
        ("out.pt", {}),
        ("out", {"dtype": "fp8"}),
        ("out", {"format": "gguf"}),
        ("out", {"max_shard_size": "five"}),
        ("out", {"max_shard_size": 0}),
        ("out", {"check": "some"}),
        ("out", {"aliases": "keep"}),
        ("out", {"order": "size"}),
        ("out", {"threads": -1}),
    ):
        with pytest.raises(ValueError):
            zckpt.merge(CASE, tmp_path / output, **options)
    with pytest.raises(zckpt.Error, match="matches"):
        zckpt.merge(CASE, tmp_path / "out", include="nothing*")
    assert list(tmp_path.iterdir()) == []


def test_merge_refuses_what_is_incomplete(tmp_path):
    with pytest.raises(zckpt.Error) as caught:
        zckpt.merge(LORA / "checkpoint-2", tmp_path / "out")
    assert caught.value.code == "invalid"
    assert "frozen-missing" in {finding.code for finding in caught.value.findings}
    zckpt.merge(LORA / "checkpoint-2", tmp_path / "out", exclude_frozen=True)


def test_export_hf(tmp_path):
    out = tmp_path / "model"
    result = zckpt.export_hf(LORA / "checkpoint-2", out, base=LORA / "base", dtype="fp32")
    assert result.base == str(LORA / "base") and result.written.output == str(out)
    assert [(a.label, a.weight, a.tensors) for a in result.adapters] == [("default", 1.0, 8)]
    assert len(result.lora) == 4 and all(report.max_delta > 0 for report in result.lora)
    assert {"tokenizer.json", "generation_config.json"} <= {file.name for file in result.side_files}
    assert (out / "config.json").exists()
    expected = raw_tensors(LORA / "expected_merged_exact.safetensors")
    found = raw_tensors(out / "model.safetensors")
    assert found == {name: expected[name] for name in found}


def test_export_hf_of_adapters(tmp_path):
    case = FIXTURES / "lora" / "qwen2_tied_qv_bf16"
    for number, adapters in enumerate(([case / "adapter"], case / "adapter", [(case / "adapter", 1.0)])):
        result = zckpt.export_hf(case / "base", tmp_path / str(number), adapters=adapters)
        assert result.adapters[0].weight == 1.0
    half = zckpt.export_hf(case / "base", tmp_path / "half", adapters=[(case / "adapter", 0.5)], lora_math="peft")
    assert half.adapters[0].weight == 0.5
    weights = {n: (tmp_path / n / "model.safetensors").read_bytes() for n in ("0", "1", "2", "half")}
    assert weights["0"] == weights["1"] == weights["2"] != weights["half"]


def test_extract_lora(tmp_path):
    result = zckpt.extract_lora(LORA / "checkpoint-2", tmp_path / "adapter")
    assert (result.adapter_name, result.modules, result.written.tensors) == ("default", 4, 8)
    assert result.config_from == str(LORA / "checkpoint-2" / "adapter_config.json")
    expected = raw_tensors(LORA / "truth_adapter" / "adapter_model.safetensors")
    assert raw_tensors(tmp_path / "adapter" / "adapter_model.safetensors") == expected
    with pytest.raises(zckpt.Error):
        zckpt.extract_lora(CASE, tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_same_bytes_as_the_program(tmp_path):
    import subprocess
    import sysconfig

    program = os.path.join(sysconfig.get_path("scripts"), "zckpt")
    subprocess.run([program, "merge", CASE, "-o", tmp_path / "a", "-q"], check=True)
    zckpt.merge(CASE, tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
