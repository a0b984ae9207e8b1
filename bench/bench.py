#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing: bench.py [-n ROUNDS] [--before CMD] LABEL=CMD LABEL=CMD ...

Runs every command once per round (one uncounted round first), in another order each round, `--before` untimed before
each run, and prints medians of wall, user+system and peak RSS, min..max of wall, and ratios to the last command.
Commands go through sh -c 'exec ...' unless they contain ; or |. Peak RSS comes from GNU time, since a child of Python
starts with Python's own as its peak.
"""
import argparse
import collections
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(ROOT, "bench")
DOC = os.path.join(ROOT, "docs", "performance.md")

# Big checkpoints by name: arguments of make_big.py
BIG = {
    "0.5b-z2": ["--stage", "2", "--world", "8", "--preset", "0.5b", "--moments"],
    "0.5b-z3": ["--stage", "3", "--world", "8", "--preset", "0.5b", "--moments"],
    "1.5b-z3": ["--stage", "3", "--world", "8", "--preset", "1.5b"],
}

Run = collections.namedtuple("Run", "wall cpu rss_mib")


def run_once(cmd):
    """Runs a list (no shell) or a string and returns a Run; a failure ends the program with its output."""
    if isinstance(cmd, str):
        cmd = ["sh", "-c", cmd if ";" in cmd or "|" in cmd else "exec " + cmd]
    with tempfile.NamedTemporaryFile("r") as figures:
        start = time.perf_counter()
        done = subprocess.run(["/usr/bin/time", "-f", "%U %S %M", "-o", figures.name, *cmd],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wall = time.perf_counter() - start
        if done.returncode:
            sys.exit(f"exit {done.returncode}: {cmd}\n{done.stdout.decode(errors='replace')[-4000:]}")
        user, system, rss = map(float, figures.read().split()[-3:])
    return Run(wall, user + system, rss / 1024)


def interleave(jobs, rounds, before=None, after_warm_up=None):
    """jobs: {label: command}; returns {label: [Run per round]}. The first, uncounted round warms caches.

    The order changes from round to round, the same way each time: what a program leaves behind (memory given back to the
    host, pages still to be written) slows whatever runs next, and that must not be always the same one.
    """
    runs = {label: [] for label in jobs}
    for n in range(rounds + 1):
        order = list(jobs)
        random.Random(n).shuffle(order)
        for label in order:
            if before:
                before(label)
            run = run_once(jobs[label])
            if n:
                runs[label].append(run)
            elif after_warm_up:
                after_warm_up(label)
        print(f"round {n} of {rounds} done", file=sys.stderr)
    return runs


def median(runs, field):
    return statistics.median(getattr(r, field) for r in runs)


def span(values, digits=2):
    """median (min..max)"""
    values = list(values)
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def ratio(runs, base, digits=2):
    """Of the median wall times (of the fastest): a run that a neighbour on the host slowed weighs on neither alone."""
    medians, fastest = (f([r.wall for r in runs]) / f([r.wall for r in base]) for f in (statistics.median, min))
    return f"{medians:.{digits}f} ({fastest:.{digits}f})"


def sh(*cmd, **kw):
    return subprocess.run(cmd, check=True, **kw)


def text_of(*cmd):
    return subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()


def size_of(folder):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(folder) for f in files)


class Suite:
    """What every benchmark of zckpt needs: the programs, a place to work, the checkpoints, the document."""

    def __init__(self, name, a):
        self.name, self.work, self.rounds, self.python = name, os.path.abspath(a.work), a.rounds, a.python
        self.zckpt = os.path.abspath(a.zckpt) if a.zckpt else os.path.join(ROOT, "build", "release", "zckpt")
        for program, package in (("/usr/bin/time", "time"), ("strace", "strace"), ("g++", "g++")):
            if not shutil.which(program):
                sys.exit(f"{program} is missing: install the package {package}")
        os.makedirs(self.work, exist_ok=True)
        if not a.zckpt:
            sh(os.path.join(ROOT, "scripts", "build"), stdout=subprocess.DEVNULL)
        self.touchmem = self.compiled("touchmem")

    def path(self, *parts):
        return os.path.join(self.work, *parts)

    def compiled(self, name):
        """A program out of bench/NAME.cpp."""
        program = self.path(name)
        sh("g++", "-O3", "-std=c++20", "-pthread", os.path.join(BENCH, name + ".cpp"), "-o", program)
        return program

    def settle(self, gib, *outputs):
        """Before each run: no old output, and free memory that the host of a virtual machine has really given."""
        for o in outputs:
            shutil.rmtree(o, ignore_errors=True)
        sh(self.touchmem, f"{gib:.1f}")

    def big_maker(self, name):
        return [self.python, os.path.join(BENCH, "make_big.py"), self.path(name), *BIG[name]]

    def big(self, name):
        """The folder of a big checkpoint, made if it is not there yet."""
        if not os.path.exists(self.path(name, "latest")):  # written last
            sh(*self.big_maker(name))
        return self.path(name)

    def wide(self, args):
        """A folder of make_wide.py with these arguments; one at a time."""
        ck = self.path("wide")
        made = ck + ".args"  # says what the folder holds
        if os.path.isdir(ck) and os.path.exists(made) and open(made).read() == " ".join(args):
            return ck
        shutil.rmtree(ck, ignore_errors=True)
        sh(sys.executable, os.path.join(BENCH, "make_wide.py"), ck, *args, stdout=subprocess.DEVNULL)
        with open(made, "w") as f:
            f.write(" ".join(args))
        return ck

    def machine(self):
        cpu = re.search(r"Model name:\s*(.*)", text_of("lscpu"))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        disk = text_of("findmnt", "-no", "FSTYPE", "-T", self.work)
        versions = text_of(self.python, "-c", "import importlib.metadata as m, platform as p; "
                           "print('Python', p.python_version(), *(f', {n} {m.version(n)}' for n in "
                           "('torch', 'deepspeed', 'transformers', 'safetensors')), sep=' ')").replace(" ,", ",")
        commit = text_of("git", "-C", ROOT, "rev-parse", "--short", "HEAD")
        return (f"{os.cpu_count()} × {cpu[1] if cpu else platform.machine()}, {memory:.0f} GiB, {disk}, "
                f"Linux {platform.release()}, g++ {text_of('g++', '-dumpfullversion')}; {versions}; "
                f"{text_of(self.zckpt, '--version')} at {commit}; {self.rounds} rounds, {time.strftime('%Y-%m-%d')}.")

    def put(self, section, lines):
        """Replaces what stands between a section's two marker comments."""
        begin, end = (f"<!-- bench/{self.name} {section}: {edge} -->" for edge in ("begin", "end"))
        with open(DOC) as f:
            doc = f.read()
        head, rest = doc.split(begin)
        lines = [*lines, "", f"Measured on {self.machine()}"]
        with open(DOC, "w") as f:
            f.write(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1])


def run_suite(kind, doc, sections):
    """The command line of a benchmark; sections: {name: function of a `kind` that returns lines}."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", default=sys.executable, help="interpreter with torch and deepspeed")
    p.add_argument("--work", default=os.path.join(ROOT, "build", "bench"))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", action="append", choices=list(sections))
    p.add_argument("--zckpt", help="measure this program instead of building one")
    a = p.parse_args()
    suite = kind(a)
    for section in a.only or sections:
        print(f"== {section}", file=sys.stderr)
        suite.put(section, sections[section](suite))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=5)
    p.add_argument("--before")
    p.add_argument("commands", nargs="+", metavar="LABEL=CMD")
    a = p.parse_args()
    jobs = dict(c.split("=", 1) for c in a.commands)
    runs = interleave(jobs, a.n, (lambda _: subprocess.run(a.before, shell=True)) if a.before else None)
    last = runs[list(jobs)[-1]]
    print(f"{'':28s} {'wall s':>24s} {'CPU s':>8s} {'RSS MiB':>8s}  wall / last")
    for label, r in runs.items():
        print(f"{label:28s} {span((x.wall for x in r), 3):>24s} {median(r, 'cpu'):8.2f} {median(r, 'rss_mib'):8.1f}"
              f"  {ratio(r, last)}")


if __name__ == "__main__":
    main()
