# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that use what pickle can do, named, each made anew by a call."""

import argparse
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import uuid

import numpy
import torch


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Slots:
    __slots__ = ("a", "b", "unset")


class SlotsAndDict(Slots):
    pass


class WithState:
    def __init__(self):
        self.value = [1]

    def __getstate__(self):
        return (self.value, "state")

    def __setstate__(self, state):
        self.value, self.note = state


class Items(list):
    """A list with entries and attributes, all through __reduce__."""

    def __init__(self, *args):
        super().__init__(*args)
        self.entries = {}

    def __setitem__(self, key, value):
        self.entries[key] = value

    def __reduce__(self):
        state = {"note": getattr(self, "note", None)}
        return Items, (), state, iter(list(self)), iter(self.entries.items())


def set_by_function(obj, state):
    obj.value = state["value"]
    obj.was_set_by_function = True


class StateSetter:
    def __reduce__(self):
        return (StateSetter, (), {"value": self.value}, None, None,
                set_by_function)


class NewArgs(tuple):
    def __new__(cls, *args, scale=1):
        self = super().__new__(cls, args)
        self.scale = scale
        return self

    def __getnewargs_ex__(self):
        return tuple(self), {"scale": self.scale}


class Parent:
    """Made from its child, whose state refers back."""

    def __init__(self, child):
        self.child = child

    def __reduce__(self):
        return Parent, (self.child,), {"name": "parent"}


class Node:
    pass


class FrozenDict(dict):
    def __reduce__(self):
        return FrozenDict, (dict(self),)


Pair = collections.namedtuple("Pair", "left right")


def cyclic_list():
    a = [1]
    a += [a, [a, {"a": a}]]
    return a


def cyclic_dict():
    d = {}
    d["self"] = d
    d["list"] = [d, d]
    return d


def cyclic_tuple():
    t = ([], {}, 1, 2, 3)
    t[0].append(t)
    t[1]["t"] = (t, t[0])
    return [t, t]


def cyclic_pair():
    t = ([],)
    t[0].append(t)
    return t


def entangled_tuples():
    lists = [[] for _ in range(3)]
    tuples = [(lists[i], lists[(i + 1) % 3]) for i in range(3)]
    for i, items in enumerate(lists):
        items += [tuples[i - 1], tuples]
    return tuples[0]


def cyclic_objects():
    a, b = Node(), Node()
    a.peer, b.peer, a.all = b, a, (a, b, {a: b})
    return a


def cyclic_frozenset():
    node = Node()
    node.members = frozenset([node])
    return node.members


def cyclic_reduce():
    child = Node()
    child.parent = Parent(child)
    return child.parent


def shared():
    text, blob, items, pair = "a shared text", b"shared blob", [1], (1, "two")
    return [text, blob, items, pair, {"x": [text, blob], text: items},
            [pair, items], frozenset([text, pair])]


def numbers():
    edges = [0, 1, -1]
    for bits in (7, 8, 15, 16, 31, 32, 63, 64, 255 * 8, 256 * 8):
        for sign in (1, -1):
            edges += [sign * 2**bits + d for d in (-1, 0, 1)]
    return edges + [7**4000, True, False, None, 1e308, 5e-324, -0.0, math.inf,
                    -math.inf, math.nan, 0.1, 1 + 2j]


def texts():
    return ["", "a", "é", "\n", "\\", "\\u0041", "\\\\U", "quote'\"", "\0\x1a",
            "日本", "😀", "\ud800", "\udfff\ud800", "x" * 300, "é" * 70000,
            b"", b"\xff", b"b" * 255, b"c" * 256, b"d" * 70000, bytearray(b""),
            bytearray(b"e\xfff" * 999)]


def many():
    n = 2500
    return {"list": list(range(n)), "dict": {i: str(i) for i in range(n)},
            "set": set(range(n)), "frozen": frozenset(range(n)),
            "deque": collections.deque(range(n)), "tuple": tuple(range(n)),
            "one over": list(range(1001)), "batch": list(range(1000)),
            "shared": [x for x in [[i] for i in range(300)] for _ in "ab"]}


def containers():
    counted = collections.OrderedDict([("z", 1), ("a", 2)])
    counted.attribute = {"_metadata": 1}
    default = collections.defaultdict(list, {1: [2]})
    default[3].append(default)
    return [counted, default, collections.Counter("hello"), Pair(1, Pair(2, 3)),
            collections.deque([1, 2, 3], maxlen=5), collections.ChainMap({1: 2}),
            {1, "a", (2, 3)}, frozenset([1, frozenset()]), set(), (), [], {},
            ((),), FrozenDict(a=1), range(1, 9, 2), slice(1, None, 3)]


def objects():
    items = Items([1, 2, 3])
    items["k"], items.note = [items], "note"
    setter = StateSetter()
    setter.value = [setter, items]
    return [Point(1, Point(2)), Colour.RED, Colour.BLUE, Flags.A | Flags.B,
            WithState(), items, setter, setter, NewArgs(1, 2),
            NewArgs(3, scale=4), argparse.Namespace(a=1, b=[2]), Node, len,
            Colour, collections.OrderedDict, NotImplemented, Ellipsis]


def slots():
    """Needs protocol 2."""
    plain, both = Slots(), SlotsAndDict()
    plain.a, plain.b = 1, [plain]
    both.a, both.extra = "a", both
    return [plain, both, plain]


def library():
    return [pathlib.PurePosixPath("a/b"), pathlib.Path("c"), uuid.UUID(int=5),
            decimal.Decimal("1.50"), fractions.Fraction(1, 3),
            datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc),
            datetime.timedelta(1, 2, 3)]


def arrays():
    base = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    return [base, base.T, numpy.float64(1.5), numpy.array(["a", None], object),
            numpy.zeros(0), numpy.dtype("int16"), base, numpy.bool_(True),
            numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])]


def tensors():
    base = torch.arange(12, dtype=torch.float32)
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    parameter.ds_id, parameter.note = 7, ["attribute", base]
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    tensor.peer = parameter
    return {"base": base, "view": base[3:9].view(2, 3).t(), "again": base,
            "parameter": parameter, "tensor": tensor, "size": parameter.shape,
            "device": torch.device("cpu"), "dtype": torch.float16,
            "float8": torch.zeros(3).to(torch.float8_e4m3fn),
            "uint16": torch.zeros(3, dtype=torch.uint16),
            "conj": torch.ones(2, dtype=torch.complex64).conj(),
            "sparse": torch.eye(3).to_sparse(), "empty": torch.empty(0),
            "meta": torch.empty(2, 3, device="meta"),
            "module": torch.nn.Linear(2, 3),
            "rng": torch.get_rng_state(), "list": [base, (base,)]}


copyreg.pickle(slice, lambda s: (slice, (s.start, s.stop, s.step)))

PLAIN = [cyclic_list, cyclic_dict, cyclic_tuple, cyclic_pair, entangled_tuples,
         cyclic_objects, cyclic_frozenset, cyclic_reduce, shared, numbers,
         texts, many, containers, objects, slots, library, arrays]
TORCH = [tensors, objects, slots, shared, many, cyclic_tuple, containers]
