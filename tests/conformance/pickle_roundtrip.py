#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Are pickles that zckpt has read and written again the same to Python?

Takes data.pkl out of every torch zip file under the folders, has it rewritten
by `repickle`, and loads the original and the rebuilt file with torch.load.
The objects must agree in types, order, values, bits, sharing and attributes.
The same for objects made here, in pickle protocols 0 to 5. Needs torch, and
DeepSpeed for its checkpoints; files that torch.load itself cannot load are
skipped, and say why.
"""

import argparse
import pathlib
import pickle
import subprocess
import sys
import tempfile
import warnings
import zipfile

import torch

import torture
from same_objects import Difference, compare

SUFFIXES = {".pt", ".pth", ".bin"}


class Runner:
    def __init__(self, repickle, work):
        self.repickle_path = repickle
        self.work = pathlib.Path(work)
        self.passed = self.failed = self.skipped = 0

    def repickle(self, data):
        """`data` rewritten; writing the result again must not change it."""
        before, after = self.work / "in.pkl", self.work / "out.pkl"
        for round_number in range(2):
            before.write_bytes(data)
            done = subprocess.run([self.repickle_path, before, after],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                raise Difference(f"repickle: {done.stderr.strip()}")
            rewritten = after.read_bytes()
            if round_number == 1 and rewritten != data:
                raise Difference("changes when it is written again")
            data = rewritten
        return data

    def rebuild(self, path):
        rebuilt = self.work / "rebuilt.pt"
        with zipfile.ZipFile(path) as source, \
                zipfile.ZipFile(rebuilt, "w", zipfile.ZIP_STORED) as target:
            for info in source.infolist():
                data = source.read(info)
                if info.filename.endswith("/data.pkl"):
                    data = self.repickle(data)
                target.writestr(info.filename, data)
        return rebuilt

    def case(self, name, load_original, load_rewritten):
        try:
            # What is loaded first gets its attribute names interned. Both of
            # those that are compared come later.
            first = load_original()
            original = load_original()
        except Exception as error:  # whatever the classes inside may raise
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            print(f"skipped {name}: {reason[:120]}")
            self.skipped += 1
            return
        try:
            compare(original, load_rewritten())
            self.passed += 1
        except Exception as error:
            print(f"FAILED {name}: {type(error).__name__}: {error}")
            self.failed += 1
        del first

    def file(self, path, name):
        self.case(name, lambda: load(path), lambda: load(self.rebuild(path)))

    def folder(self, folder):
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            if is_torch_zip(path):
                self.file(path, path.relative_to(folder))

    def plain(self, make, protocol, pickler):
        try:
            data = pickler(make(), protocol)
        except Exception as error:
            print(f"skipped {make.__name__} protocol {protocol}: {error}")
            self.skipped += 1
            return
        self.case(f"{make.__name__} protocol {protocol}",
                  lambda: pickle.loads(data),
                  lambda: pickle.loads(self.repickle(data)))

    def saved(self, make, protocol):
        path = self.work / "saved.pt"
        torch.save(make(), path, pickle_protocol=protocol)
        self.file(path, f"torch.save of {make.__name__} protocol {protocol}")


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def is_torch_zip(path):
    try:
        with zipfile.ZipFile(path) as archive:
            return any(n.endswith("/data.pkl") for n in archive.namelist())
    except zipfile.BadZipFile:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repickle", required=True, metavar="PATH")
    parser.add_argument("--modules", action="append", default=[], metavar="DIR",
                        help="where classes inside the files are found")
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    sys.path += args.modules
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(100_000)
    with tempfile.TemporaryDirectory() as work:
        runner = Runner(args.repickle, work)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            for make in torture.PLAIN:
                runner.plain(make, protocol, pickle.dumps)
                runner.plain(make, protocol, pickle._dumps)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            for make in torture.TORCH:
                runner.saved(make, protocol)
        for folder in args.folders:
            runner.folder(folder)
    print(f"{runner.passed} passed, {runner.failed} failed, "
          f"{runner.skipped} skipped")
    sys.exit(1 if runner.failed or not runner.passed else 0)


if __name__ == "__main__":
    main()
