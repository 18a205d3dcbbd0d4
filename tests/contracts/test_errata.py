"""Every erratum refutes the print and confirms the correction. A new file is tested on arrival."""

import math

import pytest

from joma.theory.errata import registry

SEVERITY_A = range(1, 15)


@pytest.fixture(scope="module", params=registry.names())
def erratum(request):
    return request.param, registry.load(request.param)


def test_print_is_refuted_where_the_correction_holds(erratum):
    evidence = erratum[1].evidence()
    assert any(e.printed_fails for e in evidence)
    for e in evidence:
        assert e.corrected_holds, e
        assert math.isfinite(e.truth)


def test_file_name_carries_the_number(erratum):
    name, content = erratum
    assert name.startswith(f"e{content.number:02d}_")


def test_all_errata_of_severity_a_are_computed():
    numbers = [registry.load(name).number for name in registry.names()]
    assert sorted(numbers) == sorted(set(numbers))
    assert set(SEVERITY_A) <= set(numbers)
