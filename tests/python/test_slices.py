# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Slices against NumPy's indexing of the whole array."""

import random

import numpy as np
import pytest
import zckpt
from support import described, zero
from zckpt import _slice
from zckpt._arrays import framework_named

CASES = ["v0.19.8-z2-bf16-n3", "v0.19.8-z3-bf16-n4", "v0.19.8-z2-bf16-n2-names"]


def random_key(rng, shape):
    items = []
    for size in shape[: rng.randint(0, len(shape))]:
        kind = rng.randrange(6)
        if kind == 0 and size:
            items.append(rng.randrange(-size, size))
        elif kind == 1:
            items.append(slice(None))
        else:
            low, high = rng.randint(-size - 2, size + 2), rng.randint(-size - 2, size + 2)
            step = rng.choice([None, 1, 1, 2, 3, size + 1, -1, -2])
            items.append(slice(rng.choice([None, low]), rng.choice([None, high]), step))
    if rng.random() < 0.3:
        items.insert(rng.randint(0, len(items)), Ellipsis)
    if rng.random() < 0.2:
        items.insert(rng.randint(0, len(items)), None)
    if Ellipsis in items:  # what stands behind it counts from the end
        tail = [i for i in items[items.index(Ellipsis) + 1 :] if i is not None]
        for offset, item in enumerate(tail):
            size = shape[len(shape) - len(tail) + offset]
            if isinstance(item, int) and not -size <= item < size:
                return random_key(rng, shape)
    return items[0] if len(items) == 1 and rng.random() < 0.5 else tuple(items)


class Memory:
    """An array in the place of a checkpoint that counts what is read of it."""

    def __init__(self, array):
        self.array = array
        self.elements = 0

    def read(self, firsts, numel, out):
        flat = self.array.reshape(-1)
        parts = [flat[int(first) : int(first) + numel] for first in firsts]
        assert all(len(part) == numel for part in parts)
        self.elements += numel * len(parts)
        out[:] = np.concatenate(parts).view(np.uint8)


def slice_of(memory, framework="np"):
    return _slice.TensorSlice(memory.array.shape, "F32", framework_named(framework), memory.read)


SHAPES = [(), (1,), (0,), (7,), (5, 3), (4, 0, 2), (3, 4, 5), (2, 3, 4, 5), (64, 33), (1, 1, 9)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scratch", [1, 64, 1 << 20])
@pytest.mark.parametrize("run_cost", [1, 16 << 10])
def test_any_basic_index(shape, scratch, run_cost, monkeypatch):
    # Small numbers force every way to cut the reads.
    monkeypatch.setattr(_slice, "_SCRATCH_BYTES", scratch)
    monkeypatch.setattr(_slice, "_RUN_COST", run_cost)
    rng = random.Random(f"{shape} {scratch} {run_cost}")
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    for _ in range(300):
        key = random_key(rng, shape)
        expected = array[key]
        found = slice_of(Memory(array))[key]
        assert found.shape == expected.shape, key
        assert np.array_equal(found, expected), key


@pytest.mark.parametrize("case", CASES)
def test_of_checkpoints(case, framework):
    rng = random.Random(case)
    with zckpt.open(zero(case), framework=framework) as checkpoint, zckpt.open(zero(case)) as plain:
        for name in checkpoint:
            whole, lazy = plain[name], checkpoint.get_slice(name)
            assert lazy.get_shape() == list(whole.shape)
            for _ in range(30):
                key = random_key(rng, whole.shape)
                assert described(lazy[key]) == described(np.array(whole[key])), (name, key)


def test_against_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    with zckpt.open(zero(CASES[0])) as checkpoint:
        zckpt.merge(zero(CASES[0]), tmp_path / "model.safetensors", dtype="keep", progress=False)
        with safetensors.safe_open(str(tmp_path / "model.safetensors"), "np") as file:
            for name in file.keys():
                ours, theirs = checkpoint.get_slice(name), file.get_slice(name)
                assert ours.get_dtype() == theirs.get_dtype()
                assert ours.get_shape() == theirs.get_shape()


def test_converted():
    with zckpt.open(zero(CASES[0]), dtype="bf16") as checkpoint:
        lazy = checkpoint.get_slice("up.weight")
        assert lazy.get_dtype() == "BF16"
        assert described(lazy[3:9, ::2]) == described(np.array(checkpoint["up.weight"][3:9, ::2]))
        assert checkpoint.get_slice("mask").get_dtype() == "BOOL"


def test_numpy_integers_and_errors():
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    lazy = slice_of(Memory(array))
    assert lazy[np.int64(2), np.uint8(1)] == array[2, 1]
    assert lazy[np.int64(-1)].tolist() == array[-1].tolist()
    for key in (4, -5, (0, 5), (0, 0, 0), True, [1, 2], np.array([0]), (Ellipsis, Ellipsis), "a", 1.0, np.bool_(0)):
        with pytest.raises(IndexError):
            lazy[key]
    with pytest.raises((ValueError, TypeError)):
        lazy[::0]


def test_reads_little():
    memory = Memory(np.zeros((1000, 1000), np.float32))
    lazy = slice_of(memory)
    for key, most in (
        (5, 1000),
        (slice(10, 20), 10_000),
        ((3, slice(5, 9)), 4),
        (slice(100, 400, 2), 299_000 + 1000),
        ((slice(None), slice(0, 500)), 1_000_000),
    ):
        memory.elements = 0
        lazy[key]
        assert memory.elements <= most, key
    # Wide rows: runs are cut out rather than read whole.
    memory = Memory(np.zeros((8, 1 << 16), np.float32))
    slice_of(memory)[:, : 1 << 15]
    assert memory.elements == 8 << 15
