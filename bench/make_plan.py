#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Merge plan of a ZeRO-1/2/3 checkpoint as text, without torch: which byte range of which file goes where.

  make_plan.py CKPT PLAN [--dtype fp32|bf16|fp16]      (one safetensors file as destination)

Lines:  H <header file> <header bytes> | T <total data elements> | F <file> | E <file no> <src offset> <elements> <dst element>
E lines are in destination order and cover every element once. Masters must be fp32. Aliases are left out as
safetensors wants. Frozen parameters are not handled: this is a measuring aid for merge_floor, not a merger.
"""
import argparse
import glob
import io
import json
import math
import os
import pickle
import re
import struct
import zipfile
from collections import OrderedDict


class Obj:
    def __init__(self, *a): self.args = a
    def __setstate__(self, s): self.__dict__.update(s)


class Unpickler(pickle.Unpickler):
    """Tensors become (storage id, offset, size); whatever is not needed becomes an Obj."""

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return lambda t=(): tuple(t)
        if name.endswith("Storage"):
            return name
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, size, *rest: (storage, offset, size)
        if name == "_rebuild_from_type_v2":
            return lambda function, type_, args, state: function(*args)
        return Obj

    def persistent_load(self, pid): return pid


def load(path):
    """The pickle, and where each storage's bytes start in the file."""
    z = zipfile.ZipFile(path)
    name = next(n for n in z.namelist() if n.endswith("data.pkl"))
    prefix = name[: -len("data.pkl")] + "data/"
    starts = {}
    with open(path, "rb") as f:
        for i in z.infolist():
            if i.filename.startswith(prefix):
                f.seek(i.header_offset + 26)
                n, extra = struct.unpack("<HH", f.read(4))
                starts[i.filename[len(prefix):]] = i.header_offset + 30 + n + extra
    return Unpickler(io.BytesIO(z.read(name))).load(), starts


def rank_of(path):
    found = re.search(r"pp_rank_(\d+)", path)
    return int(found[1]) if found else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ckpt")
    p.add_argument("plan")
    p.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    a = p.parse_args()
    with open(os.path.join(a.ckpt, "latest")) as f:
        tag = os.path.join(a.ckpt, f.read().strip())
    optim = sorted(glob.glob(tag + "/*_optim_states.pt"), key=rank_of)
    world = len(optim)
    model, _ = load(min(glob.glob(tag + "/*_model_states.pt"), key=rank_of))
    flats = []  # per rank: [(byte offset, elements) of each group]
    for f in optim:
        content, starts = load(f)
        inner = content["optimizer_state_dict"]
        key = "fp32_flat_groups" if "fp32_flat_groups" in inner else "single_partition_of_fp32_groups"
        flats.append([(starts[storage[2]] + 4 * offset, size[0]) for storage, offset, size in inner[key]])
    stage3 = key == "fp32_flat_groups"
    width = 4 if a.dtype == "fp32" else 2
    dtype = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[a.dtype]
    dst, extents, header = 0, [], {"__metadata__": {"format": "pt"}}
    for g, shapes in enumerate(model["param_shapes"]):
        pos = 0
        for name, shape in shapes.items():
            n = math.prod(shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [dst * width, (dst + n) * width]}
            if stage3:  # every rank holds an equal part of each parameter, the last ones padding
                part = -(-n // world)
                for r in range(world):
                    k = min(max(n - r * part, 0), part)
                    if k:
                        extents.append((r, flats[r][g][0] + 4 * pos, k, dst))
                        dst += k
                pos += part
            else:  # the group is one vector cut into equal parts
                start = 0
                for r in range(world):
                    offset, length = flats[r][g]
                    lo, hi = max(pos, start), min(pos + n, start + length)
                    if lo < hi:
                        extents.append((r, offset + 4 * (lo - start), hi - lo, dst))
                        dst += hi - lo
                    start += length
                pos += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(a.plan + ".header", "wb") as o:
        o.write(struct.pack("<Q", len(text)) + text)
    with open(a.plan, "w") as o:
        o.write(f"H {os.path.abspath(a.plan)}.header {len(text) + 8}\nT {dst}\n")
        for f in optim:
            o.write(f"F {os.path.abspath(f)}\n")
        for e in extents:
            o.write("E %d %d %d %d\n" % e)
    print(f"{len(extents)} extents, {dst} elements, {dst * 4 / 1e9:.3f} GB of masters, median extent "
          f"{sorted(e[2] for e in extents)[len(extents) // 2] * 4} bytes")


if __name__ == "__main__":
    main()
