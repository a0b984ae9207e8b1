# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""What a Checkpoint is besides its values: a mapping, facts, refusals, threads."""

import collections.abc
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zckpt
from support import FIXTURES, case_json, described, zero

CASE = "v0.19.8-z2-bf16-n3"


@pytest.fixture
def checkpoint():
    with zckpt.open(zero(CASE)) as opened:
        yield opened


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(zero(CASE), tmp_path / "ckpt")
    return tmp_path / "ckpt"


def shard(folder, rank):
    return folder / "global_step3" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def test_is_a_mapping(checkpoint):
    case = case_json("zero", CASE)
    names = [*case["parameters"], *case["frozen"], *case["buffers"], *case["aliases"]]
    assert isinstance(checkpoint, collections.abc.Mapping)
    assert set(checkpoint) == set(names) == set(checkpoint.keys())
    assert len(checkpoint) == len(names)
    assert list(checkpoint) == list(checkpoint.facts.module_order)
    assert "up.weight" in checkpoint and "head.weight" in checkpoint and "nothing" not in checkpoint
    assert checkpoint.get("nothing") is None
    with pytest.raises(KeyError):
        checkpoint["nothing"]
    with pytest.raises(KeyError):
        checkpoint.load(["up.weight", "nothing"])
    assert {name: array.shape for name, array in checkpoint.items()}["up.weight"] == (29, 13)
    assert np.array_equal(checkpoint["head.weight"], checkpoint["embed.weight"])
    assert checkpoint == checkpoint and checkpoint != zckpt.open(zero(CASE))
    assert checkpoint in {checkpoint}


def test_reads_new_arrays(checkpoint):
    first = checkpoint["up.weight"]
    first[:] = 0
    assert checkpoint["up.weight"].any()
    assert list(checkpoint.load(["up.bias", "gain"])) == ["up.bias", "gain"]
    assert checkpoint.load([]) == {}
    assert list(checkpoint.state_dict()) == list(checkpoint)


def test_facts_and_tensors(checkpoint):
    facts = checkpoint.facts
    assert facts.folder == str(zero(CASE))
    assert (facts.tag, facts.framework, facts.layout, facts.stage) == ("global_step3", "deepspeed", "ZeRO-2", 2)
    assert (facts.world_size, facts.step, facts.optimizer_step) == (3, 3, 3.0)
    assert (facts.deepspeed_version, facts.dtype, facts.master_dtype) == ("0.19.8", "bf16", "fp32")
    assert facts.aliases == {"head.weight": "embed.weight"}
    assert not facts.frozen_excluded
    with pytest.raises(AttributeError):
        facts.stage = 3
    infos = {(t.name, t.role, t.state): t for t in checkpoint.tensors}
    assert infos["up.weight", "master", ""].dtype == "F32"
    assert infos["up.weight", "model", ""].dtype == "BF16"
    assert infos["up.weight", "state", "exp_avg"].shape == (29, 13)
    assert infos["mask", "buffer", ""].dtype == "BOOL"
    assert all(isinstance(finding, zckpt.Finding) for finding in checkpoint.findings)
    assert "ZeRO-2" in repr(checkpoint)


def test_frozen_weights_that_the_save_left_out():
    with zckpt.open(zero("v0.19.8-z2-bf16-n2-nofrozen")) as checkpoint:
        assert checkpoint.facts.frozen_excluded
        assert "adapter.weight" not in checkpoint and "up.weight" in checkpoint


def test_closed(checkpoint):
    lazy, stream, optimizer = checkpoint.get_slice("up.weight"), checkpoint.stream(), checkpoint.optimizer
    checkpoint.close()
    checkpoint.close()
    for use in (
        lambda: checkpoint["up.weight"],
        lambda: checkpoint.load(),
        lambda: lazy[0],
        lambda: next(stream),
        lambda: checkpoint.stream(),
        lambda: optimizer["up.weight"]["exp_avg"],
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert "closed" in repr(checkpoint)


def test_wrong_arguments(checkpoint):
    for wrong in (
        {"framework": "jax"},
        {"dtype": "fp8"},
        {"dtype": np.int32},
        {"threads": 0},
    ):
        with pytest.raises(ValueError):
            zckpt.open(zero(CASE), **wrong)
    with pytest.raises(TypeError):
        checkpoint.load("up.weight")
    with pytest.raises(ValueError):
        checkpoint.load(check="some")
    with pytest.raises(ValueError):
        checkpoint.stream(order="size")
    with pytest.raises(ValueError):
        checkpoint.stream(buffer_bytes=0)


def test_dtypes_by_any_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert zckpt.open(zero(CASE), dtype=dtype)["up.weight"].dtype == ml_dtypes.bfloat16
    assert zckpt.open(zero(CASE), dtype=np.float16)["up.weight"].dtype == np.float16
    assert zckpt.open(zero(CASE), dtype="keep")["up.weight"].dtype == np.float32


def test_paths_of_any_kind(copy, tmp_path):
    for path in (copy, str(copy), copy / "global_step3"):
        assert len(zckpt.open(path)) == 16
    odd = tmp_path / os.fsdecode(b"odd \xff \xe2\x82\xac")
    copy.rename(odd)
    checkpoint = zckpt.open(odd)
    assert checkpoint.facts.folder == str(odd)
    assert checkpoint["up.weight"].shape == (29, 13)


def test_no_checkpoint(tmp_path):
    for path, code in ((tmp_path, "invalid"), (tmp_path / "none", "io")):
        with pytest.raises(zckpt.Error) as caught:
            zckpt.open(path)
        assert caught.value.code == code
        assert str(tmp_path) in str(caught.value)


# ---- refusals ----


def refused(folder):
    with pytest.raises(zckpt.CorruptError) as caught:
        zckpt.open(folder)
    assert caught.value.code == "corrupt"
    return {f.code: f for f in caught.value.findings if f.severity == "error"}, caught.value


def test_missing_shard_is_refused(copy):
    shard(copy, 1).unlink()
    findings, error = refused(copy)
    assert findings["optim-shard-missing"].rank == 1
    assert "rank 1" in str(error)


def test_truncated_shard_is_refused(copy):
    data = shard(copy, 2).read_bytes()
    shard(copy, 2).write_bytes(data[: len(data) // 2])
    findings, _ = refused(copy)
    assert findings["file-truncated"].file == str(shard(copy, 2).relative_to(copy))


def test_shard_of_another_run_is_refused(copy):
    # Same shapes, step and version.
    shutil.copy(shard(zero("v0.19.8-z2-bf16-n3-sgd"), 1), shard(copy, 1))
    findings, error = refused(copy)
    assert findings["step-mismatch"].rank == 1 and findings["step-mismatch"].message in str(error)


def test_swapped_shards_are_refused(copy):
    first, second = shard(copy, 0).read_bytes(), shard(copy, 1).read_bytes()
    shard(copy, 0).write_bytes(second)
    shard(copy, 1).write_bytes(first)
    assert "file-misnamed" in refused(copy)[0]


def flip_in_payload(checkpoint, path):
    """Changes one byte of the last rank's masters, which lie in the file as they lie in memory."""
    data = bytearray(path.read_bytes())
    values = checkpoint["down.weight"].tobytes()[-64:]
    place = data.find(values)
    assert place > 0
    data[place] ^= 1
    path.write_bytes(data)


def test_flipped_byte_is_seen_by_load(copy):
    checkpoint = zckpt.open(copy)
    rank = next(r for r in range(3) if checkpoint["down.weight"].tobytes()[-64:] in shard(copy, r).read_bytes())
    flip_in_payload(checkpoint, shard(copy, rank))
    # What was opened before is another state of the file.
    with pytest.raises(zckpt.ConflictError, match="changed while"):
        checkpoint.load(check="none")
    checkpoint = zckpt.open(copy)
    with pytest.raises(zckpt.CorruptError, match="CRC") as caught:
        checkpoint.load()
    assert caught.value.file == str(shard(copy, rank).relative_to(copy))
    assert caught.value.offset > 0
    with pytest.raises(zckpt.CorruptError):
        list(checkpoint.stream(buffer_bytes=100))
    assert checkpoint.load(check="none")


def test_arguments_that_make_no_sense(copy, tmp_path):
    (tmp_path / "victim").mkdir()
    with pytest.raises(ValueError, match="null byte"):
        zckpt.merge(copy, str(tmp_path / "victim") + "\0other", force=True)
    with pytest.raises(ValueError, match="framework"):
        zckpt.verify(copy, framework="x")
    with pytest.raises(ValueError, match="question"):
        zckpt.verify(copy, question="x")


# ---- threads and processes ----


def test_many_threads(checkpoint):
    expected = {name: described(array) for name, array in checkpoint.load().items()}
    failures = []

    def work(seed):
        names = list(expected)
        np.random.default_rng(seed).shuffle(names)
        for name in names:
            if described(checkpoint[name]) != expected[name]:
                failures.append(name)
            if described(checkpoint.get_slice(name)[...]) != expected[name]:
                failures.append(name)
        if {n: described(a) for n, a in checkpoint.load(names).items()} != expected:
            failures.append("load")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert not failures


def test_other_python_threads_run_meanwhile(big):
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(1)
            stop.wait(0.001)

    ticker = threading.Thread(target=tick)
    checkpoint = zckpt.open(big)
    ticker.start()
    before = len(ticks)
    checkpoint.load(["layer0.weight", "layer1.weight"], check="full")
    after = len(ticks)
    stop.set()
    ticker.join()
    assert after - before > 3


def test_load_from_several_threads_at_once(big):
    checkpoint = zckpt.open(big)
    names = [f"layer{i}.weight" for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for array in pool.map(checkpoint.__getitem__, names):
            assert set(np.unique(array)) == {1.0, 2.0}


def test_works_in_a_forked_child(big):
    checkpoint = zckpt.open(big, threads=2)
    checkpoint["layer0.weight"]
    child = os.fork()
    if child == 0:
        good = checkpoint["layer1.weight"].shape == checkpoint["layer0.weight"].shape
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_import_brings_no_framework():
    code = (
        "import sys, zckpt; zckpt.open(sys.argv[1])['up.weight'];"
        "print([m for m in ('torch', 'transformers', 'deepspeed', 'tqdm', 'ml_dtypes') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code, str(zero(CASE))], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"


def test_hugging_face_weights_open_too():
    with zckpt.open(FIXTURES / "hf" / "full_z3_bf16" / "base") as checkpoint:
        assert checkpoint.facts.framework == "weights"
        assert checkpoint["model.embed_tokens.weight"].ndim == 2
