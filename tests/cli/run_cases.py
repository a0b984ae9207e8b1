#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Runs golden cases of the program: tests/cli/<case>/{cmd,stdout,stderr,exit}.

  run_cases.py --zckpt PATH --fixtures DIR [--update] [CASE...]

`cmd` is a bash script that finds zckpt in PATH and the checkpoints in $FIXTURES; it runs in a scratch folder of its
own. A missing file means that nothing is printed, or exit 0. Paths are shown as FIXTURES and SCRATCH. --update writes
what was found: read the difference before committing it.
"""
import argparse
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(case, zckpt, fixtures):
    """What the case prints and how it ends, as file name -> text."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = os.path.realpath(scratch)
        programs = pathlib.Path(scratch, "bin")
        work = pathlib.Path(scratch, "work")
        programs.mkdir()
        work.mkdir()
        (programs / "zckpt").symlink_to(zckpt)
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "FIXTURES": str(fixtures), "HOME": scratch,
                       "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["bash", "-euo", "pipefail", str(case / "cmd")], cwd=work, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        found = {"stdout": done.stdout, "stderr": done.stderr}
        found = {name: text.decode("utf-8", "backslashreplace").replace(str(work), "SCRATCH")
                 .replace(str(fixtures), "FIXTURES") for name, text in found.items()}
        found["exit"] = f"{done.returncode}\n" if done.returncode else ""
        left = sorted(p.name for p in work.rglob(".*zckpt*"))
        if left:
            found["stderr"] += f"LEFT BEHIND: {left}\n"
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zckpt", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    names = arguments.cases or sorted(p.parent.name for p in HERE.glob("*/cmd"))
    failed = 0
    for name in names:
        case = HERE / name
        found = run(case, arguments.zckpt.resolve(), arguments.fixtures.resolve())
        for file, text in found.items():
            golden = case / file
            expected = golden.read_text() if golden.exists() else ""
            if text == expected:
                continue
            if arguments.update:
                golden.write_text(text) if text else golden.unlink()
                print(f"{name}: new {file}")
                continue
            failed += 1
            print(f"{name}: another {file}")
            sys.stdout.writelines(difflib.unified_diff(expected.splitlines(True), text.splitlines(True), "expected",
                                                       "found"))
    print(f"{len(names)} cases, {failed} differences")
    sys.exit(1 if failed or not names else 0)


if __name__ == "__main__":
    main()
