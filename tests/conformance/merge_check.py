#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Merges of real checkpoints, judged by the libraries that will load them.

  merge_check.py --zckpt PATH --fixtures DIR [--sample]

Every data-parallel checkpoint of DIR is merged, and then: safetensors loads what the run had in memory; the files are,
byte for byte, what safetensors writes for the same tensors; shards are cut as huggingface_hub cuts the model's own
state dict, with the index that transformers writes; DeepSpeed's zero_to_fp32 gives the same where it gives the truth;
full fine-tunes load into transformers without a missing or unexpected name, and transformers saves the same files
again. Ends with "N passed, M failed".
"""
import argparse
import contextlib
import io
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from huggingface_hub import split_torch_state_dict_into_shards  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

DTYPES = {"keep": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SAMPLE = {"v0.19.8-z2-bf16-n3", "v0.19.8-z3-bf16-n12", "v0.14.2-z3-bf16-n2-subgroups", "full_z3_bf16",
          "lightning_z2_fp32"}
INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"


class Case:
    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.facts = json.loads((folder / "case.json").read_text())
        self.is_hf = self.facts.get("kind") == "hf"
        self.checkpoint = next(folder / d for d in ("ckpt", "checkpoint-2", "state", "last.ckpt")
                               if (folder / d).is_dir())
        with safe_open(folder / "truth.safetensors", "pt") as file:
            self.truth = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("buffer:")}
            self.aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        if self.is_hf:
            self.buffers = set()
            self.aliases = {alias: kept for alias, kept in model_states(self.checkpoint)["shared_params"].items()}
        else:
            self.buffers = set(self.facts["buffers"])
        self.order = [name for name in model_states(self.checkpoint)["module"] if name not in self.aliases]
        # Prefix of a framework, which a loader of the model does not expect.
        self.prefix = "model." if self.name.startswith("lightning") else ""

    def expected(self, dtype):
        return {name: t.to(dtype) if dtype and t.is_floating_point() else t for name, t in self.truth.items()}

    def parameters(self):
        return sum(t.numel() for name, t in self.truth.items() if name not in self.buffers)


def model_states(checkpoint):
    files = sorted(p for pattern in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
                   for p in checkpoint.rglob(pattern))
    return torch.load(files[0], weights_only=False, map_location="cpu")


def find_cases(fixtures, sample):
    cases = []
    for folder in sorted([*(fixtures / "zero").iterdir(), *(fixtures / "hf").iterdir()]):
        if not (folder / "case.json").is_file() or sample and folder.name not in SAMPLE:
            continue
        facts = json.loads((folder / "case.json").read_text())
        recipe = facts.get("recipe", {})
        lora = facts.get("kind") == "hf" and facts["case"]["lora"]
        if lora or "grid" in recipe or "save" in recipe:  # not all of the weights, or not data-parallel
            continue
        cases.append(Case(folder))
    return cases


class Differs(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Differs(message)


def same_tensors(found, expected):
    require(set(found) == set(expected), f"names: {sorted(set(found) ^ set(expected))[:4]}")
    for name, tensor in expected.items():
        have = found[name]
        require(have.dtype == tensor.dtype and have.shape == tensor.shape,
                f"{name}: {have.dtype} {tuple(have.shape)}, expected {tensor.dtype} {tuple(tensor.shape)}")
        equal = have.contiguous().reshape(-1).view(torch.uint8).equal(
            tensor.detach().contiguous().reshape(-1).view(torch.uint8))
        require(equal, f"{name}: other values")


def folder_tensors(folder):
    """All tensors of a folder, each from the shard that the index names."""
    if not (folder / INDEX).exists():
        return load_file(folder / "model.safetensors")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    parts = {file: load_file(folder / file) for file in set(weight_map.values())}
    require(sum(map(len, parts.values())) == len(weight_map), "shards and index differ")
    return {name: parts[file][name] for name, file in weight_map.items()}


class Checks:
    def __init__(self, zckpt, scratch):
        self.zckpt = zckpt
        self.scratch = scratch
        self.passed = self.failed = 0
        self.reference = 0

    def run(self, name, check, *arguments):
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                check(*arguments)
            self.passed += 1
        except Exception as error:  # every case is judged, whatever another one did
            self.failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)

    def merge(self, case, *options):
        out = self.scratch / "out"
        command = [self.zckpt, "merge", str(case.checkpoint), "-o", str(out), "--force", "--no-sync", "-q", *options]
        result = subprocess.run(command, capture_output=True, text=True)
        require(result.returncode == 0, f"exit {result.returncode}: {result.stderr.strip()[:300]}")
        require(result.stdout == "" and result.stderr == "", "-q printed something")
        return out

    # ---- one check each ----

    def values(self, case, dtype):
        for shard in ("5GB", "2KB"):
            out = self.merge(case, "--dtype", dtype, "--max-shard-size", shard)
            same_tensors(folder_tensors(out), case.expected(DTYPES[dtype]))

    def tied_names(self, case):
        with safe_open(self.merge(case) / "model.safetensors", "pt") as file:
            require(file.metadata() == {"format": "pt", **case.aliases}, f"metadata {file.metadata()}")
        if len(case.truth) == 1:
            return  # never sharded
        index = json.loads((self.merge(case, "--max-shard-size", "1") / INDEX).read_text())
        metadata = {k: v for k, v in index["metadata"].items() if not k.startswith("total_")}
        require(metadata == case.aliases, f"index metadata {metadata}")

    def without_aliases(self, case):
        # With their tied names mentioned, headers have several keys of metadata, which safetensors does not order.
        return [option for alias in case.aliases for option in ("--exclude", alias)]

    def file_bytes(self, case, dtype):
        out = self.merge(case, "--dtype", dtype, *self.without_aliases(case)) / "model.safetensors"
        reference = self.scratch / "reference.safetensors"
        save_file({n: t.contiguous() for n, t in case.expected(DTYPES[dtype]).items()}, reference, {"format": "pt"})
        require(out.read_bytes() == reference.read_bytes(), "safetensors writes other bytes")

    def shards(self, case, dtype, size):
        out = self.merge(case, "--dtype", dtype, "--max-shard-size", str(size), *self.without_aliases(case))
        expected = case.expected(DTYPES[dtype])
        require(set(case.order) == set(expected), "the module lists other names")
        state_dict = {name: expected[name].clone() for name in case.order}
        split = split_torch_state_dict_into_shards(state_dict, max_shard_size=size)
        names = {p.name for p in out.iterdir()} - {INDEX}
        require(names == set(split.filename_to_tensors), f"files {sorted(names)}")
        for file, tensors in split.filename_to_tensors.items():
            reference = self.scratch / "reference.safetensors"
            save_file({name: state_dict[name] for name in tensors}, reference, {"format": "pt"})
            require((out / file).read_bytes() == reference.read_bytes(), f"{file} differs")
        require((out / INDEX).exists() == split.is_sharded, "index and shards")
        if split.is_sharded:
            # As PreTrainedModel.save_pretrained writes it.
            index = {"metadata": {"total_parameters": case.parameters(), **split.metadata},
                     "weight_map": split.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            require((out / INDEX).read_text() == text, "index text")

    def bin_files(self, case, dtype, size):
        """--format bin: torch.load gives the truth, and files are cut as huggingface_hub cuts them."""
        out = self.merge(case, "--format", "bin", "--dtype", dtype, "--max-shard-size", str(size))
        expected = case.expected(DTYPES[dtype])
        state_dict = {name: expected[name].clone() for name in case.order}
        state_dict.update({alias: state_dict[kept] for alias, kept in case.aliases.items()})
        split = split_torch_state_dict_into_shards(state_dict, max_shard_size=size,
                                                   filename_pattern="pytorch_model{suffix}.bin")
        require({p.name for p in out.iterdir()} - {BIN_INDEX} == set(split.filename_to_tensors), "files")
        require((out / BIN_INDEX).exists() == split.is_sharded, "index and shards")
        if split.is_sharded:
            index = {"metadata": {"total_parameters": case.parameters(), **split.metadata},
                     "weight_map": split.tensor_to_filename}
            require((out / BIN_INDEX).read_text() == json.dumps(index, indent=2, sort_keys=True) + "\n", "index text")
        for file, names in split.filename_to_tensors.items():
            part = {name: state_dict[name] for name in names}
            for mmap in (False, True):
                found = torch.load(out / file, weights_only=True, mmap=mmap)
                same_tensors(found, part)
                for alias, kept in case.aliases.items():
                    if alias in part:
                        require(found[alias].untyped_storage().data_ptr() == found[kept].untyped_storage().data_ptr(),
                                f"{alias} has data of its own")
            self.records(out / file, part)

    def records(self, path, part):
        """The records are those of torch.save, each with the right CRC and at the same place."""
        reference = self.scratch / path.name
        torch.save(part, reference)
        with zipfile.ZipFile(path) as ours, zipfile.ZipFile(reference) as theirs:
            require(ours.testzip() is None, "a CRC is wrong")
            optional = path.stem + "/.data/serialization_id"
            require(ours.namelist() == [n for n in theirs.namelist() if n != optional], f"records {ours.namelist()}")
            for info in ours.infolist():
                same = info.file_size == theirs.getinfo(info.filename).file_size
                require(same or info.filename.endswith("data.pkl"), f"{info.filename}: {info.file_size} bytes")

    def zero_to_fp32(self, case):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        logging.disable(logging.WARNING)
        expected = get_fp32_state_dict_from_zero_checkpoint(str(case.checkpoint))
        out = self.merge(case, "--dtype", "keep", "--aliases", "copy")
        same_tensors(folder_tensors(out), expected)
        # The same order, too: shards are cut alike.
        out = self.merge(case, "--dtype", "keep", "--order", "param_shapes", "--max-shard-size", "1",
                         *self.without_aliases(case))
        weight_map = json.loads((out / INDEX).read_text())["weight_map"]
        found = sorted((n for n in weight_map if expected[n].numel()), key=lambda name: weight_map[name])
        wanted = [n for n in expected if n not in case.aliases and expected[n].numel()]
        require(found == wanted, f"order {found[:6]}, expected {wanted[:6]}")

    def transformers(self, case, shard, dtype):
        from transformers import AutoModelForCausalLM
        strip = ["--strip-prefix", case.prefix] if case.prefix else []
        merged = self.merge(case, "--max-shard-size", shard, "--dtype", dtype, *strip)
        model_folder = self.scratch / "model"
        shutil.rmtree(model_folder, ignore_errors=True)
        shutil.copytree(merged, model_folder)
        source = case.checkpoint if (case.checkpoint / "config.json").exists() else case.folder / "base"
        for name in ("config.json", "generation_config.json"):
            shutil.copy(source / name, model_folder)
        model, info = AutoModelForCausalLM.from_pretrained(model_folder, dtype=DTYPES[dtype],
                                                           output_loading_info=True)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            require(not info[key], f"{key}: {info[key]}")
        loaded = model.state_dict()
        expected = {name.removeprefix(case.prefix): t for name, t in case.expected(DTYPES[dtype]).items()}
        same_tensors({n: t for n, t in loaded.items() if n in expected}, expected)
        tied = {alias.removeprefix(case.prefix) for alias in case.aliases}
        require(set(loaded) == set(expected) | tied, "state dict")
        head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        require((head.data_ptr() == embedding.data_ptr()) == model.config.tie_word_embeddings, "tied head")

        # What transformers makes of it is what we wrote.
        again = self.scratch / "again"
        shutil.rmtree(again, ignore_errors=True)
        model.save_pretrained(again, max_shard_size=shard)
        merged = self.merge(case, "--max-shard-size", shard, "--dtype", dtype, *strip, *self.without_aliases(case))
        ours = {p.name: p.read_bytes() for p in merged.iterdir()}
        theirs = {p.name: p.read_bytes() for p in again.iterdir() if "safetensors" in p.name}
        require(set(ours) == set(theirs), f"files {sorted(theirs)}")
        for name, content in ours.items():
            require(content == theirs[name], f"save_pretrained writes another {name}")

    def transformers_bin(self, case, shard):
        from transformers import AutoModelForCausalLM
        strip = ["--strip-prefix", case.prefix] if case.prefix else []
        folder = self.scratch / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.merge(case, "--max-shard-size", shard, "--format", "bin", *strip), folder)
        source = case.checkpoint if (case.checkpoint / "config.json").exists() else case.folder / "base"
        shutil.copy(source / "config.json", folder)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            require(not info[key], f"{key}: {info[key]}")
        expected = {name.removeprefix(case.prefix): t for name, t in case.expected(torch.float32).items()}
        same_tensors({n: t for n, t in model.state_dict().items() if n in expected}, expected)

    def case(self, case):
        for dtype in DTYPES:
            self.run(f"{case.name}: values as {dtype}", self.values, case, dtype)
            self.run(f"{case.name}: bytes as {dtype}", self.file_bytes, case, dtype)
        for dtype, size in (("fp32", 2000), ("keep", 700), ("bf16", 1400), ("fp32", 1924), ("fp32", 10**9)):
            self.run(f"{case.name}: shards of {size}, {dtype}", self.shards, case, dtype, size)
        for dtype, size in (("fp32", 10**9), ("fp32", 2000), ("keep", 700), ("bf16", 1400), ("fp16", 1)):
            self.run(f"{case.name}: .bin, {size}, {dtype}", self.bin_files, case, dtype, size)
        self.run(f"{case.name}: tied names", self.tied_names, case)
        ds_version = self.version(case)
        exact = case.is_hf or case.facts["zero_to_fp32"]["result"] == "exact"
        if ds_version == "0.19.8" and exact:
            self.reference += 1
            self.run(f"{case.name}: zero_to_fp32", self.zero_to_fp32, case)
        if case.is_hf:
            for shard, dtype in (("5GB", "fp32"), ("5KB", "fp32"), ("5GB", "bf16"), ("3KB", "bf16")):
                self.run(f"{case.name}: transformers, {shard}, {dtype}", self.transformers, case, shard, dtype)
            for shard in ("5GB", "5KB"):
                self.run(f"{case.name}: transformers, .bin, {shard}", self.transformers_bin, case, shard)

    @staticmethod
    def version(case):
        return case.facts.get("deepspeed") or case.facts["versions"].get("deepspeed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zckpt", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--sample", action="store_true", help="a few cases only")
    arguments = parser.parse_args()
    # Checkpoints refer to classes of the programs that made them.
    sys.path.insert(0, str(arguments.fixtures / "generate"))
    with tempfile.TemporaryDirectory() as scratch:
        checks = Checks(str(pathlib.Path(arguments.zckpt).resolve()), pathlib.Path(scratch))
        cases = find_cases(arguments.fixtures.resolve(), arguments.sample)
        for case in cases:
            checks.case(case)
    print(f"{len(cases)} checkpoints, {checks.reference} of them against zero_to_fp32")
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed or not checks.passed else 0)


if __name__ == "__main__":
    main()
