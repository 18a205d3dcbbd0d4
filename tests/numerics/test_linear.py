"""Theorem 2: the closed form, an integrator, and the invariant agree; the print does not."""

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.special import log_ndtr, softmax

from joma.theory import linear

DELTAS = {
    "one_winner": np.array([1.0, 0.5, 0.2]),
    "signs_mix": np.array([-1.0, 0.7, -0.1]),
    "near_tie": np.array([1.0, 0.999, 0.3]),
    "one_stands": np.array([0.8, 0.0, -0.5]),
}
SETTINGS = {
    "paper": {},
    "scaled": {"normaliser": 1.4, "temperature": 0.7, "kappa": 1.3},
    "moved": {"v0": np.array([0.3, -2.0, 0.1]), "c": np.array([-1.0, 0.0, 0.5])},
    "all": {"normaliser": 2.0, "temperature": 1.5, "kappa": 0.4, "v0": -0.6, "c": 0.2},
}
# An ODE solved to 1e-12 and an exact formula; 1e-8 leaves room for the growth near the blow-up.
RTOL, ATOL = 1e-8, 1e-10
EXACT = 1e-13  # both sides are closed forms


@pytest.fixture(params=DELTAS)
def delta(request):
    return DELTAS[request.param]


@pytest.fixture(params=SETTINGS)
def setting(request):
    return SETTINGS[request.param]


def integrated(rates, start, times):
    return solve_ivp(
        lambda _, v: rates(v),
        (0.0, times[-1]),
        start,
        t_eval=times,
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
    ).y.T


def without(setting, *names):
    return {k: v for k, v in setting.items() if k not in names}


def test_solution_matches_integrator(delta, setting):
    times = np.linspace(0.0, 0.98 * linear.blowup_time(delta, **setting), 25)
    start = np.broadcast_to(setting.get("v0", 0.0), delta.shape)
    path = integrated(lambda v: linear.velocity(v, delta, **without(setting, "v0")), start, times)
    np.testing.assert_allclose(linear.solution(times, delta, **setting), path, rtol=RTOL, atol=ATOL)


def test_solution_matches_the_flow_of_weights_and_logits():
    """Eqn. 2 with `z` integrated on its own: Theorem 1 is not assumed, learning rates differ."""
    delta, a, temperature, kappa, c = DELTAS["signs_mix"], 1.7, 0.6, 2.5, np.array([0.1, 0.0, -0.3])

    def rates(state):
        v, z = state.reshape(2, 3)
        dv = delta * np.exp(z / temperature) / a
        return np.concatenate([dv, kappa * dv * v / temperature])

    setting = {"temperature": temperature, "kappa": kappa, "c": c}
    times = np.linspace(0.0, 0.9 * linear.blowup_time(delta, normaliser=a, **setting), 9)
    path = integrated(rates, np.concatenate([np.zeros(3), c]), times)
    exact = linear.solution(times, delta, normaliser=a, **setting)
    np.testing.assert_allclose(exact, path[:, :3], rtol=RTOL, atol=ATOL)
    np.testing.assert_allclose(linear.logits(exact, **setting), path[:, 3:], rtol=RTOL, atol=ATOL)


def test_tokens_share_one_invariant(setting):
    delta, setting = DELTAS["signs_mix"], without(setting, "v0", "c")
    times = np.linspace(0.1, 0.99, 9) * linear.blowup_time(delta, **setting)
    v = linear.solution(times, delta, **setting)
    shared = linear.invariant(v, delta, **without(setting, "normaliser"))
    scale = setting.get("temperature", 1.0) / np.sqrt(setting.get("kappa", 1.0))
    expected = np.sqrt(2 / np.pi) * times / (setting.get("normaliser", 1.0) * scale)
    np.testing.assert_allclose(shared, np.tile(expected[:, None], 3), rtol=EXACT)


def test_invariant_as_printed_is_rejected_by_an_integrator():
    """Eqn. 4 divides by 2, not sqrt(2) (E2). Kept so that nobody "fixes" us back."""
    delta = DELTAS["one_winner"]
    times = np.array([0.0, 0.9 * linear.blowup_time(delta)])
    v = integrated(lambda v: delta * np.exp(v**2 / 2), np.zeros(3), times)[-1]
    assert np.ptp(linear.invariant(v, delta)) < RTOL
    assert np.ptp(linear.invariant(v, delta, form="printed")) > 0.05


def test_velocity_as_printed_lacks_the_normaliser():
    v, delta = np.array([0.2, 0.1]), np.array([1.0, 0.5])
    printed = linear.velocity(v, delta, normaliser=1.7, form="printed")
    np.testing.assert_allclose(printed, 1.7 * linear.velocity(v, delta, normaliser=1.7), rtol=EXACT)


def test_invariant_of_a_token_without_saliency_is_undefined():
    assert np.isnan(linear.invariant(np.zeros(2), np.array([1.0, 0.0]))).tolist() == [False, True]


@pytest.mark.parametrize(
    ("delta", "v0", "c"), [(0.7, 0.4, 0.2), (0.7, -0.3, -0.1), (-0.8, 0.5, 0.0)]
)
def test_blowup_time_is_the_time_to_infinity(delta, v0, c):
    slowness = quad(lambda v: 1.3 * np.exp(-(v**2) / 2 - c), np.sign(delta) * v0, np.inf)[0]
    end = linear.blowup_time(np.array([delta]), normaliser=1.3, v0=v0, c=c)
    assert end == pytest.approx(slowness / abs(delta), rel=1e-8)


def test_tokens_without_saliency_never_diverge():
    assert linear.blowup_times(DELTAS["one_stands"])[1] == np.inf


def test_near_blowup_continues_the_solution(delta, setting):
    eps = np.array([1.0, 0.5, 1e-3])
    times = (1 - eps) * linear.blowup_time(delta, **setting)
    np.testing.assert_allclose(
        linear.near_blowup(eps, delta, **setting),
        linear.solution(times, delta, **setting),
        rtol=1e-11,
        atol=1e-13,
    )


@pytest.mark.parametrize("eps", [1e-8, 1e-15, 1e-30, 1e-100, 1e-300])
def test_winner_keeps_its_digits_near_the_blowup(eps):
    """`erfinv(1 - eps)` has lost five digits at 1e-8 and all of them at 1e-30."""
    v = linear.near_blowup(np.array([eps]), np.array([1.0, 0.3]))[0, 0]
    assert np.log(2) + log_ndtr(-v) == pytest.approx(np.log(eps), rel=EXACT)
    assert v == pytest.approx(np.sqrt(2 * np.log(1 / eps)), rel=0.15)


def test_winners_diverge_together_while_losers_freeze():
    frozen = linear.near_blowup(np.array([0.0]), np.array([-1.0, 0.5, 1.0, 0.0]))[0]
    assert frozen[0] == -np.inf and frozen[2] == np.inf and frozen[3] == 0
    assert linear.invariant(frozen[1:2], np.array([0.5]))[0] == pytest.approx(1.0, rel=EXACT)


def test_rejects_times_past_blowup(delta):
    end = linear.blowup_time(delta)
    with pytest.raises(ValueError, match=r"before the winner diverges; got .* max t = 1\."):
        linear.solution(np.array([0.0, end]), delta)
    for t in (-1.0, np.nan):
        with pytest.raises(ValueError, match=f"min t = {t:g}"):
            linear.solution(np.array([t]), delta)


def test_rejects_impossible_remainders():
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        linear.near_blowup(np.array([1.5]), np.ones(2))
    with pytest.raises(ValueError, match="Every delta is 0"):
        linear.near_blowup(np.array([0.5]), np.zeros(2))


def test_softmax_solution_matches_integrator(delta, setting):
    setting = without(setting, "normaliser")
    temperature = setting.get("temperature", 1.0)
    times = np.linspace(0.0, 30.0, 13)
    start = np.broadcast_to(setting.get("v0", 0.0), delta.shape)
    path = integrated(
        lambda v: delta * softmax(linear.logits(v, **without(setting, "v0")) / temperature),
        start,
        times,
    )
    np.testing.assert_allclose(
        linear.softmax_solution(times, delta, **setting), path, rtol=RTOL, atol=ATOL
    )


def test_softmax_clock_is_exact_early_and_late():
    delta, times = DELTAS["signs_mix"], np.geomspace(1e-9, 1e6, 16)
    v = linear.softmax_solution(times, delta)
    np.testing.assert_allclose((v / delta).sum(-1), times, rtol=EXACT)


def test_softmax_keeps_the_invariant_and_loses_the_blowup():
    delta = DELTAS["near_tie"]
    v = linear.softmax_solution(np.array([1.0, 5.0, 500.0]), delta)
    shared = linear.invariant(v, delta)
    np.testing.assert_allclose(shared, np.tile(shared[:, :1], 3), rtol=1e-12)
    assert v[-1, 0] == pytest.approx(500.0, rel=0.02)


def test_softmax_rejects_negative_times():
    with pytest.raises(ValueError, match="must be finite and not negative; got -2 to 3"):
        linear.softmax_solution(np.array([-2.0, 3.0]), np.ones(2))


def test_linear_attention_matches_integrator(delta):
    a, temperature, kappa, z0, v0 = 2.0, 0.7, 1.8, 0.9, np.array([0.1, -0.4, 0.0])

    def rates(state):
        v, z = state.reshape(2, 3)
        force = delta / (a * temperature)
        return np.concatenate([force * z, kappa * force * v])

    times = np.linspace(0.0, 3.0, 7)
    path = integrated(rates, np.concatenate([v0, np.full(3, z0)]), times)
    v, z = linear.linear_attention(
        times, delta, z0=z0, normaliser=a, temperature=temperature, kappa=kappa, v0=v0
    )
    np.testing.assert_allclose(np.hstack([v, z]), path, rtol=RTOL, atol=ATOL)
    np.testing.assert_allclose(z**2 - kappa * v**2, np.tile(z0**2 - kappa * v0**2, (7, 1)))


def test_linear_attention_from_zero_does_not_move():
    v, z = linear.linear_attention(np.array([5.0]), np.ones(2), z0=0.0)
    assert not v.any() and not z.any()
