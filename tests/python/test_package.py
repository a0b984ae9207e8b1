# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel as it is installed."""

import importlib.metadata
import inspect
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import zckpt
from support import FIXTURES, zero

ROOT = FIXTURES.parent.parent
PROGRAM = pathlib.Path(sysconfig.get_path("scripts")) / "zckpt"
FOLDER = pathlib.Path(zckpt.__file__).parent


def test_one_version():
    declared = re.search(r"project\(zckpt VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert zckpt.__version__ == declared[1]


def test_distribution_and_program():
    assert importlib.metadata.version("zckpt") == zckpt.__version__
    out = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == f"zckpt {zckpt.__version__}"
    out = subprocess.run([PROGRAM, "verify", zero("v0.19.8-z2-bf16-n2")], check=True, capture_output=True, text=True)
    assert out.stdout.startswith("resumable")


def test_the_wheel_holds_no_more_than_it_needs():
    files = [str(file) for file in importlib.metadata.files("zckpt")]
    assert not [file for file in files if file.endswith((".cc", ".h", ".cmake")) or "libzckpt" in file]
    assert "zckpt/py.typed" in files and "zckpt/_core.pyi" in files


def test_everything_public_is_described():
    for name in zckpt.__all__:
        thing = getattr(zckpt, name)
        if name != "__version__":
            assert inspect.getdoc(thing), name
    for cls in (zckpt.Checkpoint, zckpt.TensorSlice):
        for name, member in vars(cls).items():
            if callable(member) and not name.startswith("_"):
                assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_no_long_lines_and_licences():
    for path in [*FOLDER.glob("*.py*"), *pathlib.Path(__file__).parent.glob("*.py")]:
        lines = path.read_text().splitlines()
        if path.name != "py.typed":
            assert lines[0] == "# SPDX-FileCopyrightText: The zckpt authors", path
        assert max(map(len, lines), default=0) <= 120, path
        assert len(lines) <= 500, path


def test_import_is_quick():
    code = "import time; t = time.perf_counter(); import numpy; n = time.perf_counter(); import zckpt;" \
        "print(time.perf_counter() - n)"  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    assert float(out.stdout) < 0.5
