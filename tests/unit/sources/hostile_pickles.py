"""Damaged and hostile `.bin` files, made from a seed: pickles that call, bombs, odd zip files.

Each maker returns the files of one revision, none of which may be accepted.
"""

import io
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import torch

from unit.sources.hostile_headers import MARKUP, PATHS

CALLS = (
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"),
    ("builtins", "eval"), ("builtins", "exec"), ("__builtin__", "eval"), ("builtins", "getattr"),
    ("builtins", "__import__"), ("importlib", "import_module"), ("runpy", "_run_code"),
    ("torch", "load"), ("torch.hub", "load"), ("torch._utils", "_rebuild_tensor"),
    ("torch.storage", "_load_from_bytes"), ("torch.jit", "load"),
    ("torch", "FloatStorage.__init__"),
    ("torch._utils", "_rebuild_tensor_v2.__globals__"), ("numpy", "load"), ("pickle", "loads"),
    ("collections", "OrderedDict.__init__"), ("collections", "defaultdict"), ("shutil", "rmtree"),
    ("webbrowser", "open"), ("code", "interact"), ("pty", "spawn"), ("socket", "socket"),
    ("operator", "attrgetter"), ("functools", "partial"), ("ctypes", "CDLL"), ("sys", "exit"),
)  # fmt: skip


def archive(table: bytes, storages=None, method=zipfile.ZIP_STORED, extra=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("m/data.pkl", table)
        file.writestr("m/byteorder", "little")
        for key, data in (storages or {"0": bytes(24)}).items():
            file.writestr(f"m/data/{key}", data)
        for name, data in extra:
            file.writestr(name, data)
    return {"pytorch_model.bin": buffer.getvalue()}


def saved(rng) -> bytes:
    names = [f"layer.{i}.weight" for i in range(rng.randint(1, 4))]
    buffer = io.BytesIO()
    torch.save(OrderedDict((n, torch.zeros(rng.randint(1, 5), 3)) for n in names), buffer)
    return buffer.getvalue()


def word(module: str, name: str, stacked: bool) -> bytes:
    if not stacked:
        return f"c{module}\n{name}\n".encode()
    return b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93"


def calling(rng):
    module, name = rng.choice(CALLS)
    argument = b"X\x0e\x00\x00\x00touch canary.t"
    ways = [b"(" + argument + b"tR", argument + b"\x85R", b"(" + argument + b"t\x81", b")R", b""]
    body = word(module, name, rng.random() < 0.5) + rng.choice(ways)
    if rng.random() < 0.5:
        body = b"}X\x01\x00\x00\x00w" + body + b"s"
    return archive(b"\x80\x02" + body + b".")


class _Caller:
    def __init__(self, function, arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


def really_pickled(rng):
    """What an attacker's own Python would write, in every protocol."""
    functions = [eval, exec, print, open, getattr, __import__, Path, bytearray, Counter, complex]
    caller = _Caller(rng.choice(functions), ("open('canary.txt', 'w')",))
    whole = rng.choice([caller, {"w": caller}, [caller], {"w": {"x": (caller, 1)}}, {caller: 1}])
    return archive(pickle.dumps(whole, protocol=rng.randint(0, 5)))


def odd_instruction(rng):
    table = {"w": 1}
    allowed = b"\x80\x95(}])N\x88\x89KMJ\x8aGX\x8cqr\x94hjt\x85\x86\x87suaec\x93RQb."
    other = [code for code in range(256) if code not in allowed]
    data = pickle.dumps(table, protocol=2)
    return archive(data[:2] + bytes([rng.choice(other)]) + rng.randbytes(9) + data[2:])


def tensor(
    storage=b"", shape=b"K\x02K\x03\x86", stride=b"K\x03K\x01\x86", offset=b"K\x00"
) -> bytes:
    """A table of one tensor, with parts that may be replaced."""
    storage = (
        storage
        or b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x06tQ"
    )
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n("
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return b"\x80\x02}" + text("w") + rebuild + storage + offset + shape + stride + hooks + b"tRs."


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def odd_view(rng):
    big = rng.choice([-1, -(2**40), 7, 2**31, 2**62, 2**63, 2**200])
    return archive(rng.choice([
        tensor(offset=number(big)), tensor(offset=b"\x88"), tensor(offset=b"N"),
        tensor(shape=number(big) + b"K\x03\x86"), tensor(shape=b"K\x02\x85"), tensor(shape=b"]"),
        tensor(stride=number(big) + b"K\x01\x86"),
        tensor(stride=b"K\x00K\x00\x86", shape=number(2**20) * 2 + b"\x86"),
        tensor(shape=b"G" + struct.pack(">d", 2.0) + b"K\x03\x86"),
        tensor(shape=b"(" + b"K\x01" * 99 + b"t"),
    ]))  # fmt: skip


def odd_storage(rng):
    def storage(kind="ctorch\nFloatStorage\n", key="0", numel=b"K\x06", tag="storage"):
        return b"(" + text(tag) + kind.encode() + text(key) + text("cpu") + numel + b"tQ"

    kinds = [
        "cos\nsystem\n",
        "ctorch\nload\n",
        "ctorch\nUntypedStorage\n",
        "ccollections\nOrderedDict\n",
    ]
    return archive(tensor(rng.choice([
        storage(kind=rng.choice(kinds)),
        storage(key=rng.choice([k for k in PATHS if k.isprintable()])),
        storage(numel=number(rng.choice([-1, 5, 7, 2**40, 2**70]))), storage(tag="module"),
        text("0") + b"Q", b")Q", b"NQ", b"P0\n", b"}", storage(key="9" * 200),
    ])))  # fmt: skip


def bomb(rng):
    """Small programs that would fill memory or never end."""
    n = rng.randint(60, 2000)
    return archive(b"\x80\x02" + rng.choice([
        b")" + b"q\x00h\x00\x86" * n + b"}h\x00N" + b"s.",      # doubled tuples
        b"}" + b")" + b"q\x00h\x00\x86" * n + b"Ns.",           # ... as a key, to be hashed
        b"]" + b"q\x00h\x00a" * n + b".",                       # a list of itself
        b"(" * (n + 200) + b".", b"}r\xff\xff\xff\xff" * n + b"0.",
        b"X\xff\xff\xff\xffa.", b"\x95" + b"\xff" * 8 + b"].", b"\x8e" + b"\xff" * 8,
        b"B\xff\xff\xff\xff",
        b"(" + b"K\x01" * n + b"l.", b"I" + b"9" * n + b"\n.", b")" + b"\x85" * n + b".",
        b"\x8a\xff" + b"\xff" * 255 + b".", b"}" + text("w") + b")" + b"\x85" * n + b"s.",
    ]))  # fmt: skip


def no_tensors(rng):
    things = [{}, {"w": 1}, {"w": "x"}, {"model": {"w": 1}}, [], 1, None, "x", (1, 2), {"w": [1.5]}]
    return archive(pickle.dumps(rng.choice(things), protocol=2))


def compressed(rng):
    return archive(tensor(), {"0": bytes(rng.randint(24, 10**5))}, zipfile.ZIP_DEFLATED)


def field(rng, signature: bytes, offset: int, form: str, values):
    """A saved file with one number of its zip structure replaced."""
    data = bytearray(saved(rng))
    places = [i for i in range(len(data)) if data.startswith(signature, i)]
    struct.pack_into(form, data, rng.choice(places) + offset, rng.choice(values))
    return {"pytorch_model.bin": bytes(data)}


def zip_directory(rng):
    return rng.choice([
        lambda: field(rng, b"PK\x01\x02", 10, "<H", [8, 9, 12, 14, 93, 99]),  # method
        lambda: field(rng, b"PK\x01\x02", 8, "<H", [1, 9, 65]),                      # encrypted
        lambda: field(rng, b"PK\x01\x02", 24, "<I", [2**31, 2**32 - 2, 10**6]),      # size
        lambda: field(rng, b"PK\x01\x02", 42, "<I", [2**31, 10**6, 1]),              # place
        lambda: field(rng, b"PK\x01\x02", 28, "<H", [0, 1, 9999, 65535]),            # name length
        lambda: field(rng, b"PK\x05\x06", 0, "<I", [0, 0x01020304]),                 # no end
        lambda: field(rng, b"PK\x05\x06", 12, "<I", [2**31, 2**32 - 2, 13]),  # its size
        lambda: field(rng, b"PK\x05\x06", 16, "<I", [2**31, 2**32 - 2, 1]),  # its place
    ])()  # fmt: skip


def zip_cut(rng):
    data = saved(rng)
    return {"pytorch_model.bin": data[: rng.randrange(len(data) - 22)]}


def zip_entries(rng):
    good = archive(tensor())["pytorch_model.bin"]
    return rng.choice([
        lambda: archive(tensor(), extra=[("n/data.pkl", b"}.")]),
        lambda: archive(tensor(), {"1": bytes(24)}),
        lambda: archive(tensor(), {"0": bytes(rng.choice([0, 4, 20, 23, 25, 4000]))}),
        lambda: {"pytorch_model.bin": good.replace(b"little", rng.choice([b"big   ", b"middle"]))},
        lambda: {"pytorch_model.bin": good.replace(b"m/data/0", b"m/data/1", 1)},
        lambda: {"pytorch_model.bin": good.replace(b"m/byteorder", b"m/data/0\0\0\0", 1)},
    ])()  # fmt: skip


def legacy(rng):
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(rng.randint(1, 50))}, buffer, _use_new_zipfile_serialization=False)
    return {"pytorch_model.bin": buffer.getvalue()}


def marked_bin_name(rng):
    names = [n for n in MARKUP if n and len(n) < 200]
    return archive(tensor().replace(text("w"), text(rng.choice(names)), 1))


PICKLES = [
    calling, really_pickled, odd_instruction, odd_view, odd_storage, bomb, no_tensors, compressed,
    zip_directory, zip_cut, zip_entries, legacy, marked_bin_name,
]  # fmt: skip
