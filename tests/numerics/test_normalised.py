"""Figure 4: the authors' steps, the exact clock, and what the caption would give."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from joma.theory import nonlinear, normalised

REFERENCE = Path(__file__).resolve().parent.parent / "reference" / "values.json"
# DOP853 at 1e-12 against the clock.
RTOL, ATOL = 1e-9, 1e-10


def integrated(times, mu, v0, divisor):
    return solve_ivp(
        lambda _, v: (mu - v) * softmax(v**2 / divisor),
        (0.0, times[-1]),
        v0,
        "DOP853",
        t_eval=times,
        rtol=1e-12,
        atol=1e-13,
    ).y.T


def test_targets_are_those_of_the_reference_and_cannot_be_changed():
    cases = json.loads(REFERENCE.read_text())["cases"]
    case = next(c for c in cases if c["id"] == "fig4.limit_entropy.T3")
    assert normalised.MU.tolist() == [float(x) for x in case["inputs"]["mu"]]
    with pytest.raises(ValueError, match="read-only"):
        normalised.MU[0] = 0.0


def test_entropy_drops_and_rebounds():
    curve = normalised.entropy_curve()
    assert len(curve) == 5000
    assert curve[0] == pytest.approx(np.log(10), rel=1e-12)
    assert (curve.argmin(), curve.min()) == (669, pytest.approx(0.941569851, abs=1e-9))
    assert curve[-1] == pytest.approx(1.549312, abs=1e-6)
    assert curve[-1] < normalised.entropy(normalised.MU[None])[0] == pytest.approx(1.621577177)


def test_caption_has_no_rebound():
    """softmax(v**2) for weights and entropy, as the caption says, stays at .0003 (E13)."""
    curve = normalised.entropy_curve(form="printed")
    assert curve.min() == pytest.approx(0.000311, abs=1e-6)
    assert curve[-1] - curve.min() < 1e-6


def test_euler_steps_of_eqn_6_itself_blow_up():
    v = np.full(10, normalised.V0)
    assert nonlinear.largest_euler_step(normalised.MU) < normalised.ETA / 9
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(normalised.STEPS):
            v = v + normalised.ETA * nonlinear.velocity(v, normalised.MU)
    assert not np.isfinite(v[-1])


def test_exact_solution_matches_integrator():
    times = np.array([0.0, 5.0, 13.4, 40.0, 100.0])
    path = integrated(times, normalised.MU, np.full(10, 0.05), 3.0)
    np.testing.assert_allclose(normalised.solution(times), path, rtol=RTOL, atol=ATOL)


def test_exact_solution_matches_integrator_for_any_signs():
    """A start against its target first makes the weight, and the normaliser, smaller."""
    mu, v0 = np.array([2.0, -1.5, 1.0]), np.array([-1.2, -0.3, 0.4])
    times = np.linspace(0.0, 12.0, 7)
    np.testing.assert_allclose(
        normalised.solution(times, mu, v0=v0, divisor=2.0),
        integrated(times, mu, v0, 2.0),
        rtol=RTOL,
        atol=ATOL,
    )


def test_clock_is_exact_over_eleven_orders_of_magnitude():
    t = np.geomspace(1e-5, 1e6, 34)
    np.testing.assert_allclose(normalised.clock(normalised.tau_at(t)), t, rtol=1e-11)


def test_clock_runs_at_the_rate_of_the_normaliser():
    tau, h = np.array([0.4, 0.65, 1.2]), 1e-5
    v = -normalised.MU * np.expm1(-normalised.path(tau))
    rate = (normalised.clock(tau + h) - normalised.clock(tau - h)) / (2 * h)
    np.testing.assert_allclose(rate, np.exp(v**2 / 3).sum(-1), rtol=1e-6)


def test_euler_error_is_first_order():
    exact = normalised.solution(np.array([10.0]))[0]
    errors = [
        np.abs(normalised.euler(eta=eta, steps=round(10 / eta) + 1)[-1] - exact).max()
        for eta in (0.02, 0.01)
    ]
    assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.05)


def test_continuous_minimum_lies_just_below_that_of_the_steps():
    found = minimize_scalar(
        lambda t: normalised.entropy(normalised.solution(np.array([t])))[0],
        bounds=(13.0, 14.0),
        method="bounded",
        options={"xatol": 1e-4},
    )
    assert found.x == pytest.approx(13.3963, abs=1e-3)
    assert found.fun == pytest.approx(0.940723, abs=1e-6)


def test_late_progress_follows_the_limiting_attention():
    late = normalised.path(normalised.tau_at(np.array([1e5, 1e5 + 1])))
    rate = late[1] - late[0]
    np.testing.assert_allclose(rate, softmax(normalised.MU**2 / 3), rtol=1e-6)
    assert 1 / rate.min() == pytest.approx(normalised.rebound_time(), rel=1e-6)


def test_rejects_negative_times():
    with pytest.raises(ValueError, match="must be finite and not negative; got -3 to -3"):
        normalised.solution(np.array([-3.0]))
