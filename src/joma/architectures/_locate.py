"""From the patterns of a family to the tensors of one model."""

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from joma._core.errors import JomaError
from joma.architectures._spec import (
    Anatomy,
    Architecture,
    Attention,
    Located,
    LocatedAttention,
    LocatedMlp,
    Matrix,
    Mlp,
    Part,
    Rotary,
    Shapes,
)

_NORM = re.compile(r"(q|k|query|key)_?(norm|layernorm|ln)\b")


def locate(architecture: Architecture, shapes: Shapes) -> Anatomy:
    """The tensors of one model, by the patterns of its family.

    A prefix (`model.`, `transformer.`) may stand before every name. If two prefixes occur, as in a
    model of text and images, each becomes part of the site, so that no two places coincide.
    """
    mlps = [found for mlp in architecture.mlps for found in _mlps(mlp, shapes)]
    attentions = [
        found
        for spec in architecture.attentions
        for found in _attentions(spec, architecture.rotary, shapes)
    ]
    several = len({prefix for prefix, _ in mlps} | {prefix for prefix, _ in attentions}) > 1
    placed = [_in_tower(prefix, mlp) if several else mlp for prefix, mlp in mlps]
    watched = [_seen_in_tower(prefix, a) if several else a for prefix, a in attentions]
    placed.sort(key=lambda m: (m.upper.layer or 0, m.site or "", m.upper.expert or 0))
    watched.sort(key=lambda a: (a.layer, a.site or ""))
    return Anatomy(tuple(placed), tuple(watched), _embedding(architecture.embedding, shapes))


def split_heads(
    attention: LocatedAttention, tensors: Mapping[str, Any], heads: int
) -> dict[str, Any]:
    """Queries, keys, values and outputs of each head, whatever way the tensors hold them.

    Args:
        attention: Which tensors, in which order of heads.
        tensors: By the names in `attention.tensors`.
        heads: Query heads; the number of key heads follows from the shapes.

    Returns:
        `query` and the `key` and `value` it may share with others as (head, width, embed),
        `output` as (head, embed, width), and the biases that are there, as (head, width).
    """
    if not attention.tensors:
        raise JomaError(
            f"The order of heads in {attention.module} is not known, so no tensor of a single head "
            "can be given. Name query, key, value and output in the family's file."
        )
    whole = {role: tensors[name] for role, name in attention.tensors.items()}
    if attention.transposed:
        whole = {r: t if r.endswith("_bias") else t.T for r, t in whole.items()}
    width = whole["output"].shape[1] // heads
    split: dict[str, Any] = {}
    for suffix in ("", "_bias"):
        if f"query{suffix}" in whole:
            parts = [whole[f"{role}{suffix}"] for role in ("query", "key", "value")]
            cut = _cut_heads(attention.order, parts, heads, width)
            split |= zip((f"query{suffix}", f"key{suffix}", f"value{suffix}"), cut, strict=True)
    embed = whole["output"].shape[0]
    split["output"] = whole["output"].reshape(embed, heads, width).swapaxes(0, 1)
    return split


def _cut_heads(order: str, parts: list[Any], heads: int, width: int) -> list[Any]:
    """Matrices (rows, embed) or biases (rows,), with the rows as (head, width)."""
    if order == "separate":
        # The width of values may differ from that of keys: their head counts agree.
        kv_heads = parts[1].shape[0] // (parts[0].shape[0] // heads)
        return [
            part.reshape(count, -1, *part.shape[1:])
            for part, count in zip(parts, (heads, kv_heads, kv_heads), strict=True)
        ]
    fused = parts[0].reshape(-1, width, *parts[0].shape[1:])
    kv_heads = (fused.shape[0] - heads) // 2
    if order == "blocks":
        borders = (0, heads, heads + kv_heads, heads + 2 * kv_heads)
        return [fused[a:b] for a, b in itertools.pairwise(borders)]
    grouped = fused.reshape(kv_heads, heads // kv_heads + 2, *fused.shape[1:])
    return [grouped[:, :-2].reshape(heads, *fused.shape[1:]), grouped[:, -2], grouped[:, -1]]


def _mlps(mlp: Mlp, shapes: Shapes) -> Iterator[tuple[str, LocatedMlp]]:
    for _, prefix, layer, expert in _matches(mlp.lower[0].name, shapes):
        names = [_full(prefix, m.name, layer, expert) for m in (*mlp.lower, mlp.upper)]
        if not all(name in shapes for name in names) or not _paired(mlp, names, shapes):
            continue
        stack = range(shapes[names[0]][0]) if mlp.lower[0].stacked else (expert,)
        for member in stack:
            where = (layer, mlp.tower, member, shapes)
            lower = [_located(m, n, *where) for m, n in zip(mlp.lower, names, strict=False)]
            upper = _located(mlp.upper, names[-1], *where)
            yield prefix, LocatedMlp(tuple(lower), upper, mlp.tower)


def _paired(mlp: Mlp, names: list[str], shapes: Shapes) -> bool:
    """Whether the upper matrix undoes the shape of each lower one; two families may share names."""
    *lower, upper = (
        _taken(m, shapes[n]) for m, n in zip((*mlp.lower, mlp.upper), names, strict=True)
    )
    return all(shape is not None and shape[::-1] == upper for shape in lower)


def _taken(matrix: Matrix, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The shape (out, in) that `Located.take` would give."""
    if len(shape) != 2 + matrix.stacked:
        return None
    rows, columns = shape[-2:]
    if matrix.transposed:
        rows, columns = columns, rows
    return (rows if matrix.part is None else rows // 2), columns


def _located(
    matrix: Matrix,
    name: str,
    layer: int | None,
    tower: str | None,
    expert: int | None,
    shapes: Shapes,
) -> Located:
    site = ".".join(part for part in (tower, matrix.role) if part) or None
    shape = shapes[name][1:] if matrix.stacked else shapes[name]
    outputs = None if matrix.part is None else _outputs(matrix.part, shape[int(matrix.transposed)])
    bias = _bias(name)
    return Located(
        name,
        layer=layer,
        site=site,
        expert=expert,
        outputs=outputs,
        transposed=matrix.transposed,
        stacked=matrix.stacked,
        bias=bias if bias in shapes else None,
    )


def _attentions(
    spec: Attention, rotary: Rotary, shapes: Shapes
) -> Iterator[tuple[str, LocatedAttention]]:
    roles = {"query": spec.query, "key": spec.key, "value": spec.value, "output": spec.output}
    inside: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, prefix, layer, _ in _matches(spec.module + ".", shapes):
        if layer is not None:
            inside[prefix, layer].append(name)
    for (prefix, layer), tensors in inside.items():
        names = {r: _full(prefix, p, layer, None) for r, p in roles.items() if p is not None}
        if not all(name in shapes for name in names.values()):
            continue
        biases = {f"{role}_bias": _bias(name) for role, name in names.items()}
        names |= {role: bias for role, bias in biases.items() if bias in shapes}
        module = _full(prefix, spec.module, layer, None)
        normed = any(_NORM.match(name.removeprefix(module + ".")) for name in tensors)
        turns: Rotary = "unknown" if normed else rotary
        found = (module, layer, spec.site, names, spec.order, spec.transposed, turns)
        yield prefix, LocatedAttention(*found)


def _embedding(pattern: str | None, shapes: Shapes) -> Located | None:
    names = [] if pattern is None else [name for name, *_ in _matches(pattern, shapes)]
    return Located(min(names, key=len)) if names else None


def _matches(pattern: str, shapes: Shapes) -> Iterator[tuple[str, str, int | None, int | None]]:
    """Name, prefix, layer and expert of each tensor that a pattern fits."""
    fits = _compiled(pattern).match
    for name in shapes:
        if match := fits(name):
            numbers = match.groupdict()
            layer, expert = (
                None if numbers.get(k) is None else int(numbers[k]) for k in ("layer", "expert")
            )
            yield name, match["prefix"] or "", layer, expert


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that ends in a dot fits every name below it."""
    text = re.escape(pattern)
    for number in ("layer", "expert"):
        text = text.replace(re.escape(f"{{{number}}}"), rf"(?P<{number}>\d+)")
    return re.compile(r"(?P<prefix>(?:[^.]+\.)*?)" + text + ("" if pattern[-1] == "." else "$"))


def _full(prefix: str, pattern: str, layer: int | None, expert: int | None) -> str:
    return prefix + pattern.format(layer=layer, expert=expert)


def _bias(name: str) -> str:
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else f"{name}_bias"


def _outputs(part: Part, size: int) -> slice:
    return {
        "first half": slice(0, size // 2),
        "second half": slice(size // 2, size),
        "even": slice(0, size, 2),
        "odd": slice(1, size, 2),
    }[part]


def _in_tower(prefix: str, mlp: LocatedMlp) -> LocatedMlp:
    lower = tuple(_moved(matrix, prefix) for matrix in mlp.lower)
    return LocatedMlp(lower, _moved(mlp.upper, prefix), _tower(prefix, mlp.site))


def _moved(matrix: Located, prefix: str) -> Located:
    return replace(matrix, site=_tower(prefix, matrix.site))


def _seen_in_tower(prefix: str, attention: LocatedAttention) -> LocatedAttention:
    return replace(attention, site=_tower(prefix, attention.site))


def _tower(prefix: str, site: str | None) -> str | None:
    return ".".join(part for part in (prefix.rstrip("."), site) if part) or None
