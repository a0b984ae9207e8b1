#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Write a ZeRO checkpoint of very many ranks in seconds, without torch: all metadata is real, payloads are holes.

  make_wide.py OUT                          512 ranks, ZeRO-3, the shapes of Llama 2 70B (723 parameters), 0.8 TB apparent
  make_wide.py OUT --params 5000            the same layers, more of them
  make_wide.py OUT --scale 32               sizes divided by 32: small enough to be merged (all weights are zero)
  make_wide.py OUT --stage 2 | --lora-frozen

Archives have torch.save's layout byte for byte (order of records, local headers, padding to 64 bytes, data
descriptors, zip64), and pickles are those of make_big.py, with the same classes and object identities. A CRC of 0
marks a payload as not computed, unless --crc asks for the true one. Needs a file system with holes.
"""
import argparse
import functools
import io
import os
import pickle
import struct
import sys
import types
import zlib
from collections import OrderedDict

DS_VERSION = "0.19.8"
TAG = "global_step3"


# ---- stand-ins for the classes that DeepSpeed and torch pickle ----

def importable(module, thing, name=None):
    """Lets pickle write a thing as a global of that module, which need not be installed."""
    thing.__module__, thing.__qualname__ = module, name or thing.__name__
    thing.__name__ = thing.__qualname__
    for name in (module.split(".")[0], module):  # import wants the package too
        sys.modules.setdefault(name, types.ModuleType(name))
    setattr(sys.modules[module], thing.__name__, thing)
    return thing


rebuild_tensor = importable("torch._utils", lambda: None, "_rebuild_tensor_v2")
rebuild_from_type = importable("torch._tensor", lambda: None, "_rebuild_from_type_v2")
STORAGE = {"fp32": (importable("torch", type("FloatStorage", (), {})), 4),
           "bf16": (importable("torch", type("BFloat16Storage", (), {})), 2)}


class Storage:
    def __init__(self, dtype, numel, data=None):
        self.dtype, self.numel, self.data = dtype, numel, data  # data None: a hole


class Tensor:
    def __init__(self, storage, shape, offset=0, grad=False, state=None):
        self.storage, self.shape, self.offset, self.grad, self.state = storage, shape, offset, grad, state

    def __reduce_ex__(self, protocol):
        strides = [1] * len(self.shape)
        for k in range(len(self.shape) - 1, 0, -1):
            strides[k - 1] = strides[k] * max(self.shape[k], 1)
        # A tuple of its own, since pickle writes an object met again as a reference; the same below.
        args = (self.storage, self.offset, tuple(list(self.shape)), tuple(strides), self.grad, OrderedDict())
        if self.state is None:
            return rebuild_tensor, args
        return rebuild_from_type, (rebuild_tensor, Tensor, args, self.state)


class Size:
    def __init__(self, shape): self.shape = shape
    def __reduce_ex__(self, protocol): return Size, (tuple(list(self.shape)),)


class ZeroStageEnum:
    def __init__(self, stage): self.stage = stage
    def __reduce_ex__(self, protocol): return ZeroStageEnum, (self.stage,)


class LossScaler:
    def __init__(self): self.cur_scale, self.dynamic = 1.0, False


class FragmentAddress:
    def __init__(self, numel, start): self.numel, self.start = numel, start


importable("torch", Tensor)
importable("torch", Size)
importable("deepspeed.runtime.zero.config", ZeroStageEnum)
importable("deepspeed.runtime.fp16.loss_scaler", LossScaler)
importable("deepspeed.utils.tensor_fragment", FragmentAddress, "fragment_address")


class Pickler(pickle.Pickler):
    """Storages become persistent ids numbered in the order in which they are met, as in torch.save."""

    def __init__(self, out):
        super().__init__(out, protocol=2)
        self.keys, self.storages = {}, []

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        key = self.keys.setdefault(id(obj), str(len(self.keys)))
        if len(self.keys) > len(self.storages):
            self.storages.append(obj)
        return "storage", STORAGE[obj.dtype][0], key, "cpu", obj.numel


# ---- torch.save's archive ----

@functools.lru_cache(None)
def crc_of_zeros(n):
    """CRC-32 of n zero bytes: one zero byte is a linear map of the 32-bit state, squared for each bit of n."""
    def times(m, v):
        r = 0
        for row in m:
            if v & 1: r ^= row
            v >>= 1
        return r
    # The state after a zero byte, of every single-bit state; zlib's crc is inverted before and after.
    m = [zlib.crc32(b"\0", (1 << k) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF for k in range(32)]
    state = 0xFFFFFFFF
    while n:
        if n & 1: state = times(m, state)
        m = [times(m, row) for row in m]
        n >>= 1
    return state ^ 0xFFFFFFFF


class Archive:
    """The bytes of a torch.save file as pieces (offset, bytes); what lies between is zero."""

    SMALL = 1 << 16  # smaller runs of zeros are written out, not left as holes

    def __init__(self, prefix, crc):
        self.prefix, self.crc, self.pos = prefix, crc, 0
        self.pieces, self.directory, self.entries = [(0, bytearray())], bytearray(), 0

    def put(self, data):
        self.pieces[-1][1].extend(data)
        self.pos += len(data)

    def skip(self, n):
        if n < self.SMALL:
            self.put(bytes(n))
        else:
            self.pos += n
            self.pieces.append((self.pos, bytearray()))

    def record(self, name, data=None, hole=0):
        name = f"{self.prefix}/{name}".encode()
        size = hole if data is None else len(data)
        crc = zlib.crc32(data) if data is not None else crc_of_zeros(hole) if self.crc or hole < self.SMALL else 0
        at, big = self.pos, 0xFFFFFFFF

        def zip64(stored):
            wide = struct.pack("<QQ", size, stored) if size >= big else b""
            wide += struct.pack("<Q", at) if at >= big else b""
            return struct.pack("<HH", 1, len(wide)) + wide if wide else b""

        extra = zip64(0)  # the stored size follows in the data descriptor
        flags = 0x808 if size else 0x800  # an empty record has no data descriptor
        pad = -(at + 30 + len(name) + len(extra) + 4) % 64
        self.put(struct.pack("<IHHHIIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0, len(name), len(extra) + 4 + pad))
        self.put(name + extra + struct.pack("<2sH", b"FB", pad) + b"Z" * pad)
        self.put(data) if data is not None else self.skip(hole)
        if size:
            self.put(struct.pack("<IIQQ" if extra else "<IIII", 0x08074B50, crc, size, size))
        self.directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, crc, min(size, big),
                                      min(size, big), len(name), len(extra), 0, 0, 0, 0, min(at, big))
        self.directory += name + zip64(size)
        self.entries += 1

    def finish(self):
        at, n, size = self.pos, self.entries, len(self.directory)
        self.put(self.directory)
        end = self.pos
        self.put(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45, 0, 0, n, n, size, at))
        self.put(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self.put(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, min(n, 0xFFFF), min(n, 0xFFFF), min(size, 0xFFFFFFFF),
                             min(at, 0xFFFFFFFF), 0))


def archive(prefix, obj, crc):
    out = io.BytesIO()
    p = Pickler(out)
    p.dump(obj)
    a = Archive(prefix, crc)
    a.record("data.pkl", out.getvalue())
    a.record(".format_version", b"1")
    a.record(".storage_alignment", b"64")
    a.record("byteorder", b"little")
    for k, s in enumerate(p.storages):
        a.record(f"data/{k}", s.data, s.numel * STORAGE[s.dtype][1])
    a.record("version", b"3\n")
    a.record(".data/serialization_id", b"%040d" % 0)
    a.finish()
    return a


def write_file(folder, name, a):
    """Writes an archive, which may have been made for another rank with a name of the same length."""
    old, new = a.prefix.encode() + b"/", name.encode() + b"/"
    with open(os.path.join(folder, name + ".pt"), "wb") as f:
        for at, data in a.pieces:
            f.seek(at)
            f.write(data.replace(old, new) if old != new else data)
        f.truncate(a.pos)
    return a.pos


# ---- the checkpoint's content ----

def llama(a):
    """[(name, shape)] in the order of named_parameters."""
    h, i, v, kv = (max(x // a.scale, 1) for x in (8192, 28672, a.vocab, 1024))
    layer = [("self_attn.q_proj", (h, h)), ("self_attn.k_proj", (kv, h)), ("self_attn.v_proj", (kv, h)),
             ("self_attn.o_proj", (h, h)), ("mlp.gate_proj", (i, h)), ("mlp.up_proj", (i, h)),
             ("mlp.down_proj", (h, i)), ("input_layernorm", (h,)), ("post_attention_layernorm", (h,))]
    layers = -(-(a.params - 3) // len(layer)) if a.params else 80
    body = [(f"model.layers.{n}.{name}.weight", s) for n in range(layers) for name, s in layer]
    if a.params:
        body = body[: a.params - 3]
    return ([("model.embed_tokens.weight", (v, h))] + body
            + [("model.norm.weight", (h,)), ("lm_head.weight", (v, h))])


def with_lora(params, rank):
    """PEFT's names, a pair of factors beside every linear layer of the decoder: (name, shape, trainable)."""
    out = []
    for name, shape in params:
        name = "base_model.model." + name
        if len(shape) < 2 or "embed" in name or "lm_head" in name:
            out.append((name, shape, False))
            continue
        stem = name[: -len("weight")]
        out += [(stem + "base_layer.weight", shape, False), (stem + "lora_A.default.weight", (rank, shape[1]), True),
                (stem + "lora_B.default.weight", (shape[0], rank), True)]
    return out


def module_metadata(names):
    """state_dict()._metadata: every module in order of traversal, those without parameters included."""
    seen = OrderedDict()
    for name in names:
        parts = name.split(".")[:-1]
        for k in range(len(parts) + 1):
            seen.setdefault(".".join(parts[:k]))
        here = ".".join(parts)
        if here.endswith("mlp.down_proj"): seen[here[: -len("down_proj")] + "act_fn"] = None
        if here.endswith("model.norm"): seen[here[: -len("norm")] + "rotary_emb"] = None
    return OrderedDict((m, {"version": 1}) for m in seen)


def numel(shape):
    n = 1
    for s in shape: n *= s
    return n


def adam_param_groups(decays):
    return [{"weight_decay": wd, "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "amsgrad": False, "maximize": False,
             "foreach": None, "capturable": False, "differentiable": False, "fused": None,
             "decoupled_weight_decay": True, "params": [g]} for g, wd in enumerate(decays)]


class Checkpoint:
    def __init__(self, world, stage, params, sub_group_size=10**9):
        """params: [(name, shape, trainable)]"""
        self.world, self.stage, self.params = world, stage, params
        self.id_of = {name: k for k, (name, _, _) in enumerate(params)}
        self.frozen = [(n, s) for n, s, train in params if not train]
        trained = [(n, s) for n, s, train in params if train]
        if self.frozen:
            self.groups, self.decays = [trained], [0.01]
        else:  # the Trainer's two groups
            plain = [x for x in trained if x[0].endswith("bias") or "norm" in x[0]]
            names = {n for n, _ in plain}
            self.groups, self.decays = [[x for x in trained if x[0] not in names], plain], [0.01, 0.0]
        self.sub, self.sub_of_group = [], []
        for group in self.groups:
            first, size = len(self.sub), sub_group_size
            for x in group:
                if size >= sub_group_size:
                    self.sub.append([])
                    size = 0
                self.sub[-1].append(x)
                size += self.part(x[1])
            self.sub_of_group.append(list(range(first, len(self.sub))))

    def part(self, shape):
        return -(-numel(shape) // self.world)

    def ds_config(self):
        return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
                "zero_optimization": {"stage": self.stage}, "zero_allow_untested_optimizer": True,
                "gradient_clipping": 1.0}

    def adam_state(self, n):
        def flat(): return Tensor(Storage("fp32", n), (n,))
        return {"step": Tensor(Storage("fp32", 1, struct.pack("<f", 3.0)), ()), "exp_avg": flat(), "exp_avg_sq": flat()}

    def optim(self, rank):
        inner = self.optim3() if self.stage == 3 else self.optim2(rank)
        return {"optimizer_state_dict": inner, "ds_config": self.ds_config(), "ds_version": DS_VERSION}

    def optim3(self):
        state, flat = {}, []
        for s, sub in enumerate(self.sub):
            n = sum(self.part(shape) for _, shape in sub)
            state[s] = self.adam_state(n)
            flat.append(Tensor(Storage("fp32", n), (n,), grad=True,
                               state={"ds_id": f"{self.id_of[sub[0][0]]}_{self.id_of[sub[-1][0]]}"}))
        groups = adam_param_groups(self.decays)
        for g, subs in zip(groups, self.sub_of_group):
            g["params"] = subs
        return {"zero_stage": ZeroStageEnum(3), "loss_scaler": LossScaler(), "dynamic_loss_scale": False,
                "overflow": False, "partition_count": self.world,
                "optimizer_state_dict": {"state": state, "param_groups": groups}, "fp32_flat_groups": flat}

    def padded(self, group):
        align = 2 * self.world
        return -(-sum(numel(s) for _, s in group) // align) * align

    def optim2(self, rank):
        state, parts, paddings, maps = {}, [], [], []
        for g, group in enumerate(self.groups):
            size = self.padded(group) // self.world
            first, total = rank * size, sum(numel(s) for _, s in group)
            need = min(max(total - first, 0), size)
            state[g] = self.adam_state(size)
            parts.append(Tensor(Storage("fp32", size), (need,), grad=True))
            paddings.append(size - need)
            slices, off = OrderedDict(), 0
            for name, shape in group:
                lo, hi = max(off, first), min(off + numel(shape), first + size)
                if lo < hi:
                    slices[name] = FragmentAddress(hi - lo, lo - first)
                off += numel(shape)
            maps.append(slices)
        return {"loss_scaler": LossScaler(), "dynamic_loss_scale": False, "overflow": False, "clip_grad": 1.0,
                "base_optimizer_state": {"state": state, "param_groups": adam_param_groups(self.decays)},
                "single_partition_of_fp32_groups": parts, "zero_stage": ZeroStageEnum(self.stage),
                "group_paddings": paddings, "param_alignment_paddings": [[0] * len(g) for g in self.groups],
                "partition_count": [self.world] * len(self.groups), "ds_version": DS_VERSION,
                "param_slice_mappings": maps}

    def model(self):
        values, frozen_shapes, fragments = {}, OrderedDict(), OrderedDict()
        if self.stage == 3:
            values = {n: Tensor(Storage("bf16", 0), (0,)) for n, _, _ in self.params}
            for name, shape in self.frozen:
                frozen_shapes[name] = Size(shape)
                fragments[name] = Tensor(Storage("bf16", self.part(shape)), (self.part(shape),))
        else:
            for group in self.groups:
                flat, off = Storage("bf16", self.padded(group)), 0
                for name, shape in group:
                    values[name] = Tensor(flat, shape, off)
                    off += numel(shape)
            for name, shape in self.frozen:
                values[name] = Tensor(Storage("bf16", numel(shape)), shape)
                frozen_shapes[name], fragments[name] = Size(shape), values[name]
        # state_dict's keys are strings of their own.
        module = OrderedDict((n.encode().decode(), values[n]) for n, _, _ in self.params)
        module._metadata = module_metadata(module)
        shapes = [OrderedDict((n, Size(s)) for n, s in g) for g in (self.sub if self.stage == 3 else self.groups)]
        return {"module": module, "buffer_names": [], "optimizer": None, "param_shapes": shapes,
                "frozen_param_shapes": frozen_shapes, "shared_params": {},
                "frozen_param_fragments": fragments, "lr_scheduler": None, "data_sampler": None, "random_ltd": None,
                "skipped_steps": 0, "global_steps": 3, "global_samples": 3 * self.world, "dp_world_size": self.world,
                "mp_world_size": 1, "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
                "ds_config": self.ds_config(), "ds_version": DS_VERSION}

    def write(self, out, crc=False):
        """Returns (files, apparent bytes)."""
        folder = os.path.join(out, TAG)
        os.makedirs(folder, exist_ok=True)
        made, files, total = {}, 0, 0

        def save(name, make, key):
            nonlocal files, total
            if key is None:
                a = archive(name, make(), crc)
            else:  # in stage 3 all ranks' files are alike but for the name inside
                if key + (len(name),) not in made:
                    made[key + (len(name),)] = archive(name, make(), crc)
                a = made[key + (len(name),)]
            files, total = files + 1, total + write_file(folder, name, a)

        for r in range(self.world):
            if self.stage == 3:
                save(f"zero_pp_rank_{r}_mp_rank_00_model_states", self.model, ("model",))
            elif r == 0:
                save("mp_rank_00_model_states", self.model, None)
            save(f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states", lambda: self.optim(r),
                 ("optim",) if self.stage == 3 else None)
        with open(os.path.join(out, "latest"), "w") as f:
            f.write(TAG)
        return files, total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--world", type=int, default=512)
    p.add_argument("--stage", type=int, choices=(2, 3), default=3)
    p.add_argument("--vocab", type=int, default=32000, help="128256 for Llama 3")
    p.add_argument("--params", type=int, help="how many parameters, instead of those of 80 layers")
    p.add_argument("--scale", type=int, default=1, help="divide all sizes by this")
    p.add_argument("--sub-group-size", type=int, default=10**9)
    p.add_argument("--lora-frozen", action="store_true", help="a frozen bf16 base and trained LoRA factors")
    p.add_argument("--rank", type=int, default=16, help="of the LoRA factors")
    p.add_argument("--crc", action="store_true", help="the true CRC of every payload")
    a = p.parse_args()
    params = llama(a)
    full = with_lora(params, a.rank) if a.lora_frozen else [(n, s, True) for n, s in params]
    files, total = Checkpoint(a.world, a.stage, full, sub_group_size=a.sub_group_size).write(a.out, a.crc)
    print(f"{files} files, {total / 1e9:.1f} GB apparent, {len(full)} parameters, "
          f"{sum(numel(s) for _, s, _ in full) / 1e9:.2f} G elements")


if __name__ == "__main__":
    main()
