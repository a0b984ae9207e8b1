# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and callbacks that raise, in the middle of long calls."""

import os
import signal
import subprocess
import sys
import time

import pytest
import zckpt

MERGE = """
import sys, zckpt
def show(done, total):
    print(done, total, flush=True)
try:
    zckpt.merge(sys.argv[1], sys.argv[2], threads=1, progress=show)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def test_ctrl_c_stops_a_merge_and_leaves_nothing(big, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", MERGE, str(big), str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    )
    done, total = map(int, child.stdout.readline().split())
    assert 0 < done < total
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=60)
    assert child.returncode == 5 and rest.endswith("interrupted\n"), rest
    assert time.monotonic() - start < 5
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_an_old_output_as_it_was(big, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")

    def press(done, total):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        zckpt.merge(big, out, force=True, threads=1, progress=press)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["old"]


def test_ctrl_c_stops_load_and_stream(big):
    checkpoint = zckpt.open(big, threads=1)

    def press(done, total):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(check="full", progress=press)
    # And it can be used again.
    assert checkpoint.get_slice("layer0.weight")[0, 0] == 1.0
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                for _ in checkpoint.stream(check="full"):
                    pass
    finally:
        signal.signal(signal.SIGALRM, old)
    assert checkpoint.get_slice("layer7.weight")[-1, -1] == 2.0


def test_a_callback_that_raises_stops_the_call(big, tmp_path):
    class Enough(Exception):
        pass

    def show(done, total):
        raise Enough

    with pytest.raises(Enough):
        zckpt.merge(big, tmp_path / "out", threads=1, progress=show)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_to_the_end(big, tmp_path):
    seen = []
    zckpt.merge(big, tmp_path / "out", sync=False, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) >= 2
    assert seen == sorted(seen)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] == 512 << 20


def test_bar_of_tqdm(big, tmp_path, capsys):
    pytest.importorskip("tqdm")
    zckpt.open(big).load(["layer0.weight"], progress=True)
    assert "load" in capsys.readouterr().err
    # No terminal: none unless asked for.
    zckpt.open(big).load(["layer0.weight"], progress=None)
    assert capsys.readouterr().err == ""
