"""Damaged and hostile safetensors headers, shard tables and names, made from a seed.

Each maker returns the files of one revision, none of which may be accepted.
"""

import json
import struct

MARKUP = (
    "<script>alert(1)</script>", "<b>", "a&amp;b", "\x1b[31mred", "a\x00b", "a\nb",
    "[red]x[/]\u202e", "../../etc/passwd", "..", "/etc/../x..y", "a\\b", "w\u200b", "x" * 5000, "",
    "a;rm -rf ~", "`id`",
    "${HOME}", "'quoted'", '"', "{{7*7}}", "%2e%2e%2f%00", "é",
)  # fmt: skip
PATHS = (
    "../model.safetensors", "/etc/passwd", "a/../../b", "..", ".", "", "//x", "x/..", "./x", "-rf",
    "~root/x", "a\\..\\b", "C:\\x", "refs/../x", "a//b", "\x00", "a b\n", "<img src=x>", "a?b#c",
    "a%2f..",
    "..%2f", "step1;ls", "step1\x1b]0;x\x07", "step" + "9" * 300, "😀", "step１",
)  # fmt: skip


def safetensors(entries, data: bytes, length: int | None = None) -> dict[str, bytes]:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(text) if length is None else length
    return {"model.safetensors": struct.pack("<Q", size) + text + data}


def good(rng):
    """A valid header of a few tensors, and its data."""
    entries, data = {}, b""
    for i in range(rng.randint(2, 5)):
        shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        size = 2
        for n in shape:
            size *= n
        where = [len(data), len(data) + size]
        entries[f"layer.{i}.weight"] = {"dtype": "F16", "shape": shape, "data_offsets": where}
        data += rng.randbytes(size)
    return entries, data


def some(rng, entries):
    return entries[rng.choice(sorted(entries))]


def huge_length(rng):
    entries, data = good(rng)
    size = rng.choice(
        [2**64 - 1, 2**63, 2**32, 10**9, len(data) + 10**4, rng.randrange(10**5, 2**64)]
    )
    return safetensors(entries, data, size)


def short_length(rng):
    entries, data = good(rng)
    return safetensors(entries, data, rng.randrange(0, len(json.dumps(entries)) - 1))


def overlap(rng):
    entries, data = good(rng)
    names = sorted(entries)
    entries[names[1]] = dict(some(rng, {names[0]: entries[names[0]]}))
    return safetensors(entries, data)


def shifted(rng):
    entries, data = good(rng)
    entry, by = some(rng, entries), rng.choice([-2, -1, 1, 2, 7, 2**40, 2**62])
    entry["data_offsets"] = [n + by for n in entry["data_offsets"]]
    return safetensors(entries, data)


def out_of_range(rng):
    entries, data = good(rng)
    entry = some(rng, entries)
    entry["shape"] = [rng.choice([2**20, 2**40, 2**62, 2**63, 2**64]), *entry["shape"]]
    if rng.random() < 0.5:
        entry["data_offsets"][1] = entry["data_offsets"][0] + 2 * 2**20
    return safetensors(entries, data)


def deep_json(rng):
    depth = rng.choice([2_000, 20_000, 100_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    inside = b"0" if opening != b"[" else b""
    return safetensors(b'{"w":' + opening * depth + inside + closing * depth + b"}", b"")


def duplicate_keys(rng):
    entries, data = good(rng)
    name = rng.choice(sorted(entries))
    if rng.random() < 0.5:
        again = json.dumps({name: entries[name]})[1:-1]
        return safetensors((json.dumps(entries)[:-1] + "," + again + "}").encode(), data)
    text = json.dumps(entries).replace('"dtype": "F16"', '"dtype": "F32", "dtype": "F16"', 1)
    return safetensors(text.encode(), data)


def wrong_types(rng):
    entries, data = good(rng)
    entry = some(rng, entries)
    key = rng.choice(["dtype", "shape", "data_offsets"])
    wrong = [None, True, -1, 1.5, "x", [], {}, [None], [-1, 2], [0.0, 2.0], [True, 2], ["0", "2"]]
    wrong += [[[0], [2]], [10**30, 10**30], float("nan"), [0, 1, 2], [1] * 40]
    value = rng.choice(wrong)
    if key == "shape" and value == []:  # a scalar: valid if it has two bytes
        value = [0.5]
    entry[key] = value
    return safetensors(entries, data)


def odd_entries(rng):
    entries, data = good(rng)
    name = rng.choice(sorted(entries))
    if rng.random() < 0.5:
        entries[name] = rng.choice([None, 1, "x", [], {}, [1, 2]])
    elif rng.random() < 0.5:
        entries[name].pop(rng.choice(sorted(entries[name])))
    else:
        entries[name]["code"] = "__import__('os')"
    return safetensors(entries, data)


def bad_dtype(rng):
    entries, data = good(rng)
    names = [
        "f16",
        "F17",
        "OBJECT",
        "",
        "torch.float16",
        "<b>",
        "F4",
        "os.system",
        "I128",
        "x" * 999,
    ]
    some(rng, entries)["dtype"] = rng.choice(names)
    return safetensors(entries, data)


def other_dtype(rng):
    entries, data = good(rng)
    some(rng, entries)["dtype"] = rng.choice(["F32", "F64", "U8", "I8", "C64", "BOOL"])
    return safetensors(entries, data)


def cut(rng):
    (data,) = safetensors(*good(rng)).values()
    return {"model.safetensors": data[: rng.randrange(len(data))]}


def appended(rng):
    (data,) = safetensors(*good(rng)).values()
    return {"model.safetensors": data + rng.randbytes(rng.randint(1, 3000))}


def not_json(rng):
    texts = [
        b"\xff\xfe{}",
        b"nan",
        b"[]",
        b'"x"',
        b"1" * 5000,
        b"{",
        b"{]}",
        b"null",
        b"",
        b"\x00" * 9,
    ]
    return safetensors(rng.choice([*texts, rng.randbytes(rng.randint(1, 200))]), b"")


def marked_name(rng):
    entries, data = good(rng)
    name = rng.choice(sorted(entries))
    odd = rng.choice(MARKUP)
    if rng.random() < 0.5:
        odd = rng.choice(["layer.", ""]) + odd + rng.choice([".weight", ""])
    if odd.strip(".") in ("", "layer.weight", "weight", "layer"):
        odd = "<x>"
    entries[odd] = entries.pop(name)
    return safetensors(entries, data)


def sharded(places, **more) -> dict[str, bytes]:
    shard = safetensors({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")
    files = {"a.safetensors": shard["model.safetensors"]}
    table = json.dumps({"weight_map": places, **more}).encode()
    return {**files, "model.safetensors.index.json": table}


def shard_paths(rng):
    return sharded({"w": rng.choice([*PATHS, "b.safetensors", "model.safetensors.index.json"])})


def shard_tables(rng):
    maps = [
        None,
        [],
        1,
        "a.safetensors",
        {"w": 1},
        {"w": ["a.safetensors"]},
        {"v": "a.safetensors"},
    ]
    maps += [{"w": "a.safetensors", odd: "a.safetensors"} for odd in MARKUP]
    return sharded(rng.choice(maps))


HEADERS = [
    huge_length, short_length, overlap, shifted, out_of_range, deep_json, duplicate_keys,
    wrong_types, odd_entries, bad_dtype, other_dtype, cut, appended, not_json, marked_name,
    shard_paths, shard_tables,
]  # fmt: skip
