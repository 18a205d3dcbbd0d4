"""Charges of a real softmax Transformer, by autograd: conserved by the flow, O(step) under SGD."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from scipy.integrate import solve_ivp

from joma._core.errors import JomaError
from joma.theory import charges, drift, optimisers

# DOP853 at rtol 1e-11, up to the first kink of a ReLU; it reaches 1e-12.
FLOW = 1e-9
# Identities that hold step by step, in float64, with numbers of order one.
EXACT = 1e-12


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Transformer:
    """Causal attention, ReLU MLP, residuals, LayerNorm; cross-entropy on the last token."""

    heads: int = 2
    groups: int = 1
    """Query heads per key head."""
    width: int = 4
    embed: int = 6
    hidden: int = 4
    length: int = 4
    batch: int = 3
    biases: bool = True
    rotary: bool = False
    normalise: bool = False
    """RMSNorm on queries and keys."""
    activation: str = "relu"

    def start(self, seed=2):
        rng = np.random.default_rng(seed)
        rows, queries = self.heads * self.width, self.heads * self.groups * self.width
        shapes = {
            "W_Q": (queries, self.embed),
            "W_K": (rows, self.embed),
            "W_V": (rows, self.embed),
            "W_O": (self.embed, queries),
            "W_in": (self.hidden, self.embed),
            "W_out": (self.embed, self.hidden),
        }
        if self.biases:
            shapes |= {"b_Q": (queries,), "b_K": (rows,), "b_V": (rows,), "b_in": (self.hidden,)}
            shapes |= {"b_O": (self.embed,), "b_out": (self.embed,)}
        return {name: 0.6 * rng.standard_normal(shape) for name, shape in shapes.items()}

    def forward(self, p, gates=None):
        """Pre-activations of the MLP, and the loss; `gates` stand for the slopes of the ReLU."""
        rng = np.random.default_rng(99)
        x = torch.tensor(rng.standard_normal((self.batch, self.length, self.embed)))
        labels = torch.tensor(rng.integers(0, self.embed, self.batch))
        x = (x + self.attend(F.layer_norm(x, (self.embed,)), p))[:, -1]
        inner = F.layer_norm(x, (self.embed,)) @ p["W_in"].T + p.get("b_in", 0)
        out = getattr(F, self.activation)(inner) if gates is None else inner * gates
        x = x + out @ p["W_out"].T + p.get("b_out", 0)
        return inner, F.cross_entropy(x, labels)

    def attend(self, x, p):
        q, k, v = (self.project(x, p, name) for name in "QKV")
        k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        if self.normalise:
            q, k = (F.rms_norm(t, (self.width,), eps=0.0) for t in (q, k))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        mask = torch.ones(self.length, self.length, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / self.width**0.5).masked_fill(mask, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(self.batch, self.length, -1)
        return mixed @ p["W_O"].T + p.get("b_O", 0)

    def project(self, x, p, name):
        y = x @ p[f"W_{name}"].T + p.get(f"b_{name}", 0)
        return y.reshape(self.batch, self.length, -1, self.width).transpose(1, 2)

    def gradient(self, parameters, gates=None):
        """Descent direction, minus the gradient of the loss."""
        p = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
        grads = torch.autograd.grad(self.forward(p, gates)[1], list(p.values()))
        return {name: -grad.numpy() for name, grad in zip(p, grads, strict=True)}

    def charges(self, p):
        """All charges of the parameters, or of gradients in their place, in one vector."""

        def split(name):
            return charges.by_head(p[name], self.heads)

        def bias(name, *shape):
            return p[name].reshape(*shape, self.width) if self.biases else None

        group = (self.heads, self.groups)
        queries = split("W_Q").reshape(*group, self.width, self.embed)
        outputs = p["W_O"].reshape(self.embed, *group, self.width).transpose(1, 2, 0, 3)
        qk = charges.grouped_qk_charge(
            queries, split("W_K"), bias("b_Q", *group), bias("b_K", self.heads)
        )
        vo = charges.grouped_vo_charge(split("W_V"), outputs, bias("b_V", self.heads))
        unit = charges.relu_charge(p["W_in"], p["W_out"], p.get("b_in"))
        return {"qk": qk, "vo": vo, "unit": unit}


def rotated(x, base=10.0):
    """Rotary encoding, pairs (i, i + width/2); a small base so that every frequency matters."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * base ** -(torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def flowed(model, time, *, decay=0.0):
    """Time reached, and parameters before and after gradient flow up to the first kink.

    Between kinks a ReLU network is smooth: its gates stand still. At a kink the flow may slide
    along it, and no integrator follows that to 1e-9.
    """
    start = model.start()
    gates = None
    if model.activation == "relu":
        gates = (preactivations(model, start) > 0).double()
    ends = np.cumsum([value.size for value in start.values()])[:-1]

    def named(y):
        parts = zip(start.items(), np.split(y, ends), strict=True)
        return {name: part.reshape(value.shape) for (name, value), part in parts}

    def rhs(_, y):
        pulls = model.gradient(named(y), gates).values()
        return np.concatenate([pull.ravel() for pull in pulls]) - decay * y

    def kink(_, y):
        return (
            1.0
            if gates is None
            else float(((2 * gates - 1) * preactivations(model, named(y))).min())
        )

    kink.terminal = True
    y0 = np.concatenate([value.ravel() for value in start.values()])
    path = solve_ivp(rhs, (0.0, time), y0, "DOP853", rtol=1e-11, atol=1e-12, events=kink)
    return path.t[-1], start, named(path.y[:, -1])


def preactivations(model, p):
    return model.forward({name: torch.tensor(value) for name, value in p.items()})[0]


def trained(model, time, steps, rule=None, *, decay=0.0, seed=2):
    """Parameters of every step, and the gradients taken there."""
    rule = optimisers.sgd() if rule is None else rule
    p = model.start(seed)
    memory = {name: rule.start(value) for name, value in p.items()}
    path, gradients = [p], []
    for _ in range(steps):
        pull = {n: g - decay * p[n] for n, g in model.gradient(p).items()}
        gradients.append({n: g + decay * p[n] for n, g in pull.items()})
        turned = {n: rule.turn(g, memory[n]) for n, g in pull.items()}
        memory = {n: t[1] for n, t in turned.items()}
        p = {n: p[n] + time / steps * turned[n][0] for n in p}
        path.append(p)
    return path, gradients


def change(model, before, after):
    first, last = model.charges(before), model.charges(after)
    return {name: np.abs(last[name] - first[name]).max() for name in first}


CASES = {
    "one head": Transformer(heads=1, biases=False),
    "one head, biases": Transformer(heads=1),
    "several heads": Transformer(heads=3, biases=False),
    "several heads, biases": Transformer(heads=3),
    "grouped queries, biases": Transformer(heads=2, groups=2),
}


@pytest.mark.parametrize("case", CASES)
def test_flow_keeps_every_charge(case):
    model = CASES[case]
    _, start, end = flowed(model, 1.0)
    assert all(moved < FLOW for moved in change(model, start, end).values())
    assert np.abs(end["W_Q"] - start["W_Q"]).max() > 0.004, "nothing was trained"


@pytest.mark.parametrize("case", CASES)
def test_sgd_drifts_in_proportion_to_the_step(case):
    model = CASES[case]
    coarse, fine = (trained(model, 0.5, n)[0] for n in (60, 120))
    first, second = (change(model, run[0], run[-1]) for run in (coarse, fine))
    for name in first:
        assert 1.9 < first[name] / second[name] < 2.1, name


@given(seed=st.integers(0, 2**32 - 1), decay=st.sampled_from([0.0, 0.3]), rate=st.floats(0.01, 0.5))
@settings(deadline=None, derandomize=True, max_examples=6)
def test_each_sgd_step_adds_the_charge_of_its_gradient(seed, decay, rate):
    model = Transformer(heads=2, length=3, batch=2)
    path, gradients = trained(model, 8 * rate, 8, decay=decay, seed=seed)
    for name, initial in model.charges(path[0]).items():
        kicks = np.stack([model.charges(g)[name] for g in gradients])
        exact = charges.after_steps(initial, kicks, np.full(8, rate), decay=decay)
        measured = np.stack([model.charges(p)[name] for p in path])
        np.testing.assert_allclose(measured, exact, atol=EXACT * (1 + np.abs(measured).max()))


def test_decay_shrinks_the_charge_exponentially_under_the_flow():
    model = Transformer(heads=2)
    time, start, end = flowed(model, 1.0, decay=0.4)
    for name, initial in model.charges(start).items():
        expected = charges.after_time(initial, np.array([0.0, time]), decay=0.4)
        np.testing.assert_array_equal(expected[0], initial)
        np.testing.assert_allclose(model.charges(end)[name], expected[1], atol=FLOW)


def test_momentum_multiplies_the_drift_of_charges():
    """Heavy ball at the same effective rate; the finite step leaves 1 to 2 %."""
    model = Transformer(heads=2)
    plain = trained(model, 0.3, 300)[0]
    heavy = trained(model, 0.15, 300, optimisers.heavy_ball(0.5))[0]
    first, second = change(model, plain[0], plain[-1]), change(model, heavy[0], heavy[-1])
    for name in first:
        assert second[name] / first[name] == pytest.approx(drift.momentum_factor(0.5), rel=0.03)


def test_adam_conserves_nothing_at_any_learning_rate():
    model = Transformer(heads=2)
    coarse, fine = (trained(model, 0.5, n, optimisers.adam())[0] for n in (100, 200))
    first, second = (change(model, run[0], run[-1]) for run in (coarse, fine))
    for name in first:
        assert second[name] > 0.1
        assert first[name] / second[name] < 1.5, "smaller steps do not help"


def test_rotary_encoding_leaves_the_trace_of_each_pair_only():
    model = Transformer(heads=2, rotary=True)
    _, start, end = flowed(model, 1.0)
    before, after = (model.charges(p) for p in (start, end))
    parts = [charges.rotary_charge(c["qk"]) for c in (before, after)]
    assert np.abs(parts[1].pairs - parts[0].pairs).max() < FLOW
    assert parts[0].rest.size == 0
    moved = after["qk"] - before["qk"]  # [head, width, width]
    assert (np.abs(moved) > 1e-4).mean() > 0.8, "most entries move"
    for i in range(2):
        block = moved[:, [i, i + 2]][:, :, [i, i + 2]]
        assert np.abs(block[:, 0, 1]).max() > 1e-4, "off the diagonal"
        assert np.abs(block[:, 0, 0] - block[:, 1, 1]).max() > 1e-4, "the traceless part"
    assert np.abs(after["vo"] - before["vo"]).max() < FLOW, "values are not rotated"


def test_rotary_encoding_makes_the_key_bias_matter():
    plain, rotary = (Transformer(heads=2, rotary=r).gradient(Transformer().start()) for r in (0, 1))
    assert np.abs(plain["b_K"]).max() < EXACT < 1e-4 < np.abs(rotary["b_K"]).max()


def test_rotary_pairs_follow_the_layout():
    charge = np.diag(np.arange(1.0, 7.0))
    half = charges.rotary_charge(charge, 4)
    np.testing.assert_array_equal(half.pairs, [1 + 3, 2 + 4])
    np.testing.assert_array_equal(half.rest, np.diag([5.0, 6.0]))
    interleaved = charges.rotary_charge(charge, pairing="interleaved")
    np.testing.assert_array_equal(interleaved.pairs, [1 + 2, 3 + 4, 5 + 6])


def test_normalised_queries_and_keys_leave_the_trace_only():
    model = Transformer(heads=2, normalise=True)
    _, start, end = flowed(model, 1.0)
    moved = model.charges(end)["qk"] - model.charges(start)["qk"]
    assert np.abs(np.trace(moved, axis1=1, axis2=2)).max() < FLOW
    assert np.abs(moved).max() > 1e-3


def test_gelu_units_have_no_charge():
    model = Transformer(heads=1, activation="gelu")
    moved = change(model, *flowed(model, 0.1)[1:])
    assert moved["unit"] > 1e-4 and moved["qk"] < FLOW and moved["vo"] < FLOW


@pytest.mark.parametrize("degree", [1.0, 2.0])
def test_homogeneous_units_balance_with_their_degree(rng, degree):
    """phi(a) = relu(a)^p: one unit, one step of the exact gradient, no first-order change."""
    W_in, W_out, x, g = (rng.standard_normal(s) for s in ((3, 4), (2, 3), (7, 4), (7, 2)))
    a = np.maximum(x @ W_in.T, 0)
    G_out = g.T @ a**degree
    G_in = ((g @ W_out) * degree * a ** (degree - 1) * (a > 0)).T @ x
    h = 1e-6
    ends = [charges.relu_charge(W_in + s * G_in, W_out + s * G_out, degree=degree) for s in (h, -h)]
    assert np.abs((ends[0] - ends[1]) / (2 * h)).max() < 1e-6 * np.abs(G_in).max() ** 2


def test_gated_units_balance_up_and_down_whatever_the_gate(rng):
    p = {
        name: rng.standard_normal(s)
        for name, s in (("up", (3, 4)), ("gate", (3, 4)), ("down", (2, 3)))
    }
    p = {name: torch.tensor(value, requires_grad=True) for name, value in p.items()}
    x, y = torch.tensor(rng.standard_normal((7, 4))), torch.tensor(rng.standard_normal((7, 2)))
    ((F.silu(x @ p["gate"].T) * (x @ p["up"].T) @ p["down"].T - y) ** 2).mean().backward()
    up, down = (p[name].detach().numpy() for name in ("up", "down"))
    G_up, G_down = (p[name].grad.numpy() for name in ("up", "down"))
    step = charges.relu_charge(up - G_up, down - G_down) - charges.relu_charge(up, down)
    np.testing.assert_allclose(
        step, charges.relu_charge(G_up, G_down), atol=EXACT * np.abs(step).max()
    )


def test_single_head_functions_are_groups_of_one(rng):
    W = rng.standard_normal((4, 3, 5, 6))
    b = rng.standard_normal((3, 3, 5))
    np.testing.assert_allclose(
        charges.qk_charge(W[0], W[1], b[0], b[1]),
        charges.grouped_qk_charge(W[0][:, None], W[1], b[0][:, None], b[1]),
    )
    W_O = np.swapaxes(W[3], -1, -2)
    np.testing.assert_allclose(
        charges.vo_charge(W[2], W_O, b[2]), charges.grouped_vo_charge(W[2], W_O[:, None], b[2])
    )


def test_rejects_shapes_that_do_not_divide():
    with pytest.raises(JomaError, match="5 rows do not divide into 2 heads"):
        charges.by_head(np.ones((5, 3)), 2)
    with pytest.raises(JomaError, match="even and at most the head width 4; got 3"):
        charges.rotary_charge(np.eye(4), 3)
