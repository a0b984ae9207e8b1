#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Folders that export-hf writes, judged by the transformers and PEFT that will load them.

  export_check.py --zckpt PATH --fixtures DIR [--sample] [--only WORD]

DIR/lora: each adapter is merged onto its base with --lora-math exact, which must give expected_exact.safetensors, and
peft, which must give expected/. What the exact merge wrote must load without a missing or unexpected name and mean
what the adapted model means. What can't be merged must be refused, and nothing written.
DIR/hf: the same for whole training checkpoints; what extract-lora takes out of them must load in PEFT.

In 16 bits an element may be 1 ulp off where its exact value lies within fp32 error of a rounding boundary; such
elements are counted. Runs in transformers 4 and 5; what that version can't load in the base either is skipped, and
said. Ends with "N passed, M failed".
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

FP32_ERROR = 1e-6  # of |W| + s |B| |A|
PEFT_OFF = 1000  # of so many elements one may be 1 ulp from PEFT's: the order of its sums is not specified
LOGITS_OFF = 0.05  # what rounding weights to 16 bits may do to the logits of these models
INDEX = "model.safetensors.index.json"
PREFIX = "base_model.model."
HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight")
SIDE_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
              "chat_template.jinja")
CONFIG_MAY_CHANGE = {"dtype", "torch_dtype", "tie_word_embeddings", "vocab_size", "architectures"}
SAMPLE = {"qwen2_tied_qv_bf16", "llama_dora_fp32", "gpt2_conv1d_bf16", "qwen2_lm_head_lora_tied_bf16",
          "qwen2_two_adapters_bf16", "ia3_qwen2_bf16", "refuse_wrong_prefix_bf16", "full_z3_bf16"}


class Differs(Exception):
    pass


class Skipped(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Differs(message)


def read_json(path):
    return json.loads(path.read_text())


def folder_tensors(folder):
    """All tensors of a folder, each from the shard that the index names."""
    if not (folder / INDEX).exists():
        return load_file(folder / "model.safetensors")
    weight_map = read_json(folder / INDEX)["weight_map"]
    parts = {file: load_file(folder / file) for file in set(weight_map.values())}
    require(sum(map(len, parts.values())) == len(weight_map), "shards and index differ")
    return {name: parts[file][name] for name, file in weight_map.items()}


def adapter_tensors(folder):
    file = folder / "adapter_model.safetensors"
    return load_file(file) if file.exists() else torch.load(folder / "adapter_model.bin", weights_only=True)


def embedding_of(tensors):
    return next(tensors[name] for name in EMBEDDINGS if name in tensors)


# ---- the reference: LoRA in float64 ----

def scale_of(config, module, rank):
    alpha = config["lora_alpha"]
    for key, value in (config.get("alpha_pattern") or {}).items():  # the first in the file's order
        if re.match(rf"(.*\.)?({key})$", module):
            alpha = value
            break
    return alpha / (rank ** 0.5 if config.get("use_rslora") else rank)


def lora_values(base, adapters):
    """name -> (its exact value in float64, |W| + s |B| |A|), for each tensor that a LoRA of these adapters changes."""
    values = {}
    for folder in adapters:
        config = read_json(folder / "adapter_config.json")
        tensors = {name.removeprefix(PREFIX): t.double() for name, t in adapter_tensors(folder).items()}

        def start(module, part):
            name = f"{module}.{part}"
            if name in values:
                return values[name]
            for own in (f"{module}.base_layer.{part}", name):  # an adapter may bring its base along
                if own in tensors:
                    return tensors[own], tensors[own].abs()
            weight = (base[name] if name in base else embedding_of(base)).double()  # a tied head
            return weight, weight.abs()

        for key, a in tensors.items():
            if not key.endswith((".lora_A.weight", ".lora_embedding_A")):
                continue
            module = key[:key.index(".lora_")]
            b = tensors[key.replace("_A", "_B")]
            scale = scale_of(config, module, len(a))
            turned = key.endswith("embedding_A") or config.get("fan_in_fan_out")
            delta, size = scale * (b @ a), scale * (b.abs() @ a.abs())
            weight, sizes = start(module, "weight")
            weight, sizes = weight + (delta.T if turned else delta), sizes + (size.T if turned else size)
            magnitude = tensors.get(f"{module}.lora_magnitude_vector")
            if magnitude is not None:  # DoRA
                axis = 0 if turned else 1
                factor = magnitude.unsqueeze(axis) / weight.norm(dim=axis, keepdim=True)
                weight, sizes = weight * factor, sizes * factor
            values[f"{module}.weight"] = weight, sizes
            if f"{module}.lora_B.bias" in tensors:
                delta = scale * tensors[f"{module}.lora_B.bias"]
                bias, sizes = start(module, "bias")
                values[f"{module}.bias"] = bias + delta, sizes + delta.abs()
    return values


# ---- comparing ----

def bits(tensor):
    """As integers that are ordered like the numbers they stand for."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    found = tensor.contiguous().view(width).long()
    return torch.where(found < 0, -(1 << (8 * tensor.element_size() - 1)) - found, found)


def same_layout(found, expected):
    require(set(found) == set(expected), f"names: {sorted(set(found) ^ set(expected))[:4]}")
    for name, tensor in expected.items():
        have = found[name]
        require(have.dtype == tensor.dtype and have.shape == tensor.shape,
                f"{name}: {have.dtype} {tuple(have.shape)}, expected {tensor.dtype} {tuple(tensor.shape)}")


def differing(found, expected):
    """(name, where) of the tensors that are not equal bit for bit."""
    same_layout(found, expected)
    for name, tensor in expected.items():
        ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found[name], tensor))
        if not ours.equal(theirs):
            yield name, bits(found[name]) != bits(tensor)


def same_tensors(found, expected):
    for name, _ in differing(found, expected):
        raise Differs(f"{name}: other values")


def within(found, wanted, bound, name):
    worst = ((found.double() - wanted).abs() - bound).max()
    require(worst <= 0, f"{name}: {float(worst):.3g} beyond what rounding explains")


def is_exact(found, expected, values):
    """How many elements are 1 ulp off, each with a reason."""
    off = 0
    for name, where in differing(found, expected):
        require(name in values, f"{name}: other values")
        ours, theirs = found[name], expected[name]
        exact, sizes = values[name]
        if ours.dtype == torch.float32:
            within(ours, theirs.double(), FP32_ERROR * sizes, name)
            within(ours, exact, exact.abs() * torch.finfo(torch.float32).eps, name)
            off += int((ours != exact.float()).sum())
        else:
            ulps = (bits(ours) - bits(theirs)).abs().max()
            require(ulps == 1, f"{name}: {int(ulps)} ulp in {int(where.sum())} elements")
            boundary = (ours.double() + theirs.double()) / 2
            within(boundary[where], exact[where], FP32_ERROR * sizes[where], name)
            off += int(where.sum())
    return off


def is_as_peft(found, expected, values):
    """How many elements of 16 bits are 1 ulp off."""
    off = 0
    for name, where in differing(found, expected):
        require(name in values, f"{name}: other values")
        if found[name].dtype == torch.float32:
            within(found[name], expected[name].double(), FP32_ERROR * values[name][1], name)
        else:
            ulps = (bits(found[name]) - bits(expected[name])).abs().max()
            require(ulps == 1, f"{name}: {int(ulps)} ulp in {int(where.sum())} elements")
            off += int(where.sum())
    allowed = sum(t.numel() for t in found.values()) / PEFT_OFF
    require(off <= allowed, f"{off} elements are 1 ulp off, {allowed:.0f} are allowed")
    return off


def is_rounded(found, expected, values):
    """As exact but for rounding the delta, then the sum."""
    for name, _ in differing(found, expected):
        require(name in values, f"{name}: other values")
        exact, sizes = values[name]
        within(found[name], exact, torch.finfo(found[name].dtype).eps / 2 * (exact.abs() + sizes), name)
    return 0


# ---- loading ----

def load(folder, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        require(not info.get(key), f"{key}: {list(info.get(key) or ())[:4]}")
    return model.eval()


def load_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    require(tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False), "empty chat")
    return tokenizer


def unless_base_fails(base, load_it, *arguments):
    """Loads, or fails, or skips what can't be loaded in the base either."""
    try:
        return load_it(*arguments)
    except Exception as error:
        try:
            load_it(base, *arguments[1:])
        except Exception as reason:
            version = transformers.__version__
            raise Skipped(f"transformers {version} can't load the base's: {str(reason).strip()[:90]}") from None
        raise error


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def some_ids():
    return torch.arange(6, 24).reshape(2, 9)


def peft_logits(base, adapter):
    """Of the adapted model, not merged."""
    from peft import PeftModel
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys.*")
        return logits_of(PeftModel.from_pretrained(load(base, torch.float32), adapter).eval(), some_ids())


# ---- checks ----

class Checks:
    def __init__(self, zckpt, scratch):
        self.zckpt = zckpt
        self.scratch = scratch
        self.out = scratch / "out"
        self.passed = self.failed = self.skipped = 0
        self.off = {"exact": 0, "peft": 0}

    def run(self, name, check, *arguments):
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                check(*arguments)
            self.passed += 1
        except Skipped as reason:
            self.skipped += 1
            print(f"skipped {name}: {reason}", flush=True)
        except Exception as error:  # every case is judged, whatever another one did
            self.failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)

    def program(self, verb, path, *options):
        shutil.rmtree(self.scratch)
        self.scratch.mkdir()
        command = [self.zckpt, verb, str(path), "-o", str(self.out), "--no-sync", "-q", *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.scratch, timeout=120)

    def write(self, verb, path, *options):
        result = self.program(verb, path, *options)
        require(result.returncode == 0, f"exit {result.returncode}: {result.stderr.strip()[:200]}")

    def refused(self, path, *options):
        result = self.program("export-hf", path, *options)
        left = sorted(p.name for p in self.scratch.iterdir())
        require(result.returncode == 3, f"exit {result.returncode}, expected 3")
        require(not left, f"left {left}")
        require(result.stderr.strip(), "refused without a word")

    def values(self, mode, judge, expected, values, *command):
        self.write("export-hf", *command)
        found = folder_tensors(self.out)
        if HEAD not in found and HEAD in expected and HEAD not in values:
            # PEFT unties equal sides, too; either folder is right.
            same_tensors({HEAD: embedding_of(expected)}, {HEAD: expected.pop(HEAD)})
        self.off[mode] += judge(found, expected, values)

    def written(self, name, sources, base, ids, wanted):
        """What else a folder needs. sources: where side files come from, the nearest one last."""
        if not (self.out / "config.json").exists():
            return  # said already
        self.run(f"{name}: config and side files", self.side_files, sources, base)
        self.run(f"{name}: loads", self.loads, base, ids, wanted)
        self.run(f"{name}: tokenizer", self.tokenizer, sources)

    def side_files(self, sources, base):
        for name in SIDE_FILES:
            having = [folder for folder in sources if (folder / name).exists()]
            require((self.out / name).exists() == bool(having), name)
            if having:
                require((self.out / name).read_bytes() == (having[-1] / name).read_bytes(), f"{name} differs")
        original = read_json([f for f in sources if (f / "config.json").exists()][-1] / "config.json")
        config = read_json(self.out / "config.json")
        changed = {key for key in {*original, *config} if original.get(key) != config.get(key)}
        require(changed <= CONFIG_MAY_CHANGE, f"config.json: {sorted(changed - CONFIG_MAY_CHANGE)} changed")
        stored = folder_tensors(self.out)
        dtypes = {str(t.dtype).removeprefix("torch.") for t in stored.values()}
        declared = config.get("dtype", config.get("torch_dtype"))
        require(dtypes == {declared}, f"config.json: dtype {declared}, stored {dtypes}")
        require(config["vocab_size"] == len(embedding_of(stored)), f"config.json: vocab_size {config['vocab_size']}")
        untied = HEAD in stored and HEAD not in folder_tensors(base)
        tied = False if untied else original.get("tie_word_embeddings")
        require(config.get("tie_word_embeddings") is tied, "config.json: tie_word_embeddings")

    def loads(self, base, ids, wanted):
        model = unless_base_fails(base, load, self.out, "auto")
        stored = folder_tensors(self.out)
        state = model.state_dict()
        head = {HEAD: stored.get(HEAD, embedding_of(stored))}
        same_tensors({HEAD: model.get_output_embeddings().weight.detach()}, head)
        shared = [name for name in stored if name in state]  # transformers 5 keeps experts under other names
        same_tensors({name: state[name] for name in shared}, {name: stored[name] for name in shared})
        logits = logits_of(load(self.out, torch.float32), ids)
        require(torch.isfinite(logits).all(), "logits are not finite")
        if wanted is not None:
            off = float((logits - wanted).abs().max())
            require(off <= LOGITS_OFF, f"logits are off by {off:.3g}")

    def tokenizer(self, sources):
        original = [folder for folder in sources if (folder / "tokenizer.json").exists()][-1]
        tokenizer = unless_base_fails(original, load_tokenizer, self.out)
        rows = len(embedding_of(folder_tensors(self.out)))
        require(len(tokenizer) <= rows, f"the tokenizer has {len(tokenizer)} entries, the embedding {rows} rows")

    # ---- DIR/lora ----

    def lora_case(self, folder):
        facts = read_json(folder / "case.json")
        base, name = folder / "base", folder.name
        adapters = [folder / a for a in facts.get("adapters_in_order", ["adapter"])]
        if facts["outcome"] != "merge" or not mergeable(adapters[0], base):
            self.run(f"{name}: refused", self.refused, base, *given(adapters))
            adapters = [folder / "adapter_converted"]  # PiSSA as plain LoRA
            if not adapters[0].exists():
                return
        command = [base, *given(adapters), "--lora-math"]
        exact = load_file(folder / "expected_exact.safetensors")
        values = lora_values(folder_tensors(base), adapters)
        self.run(f"{name}: exact", self.values, "exact", is_exact, exact, values, *command, "exact")
        ids, wanted = some_ids(), None
        if (folder / "logits.safetensors").exists():
            logits = load_file(folder / "logits.safetensors")
            ids, wanted = logits["input_ids"], logits["unmerged_fp32"]
        self.written(name, [base, *adapters], base, ids, wanted)

        if facts.get("peft_keeps_meaning", True):
            peft = folder_tensors(folder / "expected")
            self.run(f"{name}: peft", self.values, "peft", is_as_peft, peft, values, *command, "peft")
        else:  # PEFT changes both sides of a tie
            self.run(f"{name}: peft", self.values, "peft", is_rounded, exact, values, *command, "peft")

    # ---- DIR/hf ----

    def full_case(self, folder):
        base = folder / "base"
        checkpoint = next(folder / d for d in ("checkpoint-2", "state", "last.ckpt") if (folder / d).is_dir())
        alone = (checkpoint / "config.json").exists()
        source = checkpoint if alone else base
        config = read_json(source / "config.json")
        dtype = getattr(torch, config.get("dtype", config.get("torch_dtype")))
        wrapped = "model." if folder.name.startswith("lightning") else ""  # the framework's own module
        truth = {name.removeprefix(wrapped): t.to(dtype) for name, t in load_file(folder / "truth.safetensors").items()
                 if not name.startswith("buffer:")}
        options = [] if alone else ["--base", base]
        self.run(f"{folder.name}: values", self.values, "exact", is_exact, truth, {}, checkpoint, *options)
        self.written(folder.name, [source], base, some_ids(), None)

    def run_case(self, folder):
        facts = read_json(folder / "case.json")
        base, adapter = folder / "base", folder / "truth_adapter"
        values = lora_values(folder_tensors(base), [adapter])
        wanted = peft_logits(base, adapter)
        for checkpoint in (folder / "checkpoint-2", folder / "final"):
            if not checkpoint.is_dir():
                continue
            name = f"{folder.name}/{checkpoint.name}"
            sharded = any(checkpoint.glob("global_step*"))
            command = [checkpoint, "--base", base] if sharded else [base, "--adapter", checkpoint]
            if facts["merge"]["merged_dtype"] == "float32":
                exact = load_file(folder / "expected_merged_exact.safetensors")
                self.run(f"{name}: fp32", self.values, "exact", is_exact, exact, values, *command, "--dtype", "fp32")
            exact = load_file(folder / "expected_merged_exact_bf16.safetensors")  # as its config says
            self.run(f"{name}: auto", self.values, "exact", is_exact, exact, values, *command)
            self.written(name, [base, checkpoint], base, some_ids(), wanted)
            if sharded:
                self.run(f"{name}: extract-lora", self.extracted, checkpoint, base, adapter, wanted)

    def extracted(self, checkpoint, base, adapter, wanted):
        self.write("extract-lora", checkpoint)
        same_tensors(adapter_tensors(self.out), adapter_tensors(adapter))
        require(peft_logits(base, self.out).equal(wanted), "other logits")


def given(adapters):
    return [word for adapter in adapters for word in ("--adapter", adapter)]


def mergeable(adapter, base):
    config = read_json(adapter / "adapter_config.json")
    return (config["peft_type"] == "LORA" and not config.get("target_parameters")
            and read_json(base / "config.json")["model_type"] != "resnet")  # convolutions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zckpt", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--sample", action="store_true", help="a few cases only")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    fixtures = arguments.fixtures.resolve()
    cases = [file.parent for kind in ("lora", "hf") for file in sorted(fixtures.glob(f"{kind}/*/case.json"))
             if arguments.only in file.parent.name and (not arguments.sample or file.parent.name in SAMPLE)]
    adapters = sum(folder.parent.name == "lora" for folder in cases)
    with tempfile.TemporaryDirectory() as scratch:
        checks = Checks(str(pathlib.Path(arguments.zckpt).resolve()), pathlib.Path(scratch) / "work")
        checks.scratch.mkdir()
        for folder in cases:
            if folder.parent.name == "lora":
                checks.lora_case(folder)
            elif read_json(folder / "case.json")["case"]["lora"]:
                checks.run_case(folder)
            else:
                checks.full_case(folder)
    print(f"transformers {transformers.__version__}: {adapters} adapters, {len(cases) - adapters} checkpoints, "
          f"{checks.skipped} checks skipped")
    print(f"elements 1 ulp off: {checks.off['exact']} of exact merges, {checks.off['peft']} of PEFT's")
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed or not checks.passed else 0)


if __name__ == "__main__":
    main()
