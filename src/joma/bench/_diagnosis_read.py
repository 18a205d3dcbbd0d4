"""The runs of `joma bench diagnosis` as its detectors see them: ours, and the authors'."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq

from joma._core.errors import JomaError
from joma._core.typing import Array
from joma.analysis.calibration import Calibration
from joma.analysis.ceiling import causal_ceiling
from joma.analysis.curves import Curve, curves
from joma.analysis.diagnosis import verdicts
from joma.analysis.facts import Facts, unfit
from joma.analysis.series import Series, series
from joma.analysis.standing import Seen, advanced
from joma.bench._diagnosis_runs import FILE, SETUPS, Setup
from joma.bench._diagnosis_score import Run
from joma.records.schema import Context, Kind

ROOT: Final = Path(__file__).resolve().parents[3]
RESULTS: Final = ROOT / "results" / "diagnosis"
SHARED: Final = Path(os.environ.get("JOMA_SHARED", ROOT.parent / "shared"))
AUTHORS: Final = SHARED / "reference" / "authors_wikitext2_curves.csv"
AUTHORS_LENGTH: Final = 35
AUTHORS_UNIGRAM: Final = 6.687
"""Loss of word frequencies on WikiText-2: counts of train.txt, cross-entropy of valid.txt."""


def own_runs(
    path: Path = RESULTS / FILE, setups: Sequence[Setup] = SETUPS
) -> tuple[list[Run], dict[str, Series]]:
    """The kept runs, as signals for detectors and as observations for the rule."""
    if not path.is_file():
        raise JomaError(
            f"{path} is not there: the records are part of a checkout. To train the runs anew: "
            "python -m joma.bench._diagnosis_runs CORPUS FOLDER."
        )
    table = pq.read_table(path)
    by_run: dict[str, list[Curve]] = defaultdict(list)
    for curve in curves(table):
        by_run[curve.run].append(curve)
    runs = [_own(name, setup, rate, by_run[name]) for setup in setups for name, rate in setup.runs]
    facts = {
        name: Facts(
            qk_norm=setup.qk_norm,
            warmup=setup.warmup,
            sequence_length=setup.length,
            vocabulary=setup.vocabulary,
        )
        for setup in setups
        for name, _ in setup.runs
    }
    return runs, {one.run: replace(one, facts=facts[one.run]) for one in series(table)}


def _own(name: str, setup: Setup, rate: float, of_run: list[Curve]) -> Run:
    probe, train, measured = Context.PROBE.value, Context.TRAIN.value, Kind.MEASURED.value
    found = {(c.metric, c.context, c.kind, c.layer or 0): c.values for c in of_run}

    def column(metric: str, context: str, number: int = 1) -> Array:
        return np.stack([found[metric, context, measured, i] for i in range(number)], -1)

    entropy = column("attention_entropy_sink_free", probe, setup.layers)
    loss = column("loss", probe)
    return Run(
        name=name,
        configuration=setup.name,
        held_out=setup.held_out,
        rate=rate,
        steps=next(c.steps for c in of_run if c.metric == "learning_rate"),
        loss=loss[:, 0],
        unigram=float(found["loss", probe, Kind.CONTROL.value, 0][0]),
        signals={
            "entropy": -entropy / causal_ceiling(setup.length),
            "max logit": column("max_attention_logit", probe, setup.layers),
            "loss-only": loss,
            "gradient-norm-only": np.log(column("gradient_norm", train)),
            "learning-rate-only": np.log(column("learning_rate", train)),
        },
    )


def authors_runs(path: Path = AUTHORS) -> tuple[list[Run], dict[str, Series]]:
    """The authors' 141 runs of Figures 6 and 8; depth is the configuration."""
    table = csv.read_csv(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    runs, observed = [], {}
    keys = sorted(set(zip(columns["n_layers"], columns["lr"], columns["seed"], strict=True)))
    for depth, rate, seed in keys:
        mine = (columns["n_layers"] == depth) & (columns["lr"] == rate) & (columns["seed"] == seed)
        order = np.lexsort((columns["layer"][mine], columns["minibatch"][mine]))
        shape = (-1, int(depth))
        steps = columns["minibatch"][mine][order].reshape(shape)[:, 0].astype(float)
        loss = columns["val_loss"][mine][order].reshape(shape)[:, 0]
        entropy = columns["attention_entropy"][mine][order].reshape(shape)
        name = f"{depth} layers/lr{rate:g}/seed{seed}"
        ceiling = causal_ceiling(AUTHORS_LENGTH)
        runs.append(
            Run(
                name=name,
                configuration=f"{depth} layers",
                held_out=True,
                rate=float(rate),
                steps=steps,
                loss=loss,
                unigram=AUTHORS_UNIGRAM,
                signals={
                    "entropy": -entropy / ceiling,
                    "loss-only": loss[:, None],
                    "learning-rate-only": np.full((len(steps), 1), np.log(rate)),
                },
            )
        )
        seen = tuple(
            Seen(step=s, entropy=entropy[i], logit=np.full(int(depth), np.nan), loss=loss[i])
            for i, s in enumerate(steps)
        )
        observed[name] = Series(
            name, tuple(range(int(depth))), seen, Facts(sequence_length=AUTHORS_LENGTH)
        )
    return runs, observed


def rule_alarms(observed: Iterable[Series], limits: Calibration) -> dict[str, float]:
    """Step at which the rule first raises an alarm, by run; `nan` if it never does."""
    return {one.run: _rule_alarm(one, limits) for one in observed}


def _rule_alarm(one: Series, limits: Calibration) -> float:
    standing = None
    for seen in one.seen:
        standing = advanced(standing, seen, limits)
        if any(v.alarm for v in verdicts(standing, limits)) and not unfit(
            standing, one.facts, limits
        ):
            return float(seen.step)
    return float("nan")
