# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures and their truth, and a checkpoint that is large enough to interrupt."""

import json
import pathlib
from collections import OrderedDict

import numpy as np
from safetensors import safe_open

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
ZERO_CASES = sorted(path.parent.name for path in (FIXTURES / "zero").glob("*/case.json"))
HF_CASES = sorted(path.parent.name for path in (FIXTURES / "hf").glob("*/case.json"))
# Layouts that are refused by name.
REFUSED = ("-moe4-", "-pipe2-", "-tp2-")
READABLE_ZERO = [case for case in ZERO_CASES if not any(word in case for word in REFUSED)]


def zero(case):
    return FIXTURES / "zero" / case / "ckpt"


def case_json(kind, case):
    return json.loads((FIXTURES / kind / case / "case.json").read_text())


def hf_checkpoints():
    """(id, folder) of everything in hf/ that a training run saved with DeepSpeed."""
    found = []
    for case in HF_CASES:
        for folder in sorted((FIXTURES / "hf" / case).iterdir()):
            if folder.name in ("checkpoint-2", "final", "state", "last.ckpt") and (folder / "latest").exists():
                found.append((f"{case}-{folder.name}", folder))
    return found


def truth_of(folder):
    """name -> (dtype, shape, bytes), and alias -> kept name, of the case that ``folder`` belongs to."""
    tensors, aliases = {}, {}
    path = folder.parent / "truth.safetensors"
    with safe_open(str(path), "np") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
    for name, value in raw_tensors(path).items():
        # hf/: buffers that are not persistent are in no checkpoint.
        if not name.startswith("buffer:"):
            tensors[name] = value
    return tensors, aliases


def raw_tensors(path):
    """The tensors of a safetensors file as (dtype, shape, bytes), read without any library."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[8 + size :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


NUMPY_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "BOOL": "bool", "U8": "uint8",
}  # fmt: skip


def described(array):
    """(dtype, shape, bytes) of an array of either framework."""
    if isinstance(array, np.ndarray):
        names = {name: word for word, name in NUMPY_NAMES.items()}
        return names[array.dtype.name], array.shape, array.tobytes()
    import torch

    names = {getattr(torch, name): word for word, name in NUMPY_NAMES.items()}
    flat = array.contiguous().reshape(-1).view(torch.uint8)
    return names[array.dtype], tuple(array.shape), flat.numpy().tobytes()


def write_big_zero3(folder, megabytes, ranks=2):
    """A stage-3 checkpoint of fp32 masters, as DeepSpeed lays it out: shards of ``megabytes`` in all."""
    import torch

    tag = folder / "global_step1"
    tag.mkdir(parents=True)
    (folder / "latest").write_text("global_step1")
    count = 8
    numel = megabytes * (1 << 20) // 4 // count
    shapes = OrderedDict((f"layer{i}.weight", torch.Size([numel // 1024, 1024])) for i in range(count))
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    for rank in range(ranks):
        model = {
            "module": OrderedDict((name, torch.empty(0, dtype=torch.bfloat16)) for name in shapes),
            "buffer_names": [], "optimizer": None, "param_shapes": [shapes],
            "frozen_param_shapes": OrderedDict(), "frozen_param_fragments": OrderedDict(),
            "shared_params": {}, "lr_scheduler": None, "data_sampler": None,
            "random_ltd": None, "sparse_tensor_module_names": set(), "skipped_steps": 0, "global_steps": 1,
            "global_samples": ranks, "dp_world_size": ranks, "mp_world_size": 1, "ds_config": config,
            "ds_version": "0.19.8",
        }  # fmt: skip
        torch.save(model, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flat = torch.full((sum(shape.numel() for shape in shapes.values()) // ranks,), 1.0 + rank)
        inner = {
            "state": {0: {"step": torch.tensor(1.0)}},
            "param_groups": [{"lr": 0.1, "params": [0]}],
        }
        optimizer = {
            "zero_stage": 3, "loss_scaler": None, "dynamic_loss_scale": False, "overflow": False,
            "partition_count": ranks, "optimizer_state_dict": inner, "fp32_flat_groups": [flat],
        }  # fmt: skip
        torch.save(
            {"optimizer_state_dict": optimizer, "ds_config": config, "ds_version": "0.19.8"},
            tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    return folder
