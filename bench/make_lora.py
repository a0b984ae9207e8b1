#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Write a large bf16 base model and an fp32 LoRA adapter on all its linear layers, as Hugging Face folders.

  make_lora.py OUT --preset 1.5b --rank 16 [--world 8]

makes OUT/base, unless it is there, and OUT/adapter-RANK. They hold what is in the checkpoint that
make_big.py CKPT --lora --stage 3 with the same preset, rank and world writes, so one merged model is right for both.

RAM: the base. Needs: torch, transformers, peft, safetensors.
"""
import argparse
import os

from make_big import PRESETS, Layout, Values, build_model, expected

from safetensors.torch import save_file

LIVE = "base_model.model."  # before every name of a model that PEFT has wrapped


def write_base(folder, a, m, cfg):
    tensors = {n.removeprefix(LIVE).replace(".base_layer.", "."): t for n, t in expected(a, Layout(a, m), Values())
               if ".lora_" not in n}
    cfg.architectures = ["Qwen2ForCausalLM"]
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    cfg.save_pretrained(folder)  # last: says that the folder is complete
    print(f"{len(tensors)} tensors of the base")


def write_adapter(folder, a, m, base):
    tensors = {n.replace(".default.", "."): t for n, t in expected(a, Layout(a, m), Values()) if ".lora_" in n}
    config = m.peft_config["default"]
    config.inference_mode, config.base_model_name_or_path = True, base
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"), {"format": "pt"})
    config.save_pretrained(folder)
    print(f"{len(tensors)} tensors of the adapter")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--preset", choices=PRESETS, required=True)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--world", type=int, default=8, help="ranks of the checkpoint with the same values")
    # What make_big.py does by default
    p.set_defaults(lora=True, stage=3, dtype="bf16", frozen_dtype=None, sub_group_size=10**9, scale=0.02)
    a = p.parse_args()
    m, cfg = build_model(a)
    base = os.path.join(os.path.abspath(a.out), "base")
    if not os.path.exists(os.path.join(base, "config.json")):
        write_base(base, a, m, cfg)
    write_adapter(os.path.join(a.out, f"adapter-{a.rank}"), a, m, base)


if __name__ == "__main__":
    main()
