#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""The usual merge of a LoRA adapter in Python, timed by step: peft_merge.py BASE ADAPTER OUT [--threads N]"""
import argparse
import os
import resource
import time

last = start = (time.time(), time.process_time())


def step(name, since=None):
    global last
    (wall, cpu), last = since or last, (time.time(), time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:18s} {last[0] - wall:7.2f} s wall {last[1] - cpu:7.2f} s CPU   peak {peak:.0f} MiB", flush=True)


p = argparse.ArgumentParser(description=__doc__)
p.add_argument("base")
p.add_argument("adapter")
p.add_argument("out")
p.add_argument("--threads", type=int, help="of torch, instead of its default")
a = p.parse_args()

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

if a.threads:
    torch.set_num_threads(a.threads)
step("imports")
model = AutoModelForCausalLM.from_pretrained(a.base, dtype=torch.bfloat16)
step("load base")
model = PeftModel.from_pretrained(model, a.adapter)
step("load adapter")
model = model.merge_and_unload()
step("merge_and_unload")
model.save_pretrained(a.out)
step("save_pretrained")
step(f"total, {torch.get_num_threads()} threads", start)
