#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Write a large, realistic DeepSpeed ZeRO checkpoint without training.

Container, pickled classes, keys, order and layout follow what DeepSpeed 0.19.8 writes for Qwen2 models with torch
AdamW and bf16: --preset tiny has been compared structurally with really trained checkpoints. Values are a pool of
normal deviates read at pseudo-random offsets, so every shard can be made again alone and checked later:

  make_big.py OUT --stage 3 --world 8 --preset 0.5b --moments
  python zero_to_fp32.py OUT MERGED ; make_big.py OUT --stage 3 --world 8 --preset 0.5b --verify MERGED

RAM: about one rank's file. Needs: torch, deepspeed, transformers (+ peft for --lora). One process, deterministic.
"""
import argparse
import glob
import os
import shutil
import sys
import time
from collections import OrderedDict

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported, further down
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

PRESETS = {  # hidden, layers, intermediate, vocab, heads, kv heads, tied
    "tiny": (64, 2, 176, 500, 4, 2, True),
    "0.5b": (896, 24, 4864, 151936, 14, 2, True),
    "1.5b": (1536, 28, 8960, 151936, 12, 2, True),
    "7b-like": (3584, 28, 18944, 152064, 28, 4, False),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BLOCK = 1 << 20
GARBAGE = -3.0e38  # stage-3 shard padding is uninitialised in real files: must never reach an output


class Values:
    """Deterministic flat vectors: vec(key, lo, hi) is elements [lo, hi) of an endless vector named by key."""

    def __init__(self, bits=24):
        g = torch.Generator().manual_seed(1234)
        self.mask = (1 << bits) - 1
        self.pool = torch.randn((1 << bits) + BLOCK, generator=g)

    def vec(self, key, lo, hi, scale, out=None, square=False):
        out = torch.empty(hi - lo) if out is None else out
        pos = lo
        while pos < hi:
            b = pos // BLOCK
            end = min(hi, (b + 1) * BLOCK)
            off = ((key * 0x9E3779B1 + b * 0x85EBCA77 + 0x165667B1) * 0xC2B2AE3D >> 7) & self.mask
            off += pos - b * BLOCK
            src = self.pool[off: off + (end - pos)]
            dst = out[pos - lo: end - lo]
            torch.mul(src, scale, out=dst)
            if square:
                dst.mul_(dst)
            pos = end
        return out


def build_model(a):
    """Names, shapes, aliases and state_dict metadata from the real model classes, on the meta device."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    h, l, i, v, nh, kv, tied = PRESETS[a.preset]
    cfg = Qwen2Config(hidden_size=h, num_hidden_layers=l, intermediate_size=i, vocab_size=v, num_attention_heads=nh,
                      num_key_value_heads=kv, tie_word_embeddings=tied, torch_dtype=torch.bfloat16)
    with torch.device("meta"):
        m = Qwen2ForCausalLM(cfg)
        if tied:
            m.tie_weights()
        if a.lora:
            from peft import LoraConfig, get_peft_model
            m = get_peft_model(m, LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules="all-linear",
                                             task_type="CAUSAL_LM"))
    return m, cfg


def groups_of(m, lora):
    named = [(n, p) for n, p in m.named_parameters() if p.requires_grad]
    if lora:
        return [named], [0.01]
    nod = [x for x in named if x[0].endswith("bias") or "norm" in x[0]]
    ids = {id(p) for _, p in nod}
    return [[x for x in named if id(x[1]) not in ids], nod], [0.01, 0.0]


def adam_param_groups(wds):
    return [{"weight_decay": wd, "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "amsgrad": False, "maximize": False,
             "foreach": None, "capturable": False, "differentiable": False, "fused": None,
             "decoupled_weight_decay": True, "params": [g]} for g, wd in enumerate(wds)]


class Layout:
    """Which vector key and which element range every flat group and parameter has."""

    def __init__(self, a, m):
        self.a, self.N = a, a.world
        self.groups, self.wds = groups_of(m, a.lora)
        self.ds_id = {n: k for k, (n, _) in enumerate(m.named_parameters())}
        self.frozen = [(n, p) for n, p in m.named_parameters() if not p.requires_grad]
        if a.stage == 3:  # split into sub-groups
            self.sub, self.sub_of_group = [], []
            for g in self.groups:
                cur, n, idx = [], 0, []
                for name, p in g:
                    cur.append((name, p))
                    n += -(-p.numel() // self.N)
                    if n >= a.sub_group_size:
                        idx.append(len(self.sub))
                        self.sub.append(cur)
                        cur, n = [], 0
                if cur:
                    idx.append(len(self.sub))
                    self.sub.append(cur)
                self.sub_of_group.append(idx)

    # stage 3: the vector of (sub-group s, rank r) has key 1000*s + r
    def sub_numel(self, s):
        return sum(-(-p.numel() // self.N) for _, p in self.sub[s])

    # stage 1/2: the vector of group g has key 7 + g ; length aligned to 2N
    def group_numel(self, g):
        return sum(p.numel() for _, p in self.groups[g])

    def group_padded(self, g):
        al = 2 * self.N
        return -(-self.group_numel(g) // al) * al


def stage3_rank(a, L, V, r):
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    state, flat = {}, []
    for s in range(len(L.sub)):
        n = L.sub_numel(s)
        if a.moments:
            state[s] = {"step": torch.tensor(3.0), "exp_avg": V.vec(500000 + 1000 * s + r, 0, n, 1e-3),
                        "exp_avg_sq": V.vec(900000 + 1000 * s + r, 0, n, 1e-3, square=True)}
        t = V.vec(1000 * s + r, 0, n, a.scale)
        off = 0
        for _, p in L.sub[s]:  # garbage behind the real elements of the last rank(s)
            c = -(-p.numel() // L.N)
            real = min(max(p.numel() - r * c, 0), c)
            t[off + real: off + c] = GARBAGE
            off += c
        t.requires_grad_(True)
        t.ds_id = f"{L.ds_id[L.sub[s][0][0]]}_{L.ds_id[L.sub[s][-1][0]]}"
        flat.append(t)
    pg = adam_param_groups(L.wds)
    for g, d in zip(L.sub_of_group, pg):
        d["params"] = g
    ls = LossScaler.__new__(LossScaler)
    ls.cur_scale, ls.dynamic = 1.0, False
    return {"zero_stage": ZeroStageEnum(3), "loss_scaler": ls, "dynamic_loss_scale": False, "overflow": False,
            "partition_count": L.N, "optimizer_state_dict": {"state": state, "param_groups": pg},
            "fp32_flat_groups": flat}


def stage12_rank(a, L, V, r):
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address
    state, parts, pads, maps = {}, [], [], []
    for g in range(len(L.groups)):
        part = L.group_padded(g) // L.N
        need = min(max(L.group_numel(g) - r * part, 0), part)
        if a.moments:
            m1 = V.vec(500000 + g, r * part, (r + 1) * part, 1e-3)
            m2 = V.vec(900000 + g, r * part, (r + 1) * part, 1e-3, square=True)
            m1[need:] = 0
            m2[need:] = 0
            state[g] = {"step": torch.tensor(3.0), "exp_avg": m1, "exp_avg_sq": m2}
        t = V.vec(7 + g, r * part, (r + 1) * part, a.scale)
        t[need:] = 0
        parts.append((t[:need] if need < part else t).requires_grad_(True))
        pads.append(part - need)
        mp, off = OrderedDict(), 0
        for name, p in L.groups[g]:
            lo, hi = max(off, r * part), min(off + p.numel(), (r + 1) * part)
            if lo < hi:
                mp[name] = fragment_address(numel=hi - lo, start=lo - r * part)
            off += p.numel()
        maps.append(mp)
    ls = LossScaler.__new__(LossScaler)
    ls.cur_scale, ls.dynamic = 1.0, False
    return {"loss_scaler": ls, "dynamic_loss_scale": False, "overflow": False, "clip_grad": 1.0,
            "base_optimizer_state": {"state": state, "param_groups": adam_param_groups(L.wds)},
            "single_partition_of_fp32_groups": parts, "zero_stage": ZeroStageEnum(a.stage), "group_paddings": pads,
            "param_alignment_paddings": [[0] * len(g) for g in L.groups], "partition_count": [L.N] * len(L.groups),
            "ds_version": a.ds_version, "param_slice_mappings": maps}


def frozen_key(k, r):
    return 2000000 + 100 * k + r


def model_file(a, L, V, m, r, ds_config):
    dt, fdt = DTYPES[a.dtype], DTYPES[a.frozen_dtype or a.dtype]
    sd = m.state_dict()
    module = OrderedDict()
    module._metadata = sd._metadata
    names = dict(m.named_parameters(remove_duplicate=False))
    frozen_names = {n for n, _ in L.frozen}
    shapes = [OrderedDict((n, p.shape) for n, p in g) for g in (L.sub if a.stage == 3 else L.groups)]
    ffr, fsh = OrderedDict(), OrderedDict()
    first = {}
    for n, p in names.items():
        first.setdefault(id(p), n)
    if a.stage == 3:
        cache = {}
        for n in sd:
            p = names[n]
            if id(p) not in cache:
                cache[id(p)] = torch.empty(0, dtype=fdt if first[id(p)] in frozen_names else dt)
            module[n] = cache[id(p)].detach()
        for k, (n, p) in enumerate(L.frozen):
            c = -(-p.numel() // L.N)
            t = V.vec(frozen_key(k, r), 0, c, a.scale)
            t[min(max(p.numel() - r * c, 0), c):] = GARBAGE
            fsh[n], ffr[n] = p.shape, t.to(fdt)
    else:
        flats = []
        for g in range(len(L.groups)):
            n = L.group_numel(g)
            f = torch.zeros(L.group_padded(g), dtype=dt)
            for lo in range(0, n, 32 * BLOCK):
                hi = min(n, lo + 32 * BLOCK)
                f[lo:hi] = V.vec(7 + g, lo, hi, a.scale)
            flats.append(f)
        at = {}
        for g in range(len(L.groups)):
            off = 0
            for n, p in L.groups[g]:
                at[n] = flats[g][off: off + p.numel()].view(p.shape)
                off += p.numel()
        for k, (n, p) in enumerate(L.frozen):
            at[n] = V.vec(frozen_key(k, 0), 0, p.numel(), a.scale).to(fdt).view(p.shape)
            if a.stage == 2:
                fsh[n], ffr[n] = p.shape, at[n]
        for n in sd:
            module[n] = at[first[id(names[n])]]
    shared = {n: first[id(p)] for n, p in names.items() if first[id(p)] != n} if r == 0 else {}
    keep = a.stage >= 2
    return {"module": module, "buffer_names": [], "optimizer": None, "param_shapes": shapes,
            "frozen_param_shapes": fsh if keep else None, "shared_params": shared,
            "frozen_param_fragments": ffr if keep else None, "lr_scheduler": None, "data_sampler": None,
            "random_ltd": None, "skipped_steps": 0, "global_steps": 3, "global_samples": 3 * L.N,
            "dp_world_size": L.N, "mp_world_size": 1, "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
            "ds_config": ds_config, "ds_version": a.ds_version}


def write(a):
    import deepspeed
    a.ds_version = deepspeed.__version__
    m, cfg = build_model(a)
    L, V = Layout(a, m), Values()
    prec = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True}}, "fp32": {}}[a.dtype]
    ds_config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, **prec,
                 "zero_optimization": {"stage": a.stage}, "zero_allow_untested_optimizer": True, "gradient_clipping": 1.0}
    tag = os.path.join(a.out, "global_step3")
    os.makedirs(tag, exist_ok=True)
    pre = "bf16_" if a.dtype == "bf16" else ""
    t0, total = time.time(), 0
    for r in range(a.world):
        if a.stage == 3 or r == 0:
            name = f"zero_pp_rank_{r}_mp_rank_00_model_states.pt" if a.stage == 3 else "mp_rank_00_model_states.pt"
            f = os.path.join(tag, name)
            torch.save(model_file(a, L, V, m, r, ds_config), f)
            total += os.path.getsize(f)
        inner = stage3_rank(a, L, V, r) if a.stage == 3 else stage12_rank(a, L, V, r)
        f = os.path.join(tag, f"{pre}zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
        torch.save({"optimizer_state_dict": inner, "ds_config": ds_config, "ds_version": a.ds_version}, f)
        total += os.path.getsize(f)
        print(f"rank {r}: {total/1e9:.2f} GB, {time.time()-t0:.1f} s", flush=True)
    with open(os.path.join(a.out, "latest"), "w") as f:
        f.write("global_step3")
    src = os.path.join(os.path.dirname(deepspeed.__file__), "utils", "zero_to_fp32.py")
    shutil.copy(src, a.out)


def expected(a, L, V):
    """name -> fp32 (or frozen dtype) tensor, one at a time."""
    fdt = DTYPES[a.frozen_dtype or a.dtype]
    for k, (n, p) in enumerate(L.frozen):
        if a.stage == 3:
            c = -(-p.numel() // L.N)
            t = torch.cat([V.vec(frozen_key(k, r), 0, c, a.scale) for r in range(L.N)])[: p.numel()]
        else:
            t = V.vec(frozen_key(k, 0), 0, p.numel(), a.scale)
        yield n, t.to(fdt).view(p.shape)
    if a.stage == 3:
        for s, g in enumerate(L.sub):
            off = 0
            for n, p in g:
                c = -(-p.numel() // L.N)
                t = torch.cat([V.vec(1000 * s + r, off, off + c, a.scale) for r in range(L.N)])[: p.numel()]
                off += c
                yield n, t.view(p.shape)
    else:
        for g in range(len(L.groups)):
            off = 0
            for n, p in L.groups[g]:
                yield n, V.vec(7 + g, off, off + p.numel(), a.scale).view(p.shape)
                off += p.numel()


def verify(a):
    m, _ = build_model(a)
    L, V = Layout(a, m), Values()
    files = sorted(glob.glob(os.path.join(a.verify, "*.bin")) + glob.glob(os.path.join(a.verify, "*.safetensors")))
    got = {}
    for f in files:
        if f.endswith(".bin"):
            got.update(torch.load(f, mmap=True, weights_only=True))
        else:
            from safetensors import safe_open
            h = safe_open(f, "pt")
            got.update({k: (lambda h=h, k=k: h.get_tensor(k)) for k in h.keys()})
    n = bad = 0
    for name, want in expected(a, L, V):
        t = got.get(name)
        t = t() if callable(t) else t
        view = {4: torch.int32, 2: torch.int16}
        ok = t is not None and t.shape == want.shape and t.element_size() == want.element_size() and \
            torch.equal(t.contiguous().view(view[t.element_size()]), want.contiguous().view(view[want.element_size()]))
        if t is not None and not ok and t.shape == want.shape:  # converted output
            ok = torch.equal(t, want.to(t.dtype))
        n += 1
        bad += not ok
        if not ok:
            print("MISMATCH", name, None if t is None else (t.dtype, tuple(t.shape)))
    extra = set(got) - {n for n, _ in m.named_parameters()}
    print(f"{n} tensors, {bad} bad, {len(got)} in output, names beyond parameters: {sorted(extra)}")
    return 1 if bad else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--stage", type=int, choices=(1, 2, 3), required=True)
    p.add_argument("--world", type=int, required=True)
    p.add_argument("--preset", choices=PRESETS, required=True)
    p.add_argument("--dtype", choices=DTYPES, default="bf16")
    p.add_argument("--moments", action="store_true", help="Adam's two moments, twice the size of the masters")
    p.add_argument("--lora", action="store_true", help="a frozen base and trained LoRA factors")
    p.add_argument("--rank", type=int, default=16, help="of the LoRA factors")
    p.add_argument("--frozen-dtype", choices=DTYPES)
    p.add_argument("--sub-group-size", type=int, default=10**9)
    p.add_argument("--scale", type=float, default=0.02, help="standard deviation of the weights")
    p.add_argument("--verify", metavar="MERGED_DIR", help="compare a merge of OUT instead of writing it")
    a = p.parse_args()
    torch.set_num_threads(2)
    sys.exit(verify(a) if a.verify else write(a))


if __name__ == "__main__":
    main()
