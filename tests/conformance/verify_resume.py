#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Holds `zckpt verify` against the real DeepSpeed and the real Trainer.

    verify_resume.py --zckpt PATH --fixtures DIR [--sample] [--only WORDS]

Genuine checkpoints, and copies of them with one thing changed each, are
loaded by the DeepSpeed that wrote them and compared with what the run held.
verify must never say that one resumes which does not load, or loads wrong
values; where only payload bytes were changed this is listed apart for
metadata, and --full has to see it. It must never say no to one that loads
right, but for the reasons in verify_exceptions.json (code -> reason, each of
them in use).

What cannot run here is held against the verdict in its case.json: fixtures of
other DeepSpeed versions (0.14.2 is looked for in $ZERO_DS_DIR/ds-0.14.2), of
more than two ranks, and the Trainer's where accelerate is not installed.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
TIMEOUT = 90  # seconds for one load
SAMPLE = 6


def is_data_parallel(name):
    return not any(kind in name for kind in ("-moe", "-pipe", "-tp"))


def ask(zckpt, path, options=()):
    """(does it resume, codes of its errors, the tag of the newest, codes of its warnings)."""
    run = subprocess.run(
        [zckpt, "verify", str(path), "--json", *options],
        capture_output=True, text=True, timeout=60)
    answer = json.loads(run.stdout)
    if "error" in answer:  # a finding would have been the right thing
        return False, {"error-" + answer["error"]["code"]}, None, set()
    if "checkpoints" in answer:
        entries = answer["checkpoints"]
        best = [e for e in entries if e["can"]["resume"]]
        entry = best[0] if best else entries[0]
    else:
        entry = answer
    resumes = entry["can"]["resume"]
    if resumes != (run.returncode == 0):
        raise RuntimeError(f"exit status {run.returncode}, {resumes}")
    codes, warnings = ({f["code"] for f in entry["findings"]
                        if f["severity"] == severity}
                       for severity in ("error", "warning"))
    return resumes, codes, entry.get("tag"), warnings


class Loads:
    """What loads gave, kept in a file between runs."""

    def __init__(self, path):
        self.path = path
        self.known = {}
        if path and path.exists():
            self.known = json.loads(path.read_text())

    def get(self, name, load):
        if name not in self.known:
            self.known[name] = load()
            if self.path:
                self.path.write_text(json.dumps(self.known, indent=1))
        return self.known[name]


class Loader:
    """Loads with one version of DeepSpeed, imported once."""

    def __init__(self, version):
        import ds_shims
        import ranks
        import resume_check
        ds_shims.prepare(version, resume_check.package_dir(version))
        import deepspeed  # noqa: F401
        ranks.run_ranks.__kwdefaults__["timeout"] = TIMEOUT
        self.version = ds_shims.finish()
        self.check = resume_check.check

    def load(self, info, folder, checkpoint, change):
        """None where all is right, else what is not."""
        recipe = {**info["recipe"], **change.recipe}
        checks = self.check(recipe, info, folder, checkpoint,
                            world_size=change.world_size, tag=change.tag)
        wrong = [f"{name}: {detail}" for name, (ok, detail) in checks.items()
                 if not ok]
        return "; ".join(wrong) or None


def cases_of(fixtures, version):
    found = []
    for folder in sorted((fixtures / "zero").glob("v*")):
        info = json.loads((folder / "case.json").read_text())
        if is_data_parallel(folder.name) and info["deepspeed"] == version:
            found.append((folder, info))
    return found


def report(line):
    print("RESULT " + json.dumps(line), flush=True)


def run_version(options, version):
    """In a process of its own: prints a RESULT line for each comparison."""
    import verify_mutations
    loader = Loader(version)
    if loader.version != version:
        print(f"DeepSpeed {version} is not here")
        return
    cases = cases_of(options.fixtures, version)
    by_name = dict((folder.name, (folder, info)) for folder, info in cases)
    jobs = [(*by_name[name], change)
            for name, change in verify_mutations.zero_mutations()
            if name in by_name]
    jobs += [(folder, info, None) for folder, info in cases
             if info["world_size"] <= 2]
    if options.only:
        jobs = [job for job in jobs if matches(job, options.only)]
    elif options.sample:
        names = verify_mutations.SAMPLE
        jobs = [job for job in jobs if job[2] and job[2].name in names]
        jobs = jobs[:SAMPLE]
    for folder, info, change in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            one_zero(options, loader, folder, info, change,
                     pathlib.Path(scratch))


def matches(job, only):
    name = f"{job[0].name} {job[2].name if job[2] else 'unchanged'}"
    return all(word in name for word in only.split())


def one_zero(options, loader, folder, info, change, scratch):
    import verify_mutations
    change = change or verify_mutations.Change("unchanged")
    checkpoint = scratch / "ckpt"
    shutil.copytree(folder / "ckpt", checkpoint)
    if change.apply:
        change.apply(verify_mutations.Files(checkpoint, info["tag"], folder))
    resumes, codes, tag, _ = ask(options.zckpt, checkpoint, change.zckpt)
    full = ask(options.zckpt, checkpoint, [*change.zckpt, "--full"])
    if change.newest:  # a launcher resumes from the folder that is printed
        change = verify_mutations.replace(change, tag=tag)
    wrong = options.loads.get(
        f"{folder.name}, {change.name}, {change.tag}",
        lambda: loader.load(info, folder, checkpoint, change))
    report(dict(case=folder.name, change=change.name, resumes=resumes,
                codes=sorted(codes), wrong=wrong, apart=change.apart,
                expect=change.expect, full=full[0],
                full_codes=sorted(full[1]),
                full_warnings=sorted(full[3])))


def resume_trainer(folder, checkpoint):
    import resume_hf
    result = resume_hf.check(folder, None, checkpoint)
    if result["verdict"] != "PASS":
        return result.get("error", "FAIL")
    if not result.get("masters_equal_truth", True):
        return f"masters differ: {result['differing']}"
    return None


def run_trainer(options):
    import verify_mutations
    jobs = [(name, change) for name, change in verify_mutations.hf_mutations()]
    jobs = [(options.fixtures / "hf" / name, change) for name, change in jobs]
    if options.only:
        jobs = [j for j in jobs
                if all(w in f"{j[0].name} {j[1].name}"
                       for w in options.only.split())]
    elif options.sample:
        jobs = [j for j in jobs if j[1].name in verify_mutations.SAMPLE][:1]
    for folder, change in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = pathlib.Path(scratch, "checkpoint-2")
            shutil.copytree(folder / "checkpoint-2", checkpoint)
            if change.apply:
                change.apply(verify_mutations.Files(
                    checkpoint, "global_step2", folder))
            resumes, codes, *_ = ask(options.zckpt, checkpoint, change.zckpt)
            full = ask(options.zckpt, checkpoint, [*change.zckpt, "--full"])
            wrong = options.loads.get(
                f"{folder.name}, {change.name}",
                lambda: resume_trainer(folder, checkpoint))
            report(dict(case=folder.name, change=change.name, resumes=resumes,
                        codes=sorted(codes), wrong=wrong, apart=change.apart,
                        expect=change.expect, full=full[0],
                        full_codes=sorted(full[1]),
                        full_warnings=sorted(full[3])))


class Tally:
    def __init__(self, exceptions):
        self.exceptions = exceptions
        self.used = set()
        self.passed = self.failed = self.changed = 0
        self.cases = set()
        self.apart = []

    def count(self, ok, line):
        self.passed += ok
        self.failed += not ok
        print(("ok    " if ok else "WRONG ") + line, flush=True)

    def add(self, r):
        self.cases.add(r["case"])
        self.changed += r["change"] != "unchanged"
        said = "resumes" if r["resumes"] else f"no ({', '.join(r['codes'])})"
        truth = "loads" if r["wrong"] is None else f"fails: {r['wrong'][:150]}"
        line = f"{r['case']}, {r['change']}: {said}; {truth}"
        loads = r["wrong"] is None
        ok = r["resumes"] == loads
        if ok and not loads and r["expect"] and r["expect"] not in r["codes"]:
            return self.count(False, line + f"; expected {r['expect']}")
        if not ok and r["resumes"] and r["apart"]:
            self.apart.append(f"{r['case']}, {r['change']}: {r['apart']}")
            ok = True
        excepted = set(r["codes"]) & self.exceptions.keys()
        if not ok and loads and len(excepted) == len(r["codes"]) > 0:
            self.used.update(r["codes"])
            line += "; exception"
            ok = True
        self.count(ok, line)
        if "full" in r:
            self.add_full(r, loads)

    def add_full(self, r, loads):
        """--full sees more, and nothing that is not there.

        NaN is a warning (design.md 5), which says what is wrong; of a stage-3
        shard whose archive names no rank nothing tells which one it is.
        """
        more = set(r["full_codes"]) - set(r["codes"])
        said = bool({"nan", "inf"} & set(r["full_warnings"]))
        beyond = r["apart"] and not r["apart"].startswith("payload")
        if any(code.startswith("error-") for code in more):
            ok = False
        elif not loads:
            ok = not r["full"] or said or bool(beyond)
        elif more <= self.exceptions.keys():
            self.used.update(more)
            ok = True
        else:
            ok = False
        if not ok or more or not loads:
            self.count(ok, f"{r['case']}, {r['change']}, --full: "
                       + ("resumes" if r["full"] else "no")
                       + f" ({', '.join(r['full_codes'])})")


def recorded(options, ran):
    """What could not be loaded here, against case.json."""
    for folder in sorted((options.fixtures / "zero").glob("v*")):
        if folder.name in ran or not is_data_parallel(folder.name):
            continue
        info = json.loads((folder / "case.json").read_text())
        path = folder / "ckpt"
        resumes, codes, *_ = ask(options.zckpt, path)
        wrong = None if info["resumes"] else "case.json says so"
        yield dict(case=folder.name, change="unchanged", resumes=resumes,
                   codes=sorted(codes), wrong=wrong, apart=None, expect=None)
    for folder in sorted((options.fixtures / "hf").glob("*")):
        if folder.name in ran or not (folder / "case.json").exists():
            continue
        info = json.loads((folder / "case.json").read_text())
        path = next(folder / name for name in
                    ("checkpoint-2", "state", "last.ckpt")
                    if (folder / name).exists())
        resumes, codes, *_ = ask(options.zckpt, path)
        # accelerate's and Lightning's are as those two wrote them.
        passed = info.get("resume", {}).get("verdict", "PASS") == "PASS"
        yield dict(case=folder.name, change="unchanged", resumes=resumes,
                   codes=sorted(codes), apart=None, expect=None,
                   wrong=None if passed else info["resume"].get("error", ""))


def results_of(options, part):
    command = [sys.executable, __file__, "--zckpt", options.zckpt,
               "--fixtures", str(options.fixtures), "--part", part]
    command += ["--sample"] if options.sample else []
    command += ["--loads", str(options.loads)] if options.loads else []
    command += ["--only", options.only] if options.only else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as child:
        for line in child.stdout:
            if line.startswith("RESULT "):
                yield json.loads(line[len("RESULT "):])
            elif line.startswith("DeepSpeed "):
                print(line.strip())
    if child.returncode:
        raise RuntimeError(f"{part} ended with status {child.returncode}")


def parts(options):
    import importlib.util
    found = ["0.19.8"]
    root = os.environ.get("ZERO_DS_DIR")
    if root and pathlib.Path(root, "ds-0.14.2").is_dir():
        found.append("0.14.2")
    if importlib.util.find_spec("accelerate"):
        found.append("trainer")
    if options.sample:
        found = found[:1]
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zckpt", required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--only", help="cases and changes with these words")
    parser.add_argument("--loads", type=pathlib.Path,
                        help="a file that keeps what the loads gave")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.fixtures = options.fixtures.resolve()
    options.zckpt = str(pathlib.Path(options.zckpt).resolve())
    sys.path.insert(0, str(options.fixtures / "generate"))
    if options.part:
        options.loads = Loads(options.loads)
    if options.part == "trainer":
        return run_trainer(options)
    if options.part:
        return run_version(options, options.part)

    exceptions = json.loads((HERE / "verify_exceptions.json").read_text())
    tally = Tally(exceptions)
    for part in parts(options):
        for result in results_of(options, part):
            tally.add(result)
    if not options.only:
        for result in recorded(options, set(tally.cases)):
            tally.add(result)
    for line in tally.apart:
        print("apart: " + line)
    if not options.sample and not options.only:
        for code in sorted(exceptions.keys() - tally.used):
            tally.count(False, f"verify_exceptions.json: {code} is not used")
        reasons = set(exceptions.values())
        tally.count(len(reasons) <= 5, "at most five reasons for exceptions")
    print(f"{len(tally.cases)} cases, {tally.changed} changed copies, "
          f"{len(tally.apart)} listed apart, {len(tally.used)} exceptions")
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
