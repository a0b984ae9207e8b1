# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/python.md, and that it names every argument."""

import doctest
import inspect
import os

import zckpt
from support import FIXTURES

ROOT = FIXTURES.parent.parent
TEXT = (ROOT / "docs" / "python.md").read_text()


def test_examples(tmp_path, monkeypatch):
    os.symlink(ROOT / "tests", tmp_path / "tests")
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False, verbose=False)
    assert result.attempted >= 10 and result.failed == 0


def test_names_what_there_is():
    for name in zckpt.__all__:
        thing = getattr(zckpt, name)
        if inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
            assert f"zckpt.{name}" in TEXT, name
    for function in (zckpt.open, zckpt.verify, zckpt.newest_resumable):
        for argument in inspect.signature(function).parameters:
            if argument not in ("memory", "progress", "run_dir"):
                assert argument in TEXT, argument


def test_merge_has_the_options_of_the_program():
    """Every option of `zckpt merge` in docs/cli.md but those that concern the terminal."""
    cli = (ROOT / "docs" / "cli.md").read_text()
    for verb, function in (
        ("merge", zckpt.merge),
        ("export-hf", zckpt.export_hf),
        ("extract-lora", zckpt.extract_lora),
    ):
        section = cli.split(f"\n## {verb}\n")[1].split("\n## ")[0]
        options = {
            word for row in section.splitlines() if row.startswith("| `-") for word in row.split("|")[1].split("`")
        }
        names = {word.split()[0].lstrip("-").replace("-", "_") for word in options if word.startswith("--")}
        arguments = set(inspect.signature(function).parameters) | {"no_sync", "adapter"}
        assert names <= arguments, names - arguments
