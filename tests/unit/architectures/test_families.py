"""Every family file keeps its promises. A new file is tested on arrival."""

import re
from pathlib import Path

import pytest

from joma.architectures import registry
from joma.architectures.base import Architecture, locate

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "families.md"


@pytest.fixture(params=registry.names())
def family(request):
    return request.param, registry.load(request.param)


def names_of(architecture):
    """Every pattern of a family."""
    for mlp in architecture.mlps:
        yield from (matrix.name for matrix in (*mlp.lower, mlp.upper))
    for attention in architecture.attentions:
        roles = (attention.query, attention.key, attention.value, attention.output)
        yield from (name for name in (attention.module, *roles) if name is not None)


def test_patterns_say_where_the_layer_stands(family):
    assert isinstance(family[1], Architecture)
    for name in names_of(family[1]):
        assert name.count("{layer}") == 1
        assert not re.sub(r"\{(layer|expert)\}", "", name).count("{")


def test_one_lower_matrix_has_no_role_and_two_are_told_apart(family):
    for mlp in family[1].mlps:
        roles = [matrix.role for matrix in mlp.lower]
        assert roles == [None] if len(roles) == 1 else len(set(roles)) == len(roles) == 2
        if len(roles) == 2:  # units are linear in up: it stands last
            assert roles[0].endswith("gate")
            assert roles[1].endswith("up")


def test_heads_are_named_altogether_or_not_at_all(family):
    for a in family[1].attentions:
        given = [part is not None for part in (a.query, a.key, a.value, a.output)]
        assert all(given) or not any(given)
        fused = a.query == a.key == a.value
        assert a.order != "separate" if fused and a.query else a.order == "separate"


def test_no_two_families_claim_a_model_type():
    claimed = [t for name in registry.names() for t in registry.load(name).model_types]
    assert len(claimed) == len(set(claimed))


def test_a_family_file_is_small(family):
    path = Path(__file__).resolve().parents[3] / "src/joma/architectures" / f"{family[0]}.py"
    assert len(path.read_text().splitlines()) <= 65


def test_the_page_of_families_lists_each_with_its_model_types(family):
    name, architecture = family
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    assert re.findall(r"`([^`]+)`", rows[0].split("|")[2]) == list(architecture.model_types)


def test_nothing_is_located_where_nothing_is(family):
    anatomy = locate(family[1], {})
    assert (anatomy.mlps, anatomy.attentions, anatomy.embedding) == ((), (), None)
