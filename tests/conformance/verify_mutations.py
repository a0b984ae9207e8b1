# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""What verify_resume.py changes in genuine checkpoints, one thing at a time."""
import dataclasses
import json
import os
import shutil
import zipfile
from dataclasses import replace  # noqa: F401

import torch

Z2 = "v0.19.8-z2-bf16-n2"
Z3 = "v0.19.8-z3-bf16-n2"
OLD2 = "v0.14.2-z2-bf16-n2"
OLD3 = "v0.14.2-z3-bf16-n2"
SUBGROUPS = "v0.14.2-z3-bf16-n2-subgroups"

# Of --sample.
SAMPLE = {"optim shard missing", "optim shards swapped", "optim cut to half",
          "prefix of another precision", "surplus rank", "no latest"}


@dataclasses.dataclass(frozen=True)
class Change:
    name: str
    apply: object = None
    expect: str = None  # a code of the refusal
    apart: str = None  # why metadata cannot tell
    zckpt: tuple = ()  # further options of verify
    recipe: dict = dataclasses.field(default_factory=dict)
    world_size: int = None
    tag: str = None
    newest: bool = False


class Files:
    """The files of one checkpoint."""

    def __init__(self, folder, tag, fixture):
        self.folder = folder
        self.tag = folder / tag
        self.fixture = fixture

    def optim(self, rank):
        ending = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        return next(p for p in self.tag.iterdir() if p.name.endswith(ending))

    def model(self, rank=0):
        own = self.tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        whole = self.tag / "mp_rank_00_model_states.pt"
        return own if own.exists() else whole

    def file(self, kind, rank=0):
        return self.optim(rank) if kind == "optim" else self.model(rank)

    def optims(self):
        return [p for p in sorted(self.tag.iterdir()) if "optim" in p.name]

    def models(self):
        return [p for p in sorted(self.tag.iterdir()) if "model" in p.name]


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def rewrite(path, change, **options):
    tree = read(path)
    made = change(tree)
    torch.save(tree if made is None else made, path, **options)


def inner_of(tree):
    return tree["optimizer_state_dict"]


def base_of(tree):
    """torch's own state_dict."""
    inner = inner_of(tree)
    return inner["base_optimizer_state" if "base_optimizer_state" in inner
                 else "optimizer_state_dict"]


def masters_of(tree):
    inner = inner_of(tree)
    return inner["fp32_flat_groups" if "fp32_flat_groups" in inner
                 else "single_partition_of_fp32_groups"]


# ---- files ----

def remove(kind, rank):
    return lambda f: f.file(kind, rank).unlink()


def swap(kind):
    def apply(f):
        a, b = f.file(kind, 0), f.file(kind, 1)
        spare = f.folder / "spare"
        a.rename(spare)
        b.rename(a)
        spare.rename(b)
    return apply


def swap_contents(kind):
    """Swapped by something that also renames the archives inside."""
    def apply(f):
        a, b = f.file(kind, 0), f.file(kind, 1)
        first, second = read(a), read(b)
        torch.save(second, a)
        torch.save(first, b)
    return apply


def cut(kind, length, rank=1):
    def apply(f):
        path = f.file(kind, rank)
        size = path.stat().st_size
        keep = int(size * length) if isinstance(length, float) else length
        os.truncate(path, keep if keep >= 0 else size + keep)
    return apply


def surplus(f):
    path = f.optim(0)
    torch.save(read(path), f.tag / path.name.replace("rank_0_mp", "rank_2_mp"))
    path = f.model(0)
    if "zero_pp" in path.name:
        torch.save(read(path),
                   f.tag / path.name.replace("rank_0_mp", "rank_2_mp"))


def rename_prefix(ranks):
    def apply(f):
        for rank in ranks:
            path = f.optim(rank)
            name = path.name
            path.rename(path.with_name(
                name[5:] if name.startswith("bf16_") else "bf16_" + name))
    return apply


def as_folder(kind):
    def apply(f):
        path = f.file(kind, 1)
        path.unlink()
        path.mkdir()
    return apply


def dangling_link(f):
    path = f.optim(1)
    path.unlink()
    path.symlink_to("elsewhere.pt")


def links(f):
    store = f.folder / "store"
    store.mkdir()
    for path in list(f.tag.iterdir()):
        path.rename(store / path.name)
        path.symlink_to(store / path.name)


def copy_rank(rewritten):
    def apply(f):
        if rewritten:
            torch.save(read(f.optim(0)), f.optim(1))
        else:
            shutil.copy(f.optim(0), f.optim(1))
    return apply


def extra_files(f):
    (f.tag / "notes.txt").write_text("hello")
    (f.tag / "x.tmp").write_bytes(b"")
    (f.folder / "zero_to_fp32.py").write_text("# script")
    (f.folder / "logs").mkdir()


def from_other_stage(kind):
    def apply(f):
        other = f.fixture.parent / (
            f.fixture.name.replace("-z3-", "-z2-") if "-z3-" in f.fixture.name
            else f.fixture.name.replace("-z2-", "-z3-"))
        files = Files(other / "ckpt", f.tag.name, other)
        if kind == "optim":
            shutil.copy(files.optim(1), f.optim(1))
        else:
            for path in files.models():
                shutil.copy(path, f.tag)
    return apply


def torn_zip(change):
    """Writes the archive again, record by record."""
    def apply(f):
        path = f.optim(1)
        with zipfile.ZipFile(path) as old:
            records = [(i.filename, old.read(i)) for i in old.infolist()]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
            for name, data in records:
                made = change(name, data)
                if made is not None:
                    new.writestr(name, made)
    return apply


def without_record(name, data):
    return None if name.endswith("data/0") else data


def short_record(name, data):
    return data[:len(data) // 2] if name.endswith("data/0") else data


def garbage_pickle(name, data):
    if not name.endswith("data.pkl"):
        return data
    return data[:40] + b"\xff" * 8 + data[48:]


def cut_pickle(name, data):
    return data[:-40] if name.endswith("data.pkl") else data


def damaged_directory(f):
    path = f.optim(1)
    data = bytearray(path.read_bytes())
    place = data.rfind(b"PK\x01\x02")
    data[place:place + 4] = b"XXXX"
    path.write_bytes(data)


def flipped_payload(f):
    path = f.optim(1)
    with zipfile.ZipFile(path) as file:
        largest = max(file.infolist(), key=lambda i: i.file_size)
        start = largest.header_offset
    data = bytearray(path.read_bytes())
    name, extra = (int.from_bytes(data[start + at:start + at + 2], "little")
                   for at in (26, 28))
    data[start + 30 + name + extra + 2] ^= 0x41
    path.write_bytes(data)


# ---- latest and tags ----

def latest(text):
    def apply(f):
        path = f.folder / "latest"
        if text is None:
            path.unlink()
        else:
            path.write_text(text.replace("TAG", f.tag.name))
    return apply


def latest_folder(f):
    (f.folder / "latest").unlink()
    (f.folder / "latest").mkdir()


def renamed_tag(f):
    f.tag.rename(f.folder / "epoch one")
    (f.folder / "latest").write_text("epoch one")


def older_tag_beside(f):
    """latest names a damaged, older tag."""
    shutil.copytree(f.tag, f.folder / "global_step2")
    next((f.folder / "global_step2").glob("*rank_1_*optim*")).unlink()
    (f.folder / "latest").write_text("global_step2")


def newer_tag_half_written(f):
    shutil.copytree(f.tag, f.folder / "global_step4")
    next((f.folder / "global_step4").glob("*rank_1_*optim*")).unlink()
    (f.folder / "latest").write_text("global_step4")


# ---- contents ----

def drop(kind, key, ranks=None):
    def apply(f):
        paths = f.optims() if kind == "optim" else f.models()
        for path in paths:
            rewrite(path, lambda tree: delete(tree, key))
    return apply


def delete(tree, key):
    if key in tree:
        del tree[key]
    else:
        inner_of(tree).pop(key, None)


def assign(kind, key, value, rank=1):
    def change(tree):
        holder = tree if key in tree else inner_of(tree)
        holder[key] = value

    def apply(f):
        rewrite(f.file(kind, rank), change)
    return apply


def each_optim(change, ranks=(0, 1)):
    def apply(f):
        for rank in ranks:
            rewrite(f.optim(rank), change)
    return apply


def each_model(change):
    def apply(f):
        for path in f.models():
            rewrite(path, change)
    return apply


def states_of(tree):
    return [s for s in base_of(tree)["state"].values() if isinstance(s, dict)]


def drop_moment(tree, first_only=False):
    for state in states_of(tree)[:1 if first_only else None]:
        del state["exp_avg"]


def drop_first_moments(tree):
    drop_moment(tree, first_only=True)


def drop_first_state(tree):
    state = base_of(tree)["state"]
    del state[next(iter(state))]


def drop_all_states(tree):
    base_of(tree)["state"] = {}


def empty_moments(tree):
    for state in states_of(tree):
        state["exp_avg"] = state["exp_avg"][:0].clone()


def resize_moment(by):
    def change(tree):
        state = states_of(tree)[0]
        state["exp_avg"] = resized(state["exp_avg"], by)
    return change


def resized(tensor, by):
    if by < 0:
        return tensor[:by].clone()
    return torch.cat([tensor, torch.zeros(by, dtype=tensor.dtype)])


def resize_master(by):
    def change(tree):
        masters = masters_of(tree)
        masters[0] = resized(masters[0], by)
    return change


def resize_all(by):
    def change(tree):
        masters_of(tree)[0] = resized(masters_of(tree)[0], by)
        state = states_of(tree)[0]
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = resized(state[name], by)
    return change


def older_rank(tree):
    for state in states_of(tree):
        state["step"] = state["step"] * 0 + 2
    for master in masters_of(tree):
        master.data.mul_(1.25)


def nan_masters(tree):
    masters_of(tree)[0].data[3] = float("nan")


def split_group(tree):
    """Cut as another sub_group_size would cut it."""
    masters = masters_of(tree)
    half = len(masters[0]) // 2
    inner_of(tree)["fp32_flat_groups"] = [
        masters[0][:half].clone(), masters[0][half:].clone(), *masters[1:]]
    base = base_of(tree)
    state = {0: {}, 1: {}}
    for name, value in base["state"][0].items():
        whole = torch.is_tensor(value) and value.dim() == 1
        state[0][name] = value[:half].clone() if whole else value
        state[1][name] = value[half:].clone() if whole else value
    state.update({k + 1: v for k, v in base["state"].items() if k > 0})
    base["state"] = state


def merge_groups(tree):
    masters = masters_of(tree)
    inner_of(tree)["fp32_flat_groups"] = [
        torch.cat(masters[:2]), *masters[2:]]
    base = base_of(tree)
    old = base["state"]
    state = {0: {
        name: torch.cat([value, old[1][name]])
        if torch.is_tensor(value) and value.dim() == 1 else value
        for name, value in old[0].items()}}
    state.update({k - 1: v for k, v in old.items() if k > 1})
    base["state"] = state


def drop_param_group(tree):
    base_of(tree)["param_groups"].pop()


def drop_master(tree):
    masters_of(tree).pop()


def rename_parameter(tree):
    for group in tree["param_shapes"]:
        if "up.bias" in group:
            group["up.other"] = group.pop("up.bias")


def reshape_parameter(tree):
    for group in tree["param_shapes"]:
        if "up.bias" in group:
            group["up.bias"] = torch.Size([7])


def reorder_parameters(tree):
    group = tree["param_shapes"][0]
    items = list(group.items())
    group.clear()
    group.update(reversed(items))


def drop_shapes_group(tree):
    tree["param_shapes"].pop()


def drop_module_entry(name):
    def change(tree):
        del tree["module"][name]
    return change


def reshape_module_entry(tree):
    tree["module"]["up.bias"] = tree["module"]["up.bias"][:-1].clone()


def drop_fragment(tree):
    tree["frozen_param_fragments"].popitem()


def short_fragment(tree):
    fragments = tree["frozen_param_fragments"]
    name = next(iter(fragments))
    fragments[name] = fragments[name].reshape(-1)[:-1].clone()


def cut_zero_optimizer(key):
    def change(tree):
        del tree["optimizer"][key]
    return change


def set_key(key, value):
    def change(tree):
        tree[key] = value
    return change


class Call:
    """Pickled as a call of a harmless function of a module that is not."""

    def __reduce__(self):
        return (os.getcwd, ())


def legacy(f):
    for path in f.optims() + f.models():
        rewrite(path, lambda tree: None,
                _use_new_zipfile_serialization=False)


def legacy_cut(f):
    path = f.optim(1)
    rewrite(path, lambda tree: None, _use_new_zipfile_serialization=False)
    os.truncate(path, path.stat().st_size - 9)


def resaved(f):
    for path in f.optims() + f.models():
        rewrite(path, lambda tree: None)


def set_all(key, value):
    return each_model(set_key(key, value))


PAYLOAD = "payload: --full"
NO_RANK = "nothing in a stage-3 shard but its archive's name tells its rank"


def zero_mutations():
    """[(case, Change)]"""
    made = []

    def add(cases, name, apply=None, expect=None, **more):
        for case in cases.split():
            made.append((case, Change(name, apply, expect, **more)))

    both = f"{Z2} {Z3}"
    # Missing, misplaced, foreign.
    add(both, "optim shard missing", remove("optim", 1), "optim-shard-missing")
    add(both, "first optim shard missing", remove("optim", 0),
        "optim-shard-missing")
    add(both, "model shard missing", remove("model", 1), "model-shard-missing")
    add(Z3, "first model shard missing", remove("model", 0),
        "model-shard-missing")
    add(both, "surplus rank", surplus)
    add(both, "optim shards swapped", swap("optim"), "file-misnamed")
    add(Z3, "model shards swapped", swap("model"), "file-misnamed")
    add(Z3, "optim contents swapped", swap_contents("optim"), apart=NO_RANK)
    add(Z2, "optim contents swapped", swap_contents("optim"), apart=PAYLOAD)
    add(both, "rank copied over another", copy_rank(False), "file-misnamed")
    add(Z2, "rank saved over another", copy_rank(True))
    add(Z3, "rank saved over another", copy_rank(True), "file-duplicate")
    add(both, "prefix of another precision", rename_prefix([0, 1]),
        "prefix-mixed")
    add(both, "one prefix of another precision", rename_prefix([1]),
        "prefix-mixed")
    add("v0.19.8-z3-fp32-n2 v0.19.8-z1-fp16-n2", "prefix of bf16",
        rename_prefix([0, 1]), "prefix-mixed")
    add(both, "folder for a file", as_folder("optim"))
    add(Z3, "folder for a model file", as_folder("model"))
    add(Z3, "dangling link", dangling_link)
    add(both, "links to another folder", links)
    add(both, "extra files", extra_files)
    add(both, "optim shard of another stage", from_other_stage("optim"),
        "stage-conflict")
    add(both, "model files of another stage beside",
        from_other_stage("model"))
    # Cut off, damaged.
    for kind in ("optim", "model"):
        for name, length in (("nothing", 0), ("one byte", 1),
                             ("100 bytes", 100), ("half", 0.5),
                             ("but one byte", -1), ("but the end", -22)):
            cases = both if name in ("nothing", "half") else Z3
            add(cases, f"{kind} cut to {name}", cut(kind, length))
    add(Z2, "record missing", torn_zip(without_record), "record-missing")
    add(Z2, "record too short", torn_zip(short_record))
    add(Z3, "pickle overwritten", torn_zip(garbage_pickle), "pickle-invalid")
    add(Z3, "pickle cut", torn_zip(cut_pickle), "pickle-invalid")
    add(Z3, "directory damaged", damaged_directory, "container-damaged")
    add(both, "byte of a payload flipped", flipped_payload, apart=PAYLOAD)
    add(both, "NaN in the masters", each_optim(nan_masters, [1]),
        apart=PAYLOAD)
    add(both, "legacy container", legacy)
    add(Z3, "legacy container cut", legacy_cut, "file-truncated")
    add(both, "saved again", resaved)
    add(Z2, "Nebula placeholder",
        lambda f: torch.save("", f.model()), "foreign-writer")
    add(Z3, "Nebula placeholder",
        lambda f: torch.save("", f.optim(1)))
    add(Z3, "a list for a dict", lambda f: torch.save([1], f.optim(1)))
    # latest and tags.
    add(both, "no latest", latest(None), "latest-missing")
    add(Z2, "no latest, tag given", latest(None), zckpt=("--tag", "global_step3"),
        tag="global_step3")
    add(Z2, "latest empty", latest(""))
    add(Z2, "latest with spaces", latest("  TAG \n\n"))
    add(Z2, "latest dangling", latest("global_step9"), "latest-dangling")
    add(Z2, "latest a path", latest("../ckpt/TAG"))
    add(Z2, "latest a folder", latest_folder)
    add(Z2, "tag renamed", renamed_tag)
    add(Z2, "latest names an older, damaged tag", older_tag_beside,
        newest=True)
    add(Z2, "latest names a half-written tag", newer_tag_half_written,
        newest=True)
    # Keys.
    for key in ("module", "dp_world_size", "mp_world_size", "global_steps",
                "skipped_steps", "global_samples", "lr_scheduler", "optimizer",
                "param_shapes", "buffer_names", "shared_params", "ds_config",
                "ds_version", "frozen_param_shapes", "frozen_param_fragments"):
        add(Z3 if key.startswith("frozen") or key == "module" else Z2,
            f"model without {key}", drop("model", key))
    for key in ("optimizer_state_dict", "base_optimizer_state",
                "single_partition_of_fp32_groups", "loss_scaler",
                "dynamic_loss_scale", "overflow", "clip_grad", "zero_stage",
                "group_paddings", "partition_count", "ds_version",
                "param_slice_mappings", "param_alignment_paddings"):
        add(Z2, f"optim without {key}", drop("optim", key))
    for key in ("fp32_flat_groups", "zero_stage", "loss_scaler",
                "dynamic_loss_scale", "overflow", "partition_count"):
        add(Z3, f"optim without {key}", drop("optim", key))
    add(Z3, "optim without torch's state",
        each_optim(lambda tree: delete(inner_of(tree), "optimizer_state_dict")))
    add(Z2, "optim without ds_version inside",
        each_optim(lambda tree: delete(inner_of(tree), "ds_version")),
        "key-missing")
    add(both, "optim without torch's groups",
        each_optim(lambda tree: delete(base_of(tree), "param_groups")),
        "key-missing")
    add("v0.19.8-z1-fp32-n2-aligned", "optim without paddings",
        drop("optim", "param_alignment_paddings"))
    add("v0.19.8-z2-bf16-n2-warmup", "scheduler without state",
        set_all("lr_scheduler", None))
    add("v0.19.8-z2-bf16-n2-warmup", "scheduler without key",
        drop("model", "lr_scheduler"))
    add("v0.19.8-z0-bf16-n2", "stage 0 without optimizer",
        set_all("optimizer", None), "optimizer-state-absent")
    add("v0.19.8-z0-bf16-n2", "stage 0 without masters",
        each_model(cut_zero_optimizer("fp32_groups")))
    add("v0.19.8-z0-bf16-n2", "stage 0 without torch's state",
        each_model(cut_zero_optimizer("optimizer_state_dict")))
    # The run that wants to resume.
    add(both, "another world size", expect="world-size-conflict", world_size=1,
        zckpt=("--world-size", "1"))
    add(Z2, "stage 3 wanted", expect="stage-conflict",
        recipe={"stage": 3}, zckpt=("--stage", "3"))
    add(Z3, "stage 2 wanted", expect="stage-conflict",
        recipe={"stage": 2}, zckpt=("--stage", "2"))
    add(Z2, "stage 1 wanted", recipe={"stage": 1}, zckpt=("--stage", "1"))
    add(both, "fp16 wanted", expect="prefix-mixed", recipe={"dtype": "fp16"},
        zckpt=("--dtype", "fp16"))
    add(Z3, "fp32 wanted", expect="prefix-mixed", recipe={"dtype": "fp32"},
        zckpt=("--dtype", "fp32"))
    # Numbers.
    add(Z2, "another dp_world_size", assign("model", "dp_world_size", 4),
        "world-size-conflict")
    add(Z3, "another dp_world_size", set_all("dp_world_size", 4))
    add(Z3, "one rank of another dp_world_size",
        assign("model", "dp_world_size", 4), "world-size-conflict")
    add(Z2, "another mp_world_size", assign("model", "mp_world_size", 2))
    add(both, "optim shard of another step", each_optim(older_rank, [1]),
        "step-mismatch")
    add(Z3, "model shard of another step",
        assign("model", "global_steps", 2), "step-mismatch")
    add(Z2, "another version", assign("model", "ds_version", "0.17.6"))
    add(Z2, "another config", assign("optim", "ds_config", {"a": 1}))
    add(Z3, "ds_config a path", set_all("ds_config", "/x/ds.json"))
    # Groups and moments.
    add(Z3, "one rank cut into other sub-groups",
        each_optim(split_group, [1]), "group-length-mismatch")
    add(Z3, "cut into other sub-groups", each_optim(split_group))
    add(SUBGROUPS, "one rank cut into other sub-groups",
        each_optim(merge_groups, [1]), "group-length-mismatch")
    add(SUBGROUPS, "cut into other sub-groups", each_optim(merge_groups))
    for name, ranks in (("one rank", [1]), ("all ranks", [0, 1])):
        add(both, f"{name} without a moment", each_optim(drop_moment, ranks))
        add(both, f"{name} without a moment of a group",
            each_optim(drop_first_moments, ranks))
        add(both, f"{name} without a group's state",
            each_optim(drop_first_state, ranks))
        add(both, f"{name} without states",
            each_optim(drop_all_states, ranks))
    add(both, "empty moments", each_optim(empty_moments, [1]))
    for by in (-1, 1):
        add(both, f"moment resized by {by}",
            each_optim(resize_moment(by), [1]))
        add(both, f"master resized by {by}",
            each_optim(resize_master(by), [1]))
        add(both, f"group resized by {by}", each_optim(resize_all(by), [1]))
    add(f"{both}", "optim without a group of torch",
        each_optim(drop_param_group))
    add(f"{both}", "optim without a master group", each_optim(drop_master))
    # Names.
    add(both, "parameter renamed", each_model(rename_parameter))
    add(both, "parameter of another shape", each_model(reshape_parameter))
    add(both, "shapes without a group", each_model(drop_shapes_group))
    add(Z2, "module without a weight", each_model(drop_module_entry("up.bias")))
    add(Z3, "module without a weight", each_model(drop_module_entry("up.bias")))
    add(both, "module without a buffer",
        each_model(drop_module_entry("table")))
    add(Z2, "module without a frozen weight",
        each_model(drop_module_entry("adapter.bias")))
    add(Z2, "weight of another shape", each_model(reshape_module_entry))
    add(Z3, "frozen fragment missing", each_model(drop_fragment))
    add(Z3, "frozen fragment too short", each_model(short_fragment))
    # Client state.
    add(Z2, "a call in the client state",
        each_model(set_key("client", Call())), "pickle-dangerous")
    # Older DeepSpeed.
    old = f"{OLD2} {OLD3}"
    add(old, "optim shard missing", remove("optim", 1), "optim-shard-missing")
    add(old, "prefix of another precision", rename_prefix([0, 1]),
        "prefix-mixed")
    add(old, "optim cut to half", cut("optim", 0.5))
    add(old, "another dp_world_size", set_all("dp_world_size", 4))
    add(old, "one rank without a moment", each_optim(drop_moment, [1]))
    add(old, "surplus rank", surplus)
    return made


# ---- the Trainer ----

def state_text(text):
    return lambda f: (f.folder / "trainer_state.json").write_text(text)


def without_file(name):
    return lambda f: (f.folder / name).unlink()


def write_file(name, data):
    return lambda f: (f.folder / name).write_bytes(data)


def without_global_step(f):
    path = f.folder / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["global_step"]
    path.write_text(json.dumps(state))


def tag_without_step(f):
    f.tag.rename(f.folder / "mine")
    (f.folder / "latest").write_text("mine")


def cut_file(name):
    def apply(f):
        path = f.folder / name
        os.truncate(path, path.stat().st_size // 2)
    return apply


def hf_mutations():
    """[(case, Change)]"""
    case = "full_z3_bf16"
    return [(name, Change("unchanged")) for name in (
        "full_z2_bf16", case, "full_z3_fp32_subgroups", "lora_z3_fp32",
        "lora_z2_fp32", "lora_z3_fp32_save_only")] + [
        (case, Change(*fields)) for fields in (
            ("no trainer_state.json", without_file("trainer_state.json"),
             "trainer-state-missing"),
            ("trainer_state.json cut", cut_file("trainer_state.json"),
             "trainer-state-invalid"),
            ("trainer_state.json without step", without_global_step),
            ("trainer_state.json a list", state_text("[1]"),
             "trainer-state-invalid"),
            ("trainer_state.json empty", state_text(""),
             "trainer-state-invalid"),
            ("no scheduler.pt", without_file("scheduler.pt"),
             "scheduler-missing"),
            ("scheduler.pt cut", cut_file("scheduler.pt")),
            ("no rng_state", without_file("rng_state_1.pth")),
            ("rng_state cut", cut_file("rng_state_1.pth"), "rng-damaged"),
            ("rng_state empty", write_file("rng_state_0.pth", b""),
             "rng-damaged"),
            ("no latest", without_file("latest"), "latest-missing"),
            ("latest dangling", write_file("latest", b"global_step9"),
             "latest-dangling"),
            ("tag named otherwise", tag_without_step, "latest-dangling"),
            ("no training_args.bin", without_file("training_args.bin")),
            ("no config.json", without_file("config.json")),
            ("optim shard missing", remove("optim", 1),
             "optim-shard-missing"),
        )]
