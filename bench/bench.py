#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing: bench.py [-n ROUNDS] [--before CMD] LABEL=CMD LABEL=CMD ...

Runs every command once per round (one uncounted round first), A B C A B C ..., `--before` untimed before each run, and
prints medians of wall, user+system and peak RSS, with min..max of wall and of the per-round ratios to the last command.
Commands go through sh -c 'exec ...' unless they contain ; or |. Peak RSS comes from GNU time, since a child of Python
starts with Python's own as its peak.
"""
import argparse
import collections
import statistics
import subprocess
import sys
import tempfile
import time

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
    """jobs: {label: command}; returns {label: [Run per round]}. The first, uncounted round warms caches."""
    runs = {label: [] for label in jobs}
    for n in range(rounds + 1):
        for label, cmd in jobs.items():
            if before:
                before(label)
            run = run_once(cmd)
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


def ratios(runs, base):
    """Of the wall times, round by round: what slows the machine for a while slows both."""
    return [a.wall / b.wall for a, b in zip(runs, base)]


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
              f"  {span(ratios(r, last))}")


if __name__ == "__main__":
    main()
