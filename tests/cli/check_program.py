#!/usr/bin/env python3
# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""What golden files cannot say about the program: JSON against its schemas, help against the manual, signals, streams.

  check_program.py --zckpt PATH --source DIR CHECK...
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

try:
    import jsonschema
except ImportError:
    jsonschema = None


class Failed(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Failed(message)


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def validate(value, schema, place="$"):
    """The keywords that our schemas use, so that the check needs no package."""
    unknown = set(schema) - {"type", "const", "enum", "required", "properties", "additionalProperties", "items",
                             "minimum", "minItems", "$schema", "$id", "title", "description"}
    require(not unknown, f"{place}: keywords {unknown} are not checked")
    if "type" in schema:
        right = isinstance(value, TYPES[schema["type"]]) and not (schema["type"] == "integer" and value in (True, False)
                                                                  and isinstance(value, bool))
        require(right, f"{place}: expected {schema['type']}, found {value!r}")
    require("const" not in schema or value == schema["const"], f"{place}: {value!r}")
    require("enum" not in schema or value in schema["enum"], f"{place}: {value!r} is none of {schema.get('enum')}")
    require("minimum" not in schema or value >= schema["minimum"], f"{place}: {value!r}")
    if isinstance(value, dict):
        for key in schema.get("required", []):
            require(key in value, f"{place}: no {key}")
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            require(inner is not False, f"{place}: {key} is not described")
            validate(item, inner, f"{place}.{key}")
    if isinstance(value, list):
        require(len(value) >= schema.get("minItems", 0), f"{place}: too short")
        for i, item in enumerate(value):
            validate(item, schema.get("items", {}), f"{place}[{i}]")


class Program:
    def __init__(self, zckpt, source, scratch):
        self.zckpt = str(zckpt.resolve())
        self.source = source
        self.fixtures = source / "tests/fixtures"
        self.scratch = scratch

    def __call__(self, *arguments, **options):
        options = {"capture_output": True, "text": True, "cwd": self.scratch, "timeout": 120, **options}
        return subprocess.run([self.zckpt, *map(str, arguments)], **options)

    def zero(self, name):
        return self.fixtures / "zero" / name / "ckpt"

    def big(self, scale):
        """A checkpoint of zeros that takes a while to merge; holes on the disk."""
        out = self.scratch / "big"
        subprocess.run([sys.executable, self.source / "bench/make_wide.py", out, "--world", "4", "--scale", str(scale)],
                       check=True, capture_output=True)
        return out

    # ---- JSON ----

    def document(self, schema, code, *arguments):
        done = self(*arguments)
        require(done.returncode == code, f"{arguments}: exit {done.returncode}: {done.stderr}")
        document = json.loads(done.stdout)
        text = (self.source / "docs/schema" / schema).read_text()
        validate(document, json.loads(text))
        if jsonschema:
            jsonschema.Draft202012Validator.check_schema(json.loads(text))
            jsonschema.validate(document, json.loads(text))
        return document

    def check_json_success(self):
        for name in ("v0.19.8-z2-bf16-n3", "v0.19.8-z3-bf16-n12", "v0.10.3-z3-bf16-n2", "v0.19.8-z0-fp16-n1"):
            for options in ([], ["--max-shard-size", "2KB", "--dtype", "bf16"], ["--dry-run", "--dtype", "keep"]):
                document = self.document("writers.json", 0, "merge", self.zero(name), "-o", "out", "--json", "--force",
                                         "--no-sync", *options)
                out = self.scratch / "out"
                if "--dry-run" not in options:
                    found = {p.name: p.stat().st_size for p in out.iterdir()}
                    require(found == {f["name"]: f["bytes"] for f in document["files"]}, "files")
                require(sum(f["tensors"] for f in document["files"]) == document["tensors"], "tensors")
                require(document.get("dry_run", False) == ("--dry-run" in options), "dry_run")
                require(document["output"] == "out" and document["path"] == str(self.zero(name)), "paths")
        hf = self.fixtures / "hf/full_z3_bf16/checkpoint-2"
        document = self.document("writers.json", 0, "merge", hf, "-o", "hf.safetensors", "--json")
        require(document["aliases"] == {"lm_head.weight": "model.embed_tokens.weight"}, "aliases")
        lora = self.fixtures / "hf/lora_z3_fp32/checkpoint-2"
        for options in ([], ["--dry-run"]):
            document = self.document("writers.json", 0, "extract-lora", lora, "-o", "adapter", "--json", "--force", *options)
            require(document["lora"]["adapter"] == "default" and document["lora"]["modules"] == 4, "lora")
            document = self.document("writers.json", 0, "export-hf", lora, "--base", lora.parent / "base", "-o", "hf", "--json",
                                     "--force", *options)
            require(document["lora"]["adapters"] == [{"adapter": "default", "weight": 1.0, "tensors": 8}], "adapters")
            require(len(document["lora"]["weights"]) == (0 if options else 4), "weights")
            require({f["name"] for f in document["side_files"]} < {f["name"] for f in document["files"]}, "side files")
        one = self.fixtures / "lora/qwen2_lm_head_lora_tied_bf16"
        document = self.document("writers.json", 0, "export-hf", one / "base", "--adapter", one / "adapter", "-o", "hf", "--json",
                                 "--force")
        require(document["config_changes"] == [{"key": "tie_word_embeddings", "before": True, "after": False}], "changes")

    def check_json_failure(self):
        (self.scratch / "full").mkdir()
        (self.scratch / "full/file").write_text("there")
        sound = self.zero("v0.19.8-z2-bf16-n2")
        for code, arguments in {
                "io": ["nowhere", "-o", "out"],
                "invalid": [sound, "-o", "out", "--include", "nothing*"],
                "conflict": [sound, "-o", "full"],
                "limit": [sound, "-o", "out", "--memory", "10"],
                "unsupported": [self.zero("v0.19.8-pipe2-fp32-n2"), "-o", "out"],
        }.items():
            document = self.document("failure.json", 3, "merge", *arguments, "--json")
            require(document["error"]["code"] == code, f"expected {code}, found {document['error']}")
            require(document["verb"] == "merge", "verb")
            require(not (self.scratch / "out").exists(), "an output")
        require(document["findings"][0]["code"] == "unsupported-layout", "no finding")
        for verb in ("inspect", "verify"):
            done = self(verb, "nowhere", "--json")
            if done.returncode == 3:
                validate(json.loads(done.stdout), json.loads((self.source / "docs/schema/failure.json").read_text()))

    def check_json_verify(self):
        for code, path in {0: self.zero("v0.19.8-z2-bf16-n3"), 1: self.zero("v0.19.8-z3-bf16-n2-nvme")}.items():
            for question in ("resume", "merge"):
                document = self.document("verify.json", code if question == "resume" else 0, "verify", path, "--json",
                                         "--for", question)
                require(document["path"] == str(path) and document["can"] == {"resume": not code, "merge": True}, "can")
            document = self.document("verify.json", code, "verify", path, "--json", "--full", "--no-progress")
            require(document["level"] == "full" and document["scan"]["checked_records"] > 20, "scan")
        for kind in ("zero", "hf"):  # whatever it is, the document has its form
            for folder in sorted((self.fixtures / kind).iterdir()):
                for inner in ("ckpt", "checkpoint-2", "state", "last.ckpt", "base"):
                    if (folder / inner).is_dir():
                        done = self("verify", folder / inner, "--json")
                        document = self.document("verify.json", done.returncode, "verify", folder / inner, "--json")
                        require(document["can"]["resume"] == (done.returncode == 0), f"{folder}: exit code")
        run = self.fixtures / "hf/full_z3_bf16"
        document = self.document("verify-run.json", 0, "verify", run, "--json")
        require(document["newest_resumable"] == "checkpoint-2", "newest_resumable")
        require(document["checkpoints"][0]["path"] == str(run / "checkpoint-2"), "path")

    # ---- help ----

    def check_help(self):
        manual = self.source / "docs/cli.md"
        require(manual.exists(), "docs/cli.md is missing: it must describe every option")
        text = manual.read_text()
        verbs = re.findall(r"^  (\w[\w-]*)  ", self("--help").stdout.split("Subcommands:")[-1].lower(), re.M)
        verbs = verbs or re.findall(r"^  ([a-z][\w-]*) ", self("--help").stdout, re.M)
        require("merge" in verbs, f"verbs {verbs}")
        for verb in verbs:
            done = self(verb, "--help")
            require(done.returncode == 0 and done.stderr == "", f"{verb} --help: {done.returncode} {done.stderr}")
            options = set(re.findall(r"(?<![\w-])--?[a-z][a-z_-]*", done.stdout))
            options = {o for o in options if o.startswith("--") or len(o) == 2}
            require(len(options) > 8, f"{verb}: {options}")
            lacking = sorted(o for o in options if not re.search(rf"`{re.escape(o)}[` ]", text))
            require(not lacking, f"docs/cli.md says nothing of {lacking} ({verb})")
            require(re.search(rf"^## {verb}$", text, re.M), f"docs/cli.md has no section {verb}")

    # ---- streams and signals ----

    def check_streams(self):
        sound = self.zero("v0.19.8-z2-bf16-n2")
        for arguments in (["merge", sound, "--dry-run"], ["merge", sound, "-o", "out", "--json", "--force"],
                          ["merge", "nowhere", "-o", "no", "--json"], ["--version"], ["--help"], ["merge", "--help"]):
            with open("/dev/full", "w") as full:
                done = self(*arguments, stdout=full, stderr=subprocess.PIPE, capture_output=False)
            require(done.returncode == 3, f"{arguments} to /dev/full: exit {done.returncode}")
            require("standard output could not be written" in done.stderr, f"{arguments}: {done.stderr}")
            done = self(*arguments, capture_output=False, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
            require(done.returncode == 3, f"{arguments}, stdout closed: exit {done.returncode}")
        # Standard error has nothing to do with success.
        done = self("merge", sound, "-o", "out2", capture_output=False, stdout=subprocess.PIPE,
                    preexec_fn=lambda: os.close(2))
        require(done.returncode == 0, f"stderr closed: exit {done.returncode}")
        for file in (self.scratch / "out").iterdir():
            require(file.read_bytes() == (self.scratch / "out2" / file.name).read_bytes(), "a message in the output")
        # A merge that has nothing to print does not need standard output, and no file takes its place.
        done = self("merge", sound, "-o", "out3", capture_output=False, stderr=subprocess.PIPE,
                    preexec_fn=lambda: [os.close(fd) for fd in (0, 1)])
        require(done.returncode == 0, f"stdin and stdout closed: exit {done.returncode} {done.stderr}")

    def check_file_limit(self):
        import resource
        done = self("merge", self.zero("v0.19.8-z2-bf16-n2"), "-o", "out",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
        require(done.returncode == 3 and "File too large" in done.stderr, f"{done.returncode} {done.stderr}")
        require(not list(self.scratch.iterdir()), "something is left")

    def check_signals(self):
        big = self.big(16)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for attempt in range(8):
                process = subprocess.Popen([self.zckpt, "merge", big, "-o", "out", "--json", "--no-sync"],
                                           cwd=self.scratch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                # Midway: the output's place is taken, and the end has not come.
                partial = self.scratch / ".out.zckpt-partial"
                while process.poll() is None and not partial.exists():
                    time.sleep(0.001)
                process.send_signal(number)
                out, err = process.communicate(timeout=120)
                if process.returncode == 0:  # done before the signal came
                    subprocess.run(["rm", "-r", self.scratch / "out"], check=True)
                    continue
                break
            else:
                print("no merge here is slow enough to be interrupted")
                return
            require(process.returncode == code, f"{number}: exit {process.returncode}: {err}")
            require(err.count("interrupted") == 1, f"said {err!r}")
            require(json.loads(out)["error"]["code"] == "interrupted", out)
            left = [p.name for p in self.scratch.iterdir() if p.name != "big"]
            require(not left, f"left behind: {left}")

    # A merge that is killed leaves what the next one removes.
    def check_kill(self):
        big = self.big(16)
        process = subprocess.Popen([self.zckpt, "merge", big, "-o", "out", "--no-sync", "-q"], cwd=self.scratch)
        while process.poll() is None and not (self.scratch / ".out.zckpt-partial").exists():
            time.sleep(0.001)
        process.kill()
        process.wait()
        done = self("merge", self.zero("v0.19.8-z2-bf16-n2"), "-o", "out", "--force", "-q")
        require(done.returncode == 0, done.stderr)
        left = sorted(p.name for p in self.scratch.iterdir())
        require(left == ["big", "out"], f"left behind: {left}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zckpt", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("checks", nargs="+")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.checks:
        with tempfile.TemporaryDirectory() as scratch:
            program = Program(arguments.zckpt, arguments.source.resolve(), pathlib.Path(scratch))
            try:
                getattr(program, f"check_{name}")()
                print(f"ok {name}")
            except Failed as error:
                failed += 1
                print(f"FAIL {name}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
