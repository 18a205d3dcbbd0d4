"""A family for a model that no file knows, read off the shapes of its tensors.

A block holds a matrix that leaves the residual width d for another width h, and one that comes
back. Under `nn.Linear` the first is (h, d). A bias tells when a tensor is stored the other way.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

from joma.architectures._spec import Architecture, Attention, Matrix, Mlp, Shapes

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed|wte|tok", re.IGNORECASE)
_OTHER_TABLE = re.compile(r"pos|type|mask|cls", re.IGNORECASE)
_LAYER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.)")


def structure(shapes: Shapes) -> Architecture | None:
    """What can be told from shapes alone; None if no MLP and no attention is recognised."""
    patterns = {_pattern(name): shape for name, shape in shapes.items() if _LAYER.search(name)}
    width = _residual_width(patterns)
    mlps = (
        {} if width is None else _mlps(patterns, width, _parent) or _mlps(patterns, width, _block)
    )
    modules = _attention_modules(patterns)
    if not mlps and not modules:
        return None
    towers, sites = _distinct(list(mlps)), _distinct(modules)
    return Architecture(
        model_types=(),
        embedding=_embedding(shapes, width),
        mlps=tuple(replace(mlp, tower=towers[home]) for home, mlp in mlps.items()),
        attentions=tuple(Attention(module=m, site=sites[m]) for m in modules),
        rotary="unknown",
        note="Matched by the shapes of its tensors; no family file names it.",
    )


def _distinct(paths: list[str]) -> dict[str, str | None]:
    """A site for each path: none if there is one path, else as little of it as tells them apart."""
    before = {path: path.partition(".{layer}")[0] for path in paths}
    if len(paths) == 1:
        return {paths[0]: None}
    if len(set(before.values())) == len(paths):
        return dict(before)
    return {path: path.replace(".{layer}", "") for path in paths}


def _pattern(name: str) -> str:
    """The first number of a name is its layer."""
    return _LAYER.sub("{layer}", name, count=1)


def _residual_width(patterns: Shapes) -> int | None:
    """The width that most matrices of a block share."""
    counts = Counter(n for shape in patterns.values() if len(shape) == 2 for n in set(shape))
    common = counts.most_common(2)
    if not common or (len(common) == 2 and common[0][1] == common[1][1]):
        return None
    return common[0][0]


def _mlps(patterns: Shapes, width: int, home: Callable[[str], str]) -> dict[str, Mlp]:
    """Per home, the matrices that leave the residual width and the one that returns."""
    leaving: dict[str, list[tuple[int, Matrix]]] = defaultdict(list)
    returning: dict[str, list[tuple[int, Matrix]]] = defaultdict(list)
    for name, shape in patterns.items():
        if len(shape) != 2 or _ATTENTION.search(name) or width not in shape:
            continue
        if shape[0] == shape[1]:
            continue
        inner = shape[0] if shape[1] == width else shape[1]
        bias = patterns.get(name.removesuffix("weight") + "bias")
        outputs = shape[0] if bias is None else bias[0]
        matrix = Matrix(name=name, transposed=outputs != shape[0])
        (leaving if outputs == inner else returning)[home(name)].append((inner, matrix))
    found: dict[str, Mlp] = {}
    for place, uppers in returning.items():
        if len(uppers) == 1:
            inner, upper = uppers[0]
            lower = _lower(inner, leaving.get(place, []))
            found |= {place: Mlp(lower=lower, upper=upper)} if lower else {}
    return found


def _lower(inner: int, leaving: list[tuple[int, Matrix]]) -> tuple[Matrix, ...]:
    fused = [m for size, m in leaving if size == 2 * inner]
    alone = [m for size, m in leaving if size == inner]
    if fused and not alone and len(fused) == 1:
        return tuple(
            Matrix(
                name=fused[0].name, role=f"mlp.{part}", transposed=fused[0].transposed, part=part
            )
            for part in ("first half", "second half")
        )
    if len(alone) == 1:
        return (alone[0],)
    return tuple(Matrix(name=m.name, role=_role(m.name), transposed=m.transposed) for m in alone)


def _role(name: str) -> str:
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    known = [role for role in ("gate", "up") if role in leaf.lower()]
    return f"mlp.{known[0] if len(known) == 1 else leaf}"


def _parent(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[0]


def _block(name: str) -> str:
    return name.partition(".{layer}")[0] + ".{layer}"


def _attention_modules(patterns: Shapes) -> list[str]:
    """The outermost module of each block whose own name says attention."""
    modules: dict[str, None] = {}
    for name in patterns:
        parts = name.split(".")
        inside = parts.index("{layer}") + 1
        for i in range(inside, len(parts) - 1):
            if _ATTENTION.search(parts[i]) and "norm" not in parts[i].lower():
                modules[".".join(parts[: i + 1])] = None
                break
    return list(modules)


def _embedding(shapes: Shapes, width: int | None) -> str | None:
    tables = [
        name
        for name, shape in shapes.items()
        if len(shape) == 2
        and shape[1] == width
        and _EMBEDDING.search(name)
        and not _OTHER_TABLE.search(name)
        and not _LAYER.search(name)
    ]
    return max(tables, key=lambda name: shapes[name][0], default=None)
