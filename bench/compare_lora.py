#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""How many elements of a merged bf16 model have other bits than they should.

  compare_lora.py GOT WANT                            two folders of safetensors
  compare_lora.py GOT --base BASE --adapter ADAPTER   against W + scale * B A in float64, rounded once

Prints {"elements": n, "differing": n}; fails if names, shapes or dtypes are not the same. Needs: torch, safetensors.
"""
import argparse
import glob
import json
import os
import sys

import torch
from safetensors import safe_open


def tensors_of(folder):
    """{name: function that loads it}"""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        file = safe_open(path, "pt")
        found.update({name: lambda f=file, n=name: f.get_tensor(n) for name in file.keys()})
    return found


def rounded(x):
    """float64 to bf16 with one rounding. By way of float32, where what is no tie may become one: then it goes on."""
    f = x.float()
    bits = f.view(torch.int32)
    tie, beyond = (bits & 0xFFFF) == 0x8000, x.abs() - f.double().abs()
    return (bits + torch.where(tie, beyond.sign().int(), 0)).view(torch.float32).bfloat16()


def merged(base, adapter):
    with open(os.path.join(adapter, "adapter_config.json")) as f:
        config = json.load(f)
    scale = config["lora_alpha"] / config["r"]
    factors = tensors_of(adapter)

    def one(load, stem):
        w = load()
        if stem + "lora_A.weight" not in factors:
            return w
        a, b = (factors.pop(f"{stem}lora_{x}.weight")().double() for x in "AB")
        return rounded((b @ a).mul_(scale).add_(w))

    return {name: lambda load=load, stem=f"base_model.model.{name.removesuffix('weight')}": one(load, stem)
            for name, load in tensors_of(base).items()}, factors


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("got")
    p.add_argument("want", nargs="?")
    p.add_argument("--base")
    p.add_argument("--adapter")
    a = p.parse_args()
    if bool(a.want) == bool(a.base and a.adapter):
        p.error("either WANT, or --base and --adapter")
    got = tensors_of(a.got)
    want, factors = (tensors_of(a.want), {}) if a.want else merged(a.base, a.adapter)
    if not got or got.keys() != want.keys():
        sys.exit(f"only in one of them: {sorted(got.keys() ^ want.keys())}")
    elements = differing = 0
    for name in want:
        g, w = got[name](), want[name]()
        if (g.dtype, g.shape) != (w.dtype, w.shape) or w.dtype != torch.bfloat16:
            sys.exit(f"{name}: {g.dtype} {tuple(g.shape)}, not {w.dtype} {tuple(w.shape)}")
        elements += w.numel()
        differing += int((g.view(torch.int16) != w.view(torch.int16)).sum())
    if factors:
        sys.exit(f"belong to no tensor of the base: {sorted(factors)}")
    print(json.dumps({"elements": elements, "differing": differing}))


if __name__ == "__main__":
    main()
