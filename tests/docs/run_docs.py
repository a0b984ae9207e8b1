#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that documents show, and compares what they print.

  run_docs.py --zckpt PATH --source REPOSITORY DOCUMENT.md...

A session is an indented block with lines that begin with "$ "; what follows one, up to the next, is what it prints on
both streams. "..." on a line of its own stands for any lines, within a line for any text. Blocks of one document run in
one folder, in order; tests/ is there. A block without "$ " is no session. Ends with "N passed, M failed".
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

INDENT = "    "


def sessions(text):
    """Yields (line number, command, expected lines) in the order of the document."""
    block, start = [], 0
    for number, line in enumerate(text.split("\n") + ["end"], 1):
        if line.startswith(INDENT) or (block and not line.strip()):
            start = start or number
            block.append(line[len(INDENT):])
            continue
        if block:
            yield from commands(block, start)
        block, start = [], 0


def commands(block, start):
    while block and not block[-1].strip():
        block.pop()
    if not block or not block[0].startswith("$ "):
        return
    command, expected, at = None, [], 0
    for i, line in enumerate(block + ["$ "]):
        if command is not None and command.endswith("\\") and not expected:
            command += "\n" + line
        elif line.startswith("$ "):
            if command is not None:
                yield at, command, expected
            command, expected, at = line[2:], [], start + i
        else:
            expected.append(line)


def matches(expected, found):
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.fullmatch(pattern, found) is not None


def run(document, zckpt, source):
    with open(document, encoding="utf-8") as f:
        steps = list(sessions(f.read()))
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(source, "tests"), os.path.join(folder, "tests"))
        path = os.path.dirname(zckpt) + os.pathsep + os.environ["PATH"]
        code = 0
        for line, command, expected in steps:
            # $? of the command before, as in one shell; nothing else is carried over.
            script = f"(exit {code})\n{command}\n"
            done = subprocess.run(["bash", "-c", script], cwd=folder, env=dict(os.environ, PATH=path),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            code = done.returncode
            if matches(expected, done.stdout if done.stdout.endswith("\n") or not done.stdout else done.stdout + "\n"):
                passed += 1
                continue
            failed += 1
            print(f"{document}:{line}: {command}\nexpected:\n" + "\n".join(expected) + f"\nfound:\n{done.stdout}")
    if not steps:
        print(f"{document}: no session in it")
        failed += 1
    return passed, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zckpt", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("documents", nargs="+")
    a = parser.parse_args()
    passed = failed = 0
    for document in a.documents:
        p, f = run(document, os.path.abspath(a.zckpt), os.path.abspath(a.source))
        passed, failed = passed + p, failed + f
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
