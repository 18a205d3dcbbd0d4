"""The stress table of Theorem 1: its shortcuts change nothing, and a wrong row is found."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from joma.experiments import _stress, _stress_forms as forms, _thm1_claims as claims
from joma.experiments._stress_table import CONDITIONS
from joma.experiments.base import Evidence, Verdict
from joma.experiments.thm1 import EVERY_SEED
from joma.records import arrow
from joma.theory import flow, invariants

# The same sums in another basis, in float64, over 30 steps.
EXACT = 1e-12

ROWS = [row for condition in CONDITIONS for row in condition.rows]


def table(change=lambda _arm, drift: drift):
    """Records that agree with the references, unless changed."""
    parts = []
    for row in ROWS:
        steps = list(row.reference)
        drifts = [change(row.arm, drift) for drift in row.reference.values()]
        drifts = [1.0 if np.isnan(drift) else drift for drift in drifts]
        for kind in ("measured", "predicted"):
            parts.append(
                arrow.from_columns(
                    run=f"thm1/{row.arm}/seed0",
                    kind=kind,
                    metric=claims.DRIFT,
                    step=steps,
                    value=drifts,
                )
            )
    return Evidence(pa.concat_tables(parts, promote_options="permissive"))


def test_every_arm_of_the_table_has_a_name_of_its_own():
    arms = [row.arm for row in ROWS]
    assert len(set(arms)) == len(arms)
    named = {*claims.GENERAL, *claims.PRECONDITIONED, *EVERY_SEED}
    assert named <= set(arms)


def test_a_row_off_by_half_fails_the_table_and_is_named():
    assert claims.stress_table(table()).verdict is Verdict.HOLDS
    off = claims.stress_table(table(lambda arm, d: 1.5 * d if arm == "leaky" else d))
    assert off.verdict is Verdict.FAILS
    assert off.note == "Outside: leaky at 40."
    assert claims.laws(table()).verdict is Verdict.HOLDS


def test_random_embeddings_are_rotated_and_nothing_else():
    small = _stress.random_embeddings(0.05, 30, 25)(0)
    layer, W, z = _stress.figure2(0)
    U = np.random.default_rng(3).standard_normal((25, 21))
    U /= np.linalg.norm(U, axis=0)
    whole = replace(layer, U_C=U[:, :20], u_q=U[:, 20])
    path = flow.descend(whole, U @ W, z, np.full(30, 0.05))
    np.testing.assert_allclose(small.path.z, path.z, atol=EXACT)
    np.testing.assert_allclose(small.path.v, path.v, atol=EXACT)


@pytest.mark.parametrize("learned", [True, False])
def test_a_run_that_is_cut_off_is_a_shorter_run(learned):
    long, short = (_stress.plain(0.1, n, learn_embeddings=learned)(0) for n in (20, 10))
    cut = long.until(1.0).path
    np.testing.assert_array_equal(cut.times, short.path.times)
    np.testing.assert_array_equal(cut.v, short.path.v)


def test_single_precision_stays_single():
    path = _stress.single_precision(0.05, 20)(0).path
    assert np.array_equal(path.W, path.W.astype(np.float32))
    assert np.array_equal(path.z, path.z.astype(np.float32))


def test_the_law_of_steps_is_exact_for_loops_of_our_own():
    for train in (_stress.clipped(0.05, 30, 0.05), _stress.upper_layer(0.05, 30)):
        trained = train(1)
        value, _, predicted = forms.exp_form()(trained)
        np.testing.assert_allclose(value - predicted, forms.steps_law()(trained), atol=EXACT)


def test_gradients_of_keys_and_queries_are_those_of_the_logits():
    """One small step moves z by the step times (W_Q u)^2 and its twin, to first order."""
    rate = 1e-6
    trained = _stress.projected(rate, 1, 0.5, 1)(0)
    layer, path = trained
    drawn = 0.5 * np.random.default_rng(5).standard_normal((2, 2, 8, 21))[1]
    U_C, u_q = layer.embeddings[0], layer.embeddings[1][:, 0]
    keys, query = drawn[0] @ U_C, drawn[1] @ u_q
    _, z_dot = flow.velocity(layer, path.W[0], path.z[0])
    expected = (query @ query) * z_dot + keys.T @ (keys @ z_dot)
    np.testing.assert_allclose((path.z[1] - path.z[0]) / rate, expected, rtol=1e-4, atol=1e-9)


def test_one_of_two_queries_breaks_the_theorem_and_their_sum_does_not():
    trained = _stress.two_queries(0.05, 800)(0)
    each, both = (
        invariants.agreement(*form(trained)).relative_error
        for form in (forms.first_query_form, forms.all_queries_form)
    )
    assert both < 0.01 < 0.1 < each
