"""The stress table of Theorem 1: conditions, and the drift that each was once measured to have.

References were measured with independent code, on seed 0. `nan` where there is none.
"""

from typing import Any

from joma.experiments import _stress_forms as forms
from joma.experiments._stress import (
    HIDDEN,
    SHARED,
    Condition,
    Law,
    Read,
    Row,
    Train,
    clipped,
    plain,
    projected,
    random_embeddings,
    scheduled,
    shared_query,
    single_precision,
    two_queries,
    upper_layer,
)
from joma.experiments._stress_forms import exp_form, steps_law
from joma.theory import drift, optimisers

HORIZON = 40.0  # sum of learning rates, unless a row has another
BETA = 0.9
NONE = {HORIZON: float("nan")}


def _steps(rate: float, horizon: float = HORIZON) -> int:
    return round(horizon / rate)


def _row(
    arm: str,
    train: Train,
    reference: float,
    law: Law | None = None,
    *,
    read: Read | None = None,
    horizon: float = HORIZON,
    skip: int | None = None,
) -> Condition:
    """A condition of one row, read as Theorem 1 for exp attention unless told otherwise."""
    row = Row(arm=arm, reference={horizon: reference}, read=read or exp_form(), law=law, skip=skip)
    return Condition(train=train, rows=(row,))


def _sgd() -> list[Condition]:
    """Finite steps, and changes that keep the symmetry behind the invariant."""
    rates = ((0.1, 2.84e-3), (0.05, 1.41e-3), (0.025, 7.05e-4))
    nodes = (("gelu", 1.46e-3), ("silu", 1.49e-3), ("tanh", 1.60e-3), ("leaky", 1.71e-3))
    batches = ((4, 0.205), (1, 0.630))
    exact, n = steps_law(), _steps(0.05)
    return [
        *(_row(f"sgd_{r:g}", plain(r, _steps(r)), ref, exact) for r, ref in rates),
        _row("no_residual", plain(0.05, n, residual=False), 1.42e-3, exact),
        *(_row(phi, plain(0.05, n, activation=phi), ref, exact) for phi, ref in nodes),
        *(
            _row(f"upper_layer_{r:g}", upper_layer(r, _steps(r)), ref, exact)
            for r, ref in ((0.05, 1.53e-3), (0.025, 7.63e-4))
        ),
        _row("schedule", scheduled(0.05, n), 2.34e-3, exact),
        _row("clipping", clipped(0.05, n, 0.05), 1.31e-3, exact),
        _row("float32", single_precision(0.05, n), 1.41e-3, exact),
        *(
            _row(
                f"minibatch_{b}_of_{HIDDEN}",
                plain(0.05, n, activation="gelu", batch=b),
                ref,
                exact,
            )
            for b, ref in batches
        ),
    ]


def _optimisers() -> list[Condition]:
    """Learning rates of their own, momentum, preconditioning, decay."""
    adams = ((0.01, 200, 0.599), (0.003, 700, 0.474), (0.001, 2000, 0.448), (0.0003, 6700, 0.533))
    momentum = steps_law(factor=drift.momentum_factor(BETA))
    decays = ((1e-3, 1.60e-2, 3.37e-4), (1e-2, 0.143, 2.20e-4), (5e-2, 0.430, 2.32e-5))
    rate, n = 0.0125, _steps(0.0125)
    found = [
        Condition(
            train=plain(0.05, _steps(0.05), kappa=k),
            rows=(
                Row(
                    arm=f"kappa_{k:g}_unscaled",
                    reference={HORIZON: raw},
                    read=exp_form(),
                    law=forms.unscaled_law(k),
                ),
                Row(
                    arm=f"kappa_{k:g}_rescaled",
                    reference={HORIZON: scaled},
                    read=exp_form(k),
                    law=steps_law(k),
                ),
            ),
        )
        for k, raw, scaled in ((0.1, 9.01, 1.41e-3), (3.0, 0.666, 1.55e-3))
    ]
    for eta, ref in ((0.005, 2.73e-2), (0.0025, 1.35e-2), (0.00125, 6.72e-3)):
        heavy = plain(eta, _steps(eta, HORIZON / 10), rule=optimisers.heavy_ball(BETA))
        found.append(_row(f"heavy_ball_{eta:g}", heavy, ref, momentum, horizon=HORIZON / 10))
    for lr, steps, ref in adams:
        adam = plain(lr, steps, rule=optimisers.adam())
        found.append(_row(f"adam_{lr:g}", adam, ref, horizon=lr * steps))
    found.append(_row("sign", plain(0.001, 2000, rule=optimisers.sign()), 1.09, horizon=2.0))
    for lam, both, double in decays:
        same = plain(rate, n, decay_w=lam, decay_z=lam)
        twice = plain(rate, n, decay_w=lam, decay_z=2 * lam)
        found.append(_row(f"decay_{lam:g}", same, both, forms.decay_law(lam, lam)))
        found.append(_row(f"decay_{lam:g}_z_double", twice, double, read=forms.decayed_form(lam)))
    return found


def _architecture() -> list[Condition]:
    """LayerNorm, embeddings and the way logits come about."""
    rate, n = 0.05, _steps(0.05)
    norm, overlap = forms.rate_law(drift.layer_norm_defect), forms.rate_law(drift.overlap_defect)
    dims = ((30, 1.02), (100, 0.305), (300, 0.106), (1000, 6.38e-2), (10000, 1.92e-2))
    return [
        *(
            _row(f"layer_norm_A_{a:g}", plain(rate, n, unit_norm=True, normaliser=a), ref, norm)
            for a, ref in ((0.1, 2.13), (1.0, 7.41e-2))
        ),
        *(_row(f"embed_{d}", random_embeddings(rate, n, d), ref, overlap) for d, ref in dims),
        Condition(
            train=plain(rate, n, learn_embeddings=True),
            rows=(
                Row(arm="learned", reference={HORIZON: 2.56}, read=exp_form()),
                Row(
                    arm="learned_new_charge",
                    reference={HORIZON: 5.42e-4},
                    read=forms.embedding_form,
                ),
            ),
        ),
        *(
            _row(f"keys_queries_{scale:g}", projected(rate, n, scale, draw), ref)
            for draw, (scale, ref) in enumerate(((0.1, 1.64), (0.5, 0.917), (1.0, 1.46)))
        ),
        _row("query_is_token", shared_query(rate, n), 1.39e-3, overlap, skip=SHARED),
        Condition(
            train=two_queries(rate, n),
            rows=(
                Row(arm="two_queries_each", reference=NONE, read=forms.first_query_form),
                Row(
                    arm="two_queries_sum",
                    reference=NONE,
                    read=forms.all_queries_form,
                    law=steps_law(),
                ),
            ),
        ),
    ]


def _linear() -> list[Condition]:
    """Linear attention, from z near 1, since it cannot leave 0 (E16)."""
    rates = ((0.1, 2.52e-3), (0.05, 1.25e-3), (0.025, 6.25e-4))
    form = forms.linear_form()

    def train(rate: float, steps: int, **options: Any) -> Train:
        return plain(rate, steps, attention="linear", z_start=1.0, **options)

    n = _steps(0.05)
    adam, heavy = optimisers.adam(), optimisers.heavy_ball(BETA)
    decay = train(0.0125, _steps(0.0125), decay_w=0.01, decay_z=0.01)
    return [
        *(
            _row(f"linear_sgd_{r:g}", train(r, _steps(r)), ref, forms.linear_law, read=form)
            for r, ref in rates
        ),
        _row(
            "linear_gelu", train(0.05, n, activation="gelu"), 9.35e-4, forms.linear_law, read=form
        ),
        _row(
            "linear_no_residual",
            train(0.05, n, residual=False),
            1.25e-3,
            forms.linear_law,
            read=form,
        ),
        _row("linear_layer_norm", train(0.05, n, unit_norm=True), 2.13, read=form),
        _row("linear_adam", train(0.003, 700, rule=adam), 0.298, read=form, horizon=2.1),
        _row("linear_heavy_ball", train(0.005, 800, rule=heavy), 2.43e-2, read=form, horizon=4.0),
        _row("linear_decay", decay, 2.68e-4, read=forms.linear_form(0.01)),
    ]


def _softmax() -> list[Condition]:
    """Softmax attention with T = .5: Eqn. 18, and the path-integral form beside it."""
    far = 200.0

    def pair(
        name: str, fixed: dict[float, float], path: dict[float, float], train: Train
    ) -> Condition:
        return Condition(
            train=train,
            rows=(
                Row(arm=name, reference=fixed, read=forms.softmax_form),
                Row(arm=f"{name}_path", reference=path, read=forms.path_form),
            ),
        )

    def train(rate: float = 0.1, steps: int = 2000, **options: Any) -> Train:
        settings: dict[str, Any] = {
            "attention": "softmax",
            "temperature": 0.5,
            "activation": "linear",
        } | options
        return plain(rate, steps, **settings)

    sgd = ({50.0: 0.167, 100.0: 0.656, far: 7.83}, {50.0: 8.19e-2, 100.0: 9.71e-2, far: 0.151})
    adam = train(0.003, 1000, rule=optimisers.adam())
    return [
        pair("softmax", *sgd, train()),
        pair("softmax_gelu", {far: 2.06}, {far: 0.157}, train(activation="gelu")),
        pair("softmax_relu", {far: 1.15}, {far: 0.253}, train(activation="relu")),
        pair("softmax_no_residual", {far: 7.69}, {far: 0.140}, train(residual=False)),
        pair("softmax_layer_norm", {far: 6.99}, {far: 0.613}, train(unit_norm=True)),
        pair("softmax_adam", {3.0: 62.9}, {3.0: 16.0}, adam),
    ]


CONDITIONS: tuple[Condition, ...] = (
    *_sgd(),
    *_optimisers(),
    *_architecture(),
    *_linear(),
    *_softmax(),
)
