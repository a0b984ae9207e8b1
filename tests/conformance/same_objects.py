# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two Python objects down to types, order, bits and sharing."""

import numpy
import torch


class Difference(Exception):
    pass


# Objects whose identity carries no meaning: Python makes or shares them as it
# likes.
ATOMS = (int, float, complex, type(None), type(Ellipsis))


class Comparison:
    def __init__(self):
        self.forward = {}
        self.backward = {}
        self.alive = []  # ids stay unique only while their objects live

    def fail(self, path, message):
        raise Difference(f"{path or '.'}: {message}")

    def same_identity(self, a, b, path):
        """True where the pair was compared before."""
        known = self.forward.get(id(a))
        if known is not None or id(b) in self.backward:
            if known != id(b) or self.backward.get(id(b)) != id(a):
                self.fail(path, f"{type(a).__name__} is shared differently")
            return True
        self.forward[id(a)] = id(b)
        self.backward[id(b)] = id(a)
        self.alive.append((a, b))
        return False

    def compare(self, a, b, path=""):
        if type(a) is not type(b):
            self.fail(path, f"{type(a)} became {type(b)}")
        if isinstance(a, ATOMS) and type(a).__module__ == "builtins":
            if repr(a) != repr(b):
                self.fail(path, f"{a!r} became {b!r}")
            return
        if isinstance(a, (str, bytes)) and len(a) < 2:
            if a != b:
                self.fail(path, f"{a!r} became {b!r}")
            return
        if isinstance(a, tuple) and not a:
            return
        if self.same_identity(a, b, path):
            return
        self.contents(a, b, path)

    def contents(self, a, b, path):
        if isinstance(a, (type, torch.dtype, torch.device, torch.layout)):
            if a != b:
                self.fail(path, f"{a} became {b}")
            return
        if isinstance(a, (str, bytes, bytearray)):
            if a != b:
                self.fail(path, f"{a!r} became {b!r}")
        elif isinstance(a, torch.Tensor):
            self.tensor(a, b, path)
        elif isinstance(a, numpy.ndarray):
            self.array(a, b, path)
        elif isinstance(a, dict):
            self.mapping(a, b, path)
        elif isinstance(a, (set, frozenset)):
            self.set(a, b, path)
        elif isinstance(a, (list, tuple)) or hasattr(a, "popleft"):
            self.sequence(list(a), list(b), path)
            if hasattr(a, "maxlen") and a.maxlen != b.maxlen:
                self.fail(path, "maxlen differs")
        elif not self.has_attributes(a):
            self.opaque(a, b, path)
        self.attributes(a, b, path)

    def sequence(self, a, b, path):
        if len(a) != len(b):
            self.fail(path, f"{len(a)} items became {len(b)}")
        for i, (x, y) in enumerate(zip(a, b)):
            self.compare(x, y, f"{path}[{i}]")

    def mapping(self, a, b, path):
        self.sequence(list(a.keys()), list(b.keys()), path + ".keys()")
        for key, x, y in zip(a.keys(), a.values(), b.values()):
            self.compare(x, y, f"{path}[{str(key)[:60]!r}]")
        factory = getattr(a, "default_factory", None)
        if factory is not getattr(b, "default_factory", None):
            self.fail(path, "default_factory differs")

    def set(self, a, b, path):
        if len(a) != len(b):
            self.fail(path, f"{len(a)} members became {len(b)}")
        counterparts = {member: member for member in b}
        for member in a:
            if member in counterparts:
                self.compare(member, counterparts[member], path + "{}")
            elif type(member).__hash__ is not object.__hash__:
                self.fail(path, f"{member!r} is gone")

    def array(self, a, b, path):
        same = a.dtype == b.dtype and a.shape == b.shape
        if same and a.dtype != object:
            same = a.tobytes() == b.tobytes() and a.strides == b.strides
        if not same:
            self.fail(path, "array differs")
        if a.dtype == object:
            self.sequence(list(a.flat), list(b.flat), path)

    def tensor(self, a, b, path):
        def properties(t):
            return (t.dtype, t.layout, t.device, t.shape, t.requires_grad)

        if properties(a) != properties(b):
            self.fail(path, f"{properties(a)} became {properties(b)}")
        if a.layout == torch.sparse_coo:
            self.tensor(a._indices(), b._indices(), path + ".indices")
            self.tensor(a._values(), b._values(), path + ".values")
            return
        if a.device.type == "meta" or a.is_quantized:
            if a.stride() != b.stride() or repr(a) != repr(b):
                self.fail(path, "tensor differs")
            return
        if (a.stride(), a.storage_offset()) != (b.stride(), b.storage_offset()):
            self.fail(path, "stride or offset differs")
        x, y = a.untyped_storage(), b.untyped_storage()
        if x.nbytes() != y.nbytes():
            self.fail(path, f"storage of {x.nbytes()} became {y.nbytes()}")
        if x.nbytes() == 0:
            return
        known = self.forward.setdefault(("storage", x.data_ptr()), y.data_ptr())
        back = self.backward.setdefault(("storage", y.data_ptr()), x.data_ptr())
        if (known, back) != (y.data_ptr(), x.data_ptr()):
            self.fail(path, "storage is shared differently")

        def raw(storage):
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            return flat.numpy().tobytes()

        if raw(x) != raw(y):
            self.fail(path, "storage bytes differ")

    @staticmethod
    def slots(a):
        names = []
        for cls in type(a).__mro__:
            if cls.__module__ in ("builtins", "collections"):
                continue
            found = cls.__dict__.get("__slots__", ())
            names += [found] if isinstance(found, str) else list(found)
        return [n for n in names if n not in ("__dict__", "__weakref__")]

    def has_attributes(self, a):
        return hasattr(a, "__dict__") or bool(self.slots(a))

    def attributes(self, a, b, path):
        if isinstance(getattr(a, "__dict__", None), dict):
            self.sequence(list(vars(a)), list(vars(b)), path + ".__dict__")
            for name in vars(a):
                self.compare(vars(a)[name], vars(b)[name], f"{path}.{name}")
        for name in self.slots(a):
            # Caches, filled or not by whoever looked first.
            if type(a).__module__.startswith("pathlib"):
                continue
            if hasattr(a, name) != hasattr(b, name):
                self.fail(path, f"slot {name} differs")
            if hasattr(a, name):
                self.compare(getattr(a, name), getattr(b, name),
                             f"{path}.{name}")
        if type(a).__module__.startswith("pathlib") and a != b:
            self.fail(path, f"{a} became {b}")

    def opaque(self, a, b, path):
        if isinstance(a, torch.Generator):
            self.tensor(a.get_state(), b.get_state(), path)
        elif repr(a) != repr(b) and a != b:
            self.fail(path, f"{a!r} became {b!r}")


def compare(a, b):
    """Raises Difference with the place of the first difference."""
    Comparison().compare(a, b)
