"""Draws the figures of the README and the docs: `python docs/figures.py` (needs joma[plot])."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from joma.theory import flow, invariants, normalised

HERE = Path(__file__).resolve().parent / "_static"
RECORDS = HERE.parents[1] / "results" / "diagnosis" / "records.parquet"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe-Ito: safe for colour-blind readers


def first_screen() -> None:
    """Theorem 1 under the full flow of Eqn. 2, and Figure 4 as drawn and as captioned."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    draw_invariant(left)
    draw_figure_4(right)
    figure.savefig(HERE / "first.png", dpi=130)


def draw_invariant(axes: plt.Axes) -> None:
    rng = np.random.default_rng(0)
    layer = flow.Layer(
        x=rng.random((6, 5)), signal=flow.cross_entropy(np.arange(6), 6), activation="gelu"
    )
    times = np.geomspace(0.01, 50.0, 60)
    start = 0.5 * rng.standard_normal((6, 6)), np.zeros(5)
    run = flow.integrate(layer, *start, np.concatenate([[0.0], times]))
    c = invariants.conserved(run.z[0], run.v[0])
    predicted = invariants.predicted_logits(run.v[1:], c)
    axes.plot(times, run.z[1:], color=BLUE, lw=4, alpha=0.45)
    axes.plot(times, predicted, color=ORANGE, lw=1.2, ls="--")
    axes.plot([], [], color=BLUE, lw=4, alpha=0.45, label="attention logits, full flow of Eqn. 2")
    axes.plot([], [], color=ORANGE, ls="--", label="read off the MLP weights, Theorem 1")
    error = np.abs(predicted - run.z[1:]).max()
    axes.set(
        xscale="log",
        xlabel="training time (flow)",
        ylabel="attention logit z",
        title=f"Theorem 1, exp attention, GELU: error {error:.0e}",
    )
    axes.legend(frameon=False, loc="upper left")


def draw_figure_4(axes: plt.Axes) -> None:
    steps = np.arange(normalised.STEPS)
    axes.plot(steps, normalised.entropy_curve(), color=BLUE, label="as drawn: softmax(v²/3)")
    printed = normalised.entropy_curve(form="printed")
    axes.plot(steps, printed, color=ORANGE, ls="--", label="as captioned: softmax(v²)")
    limit = float(normalised.entropy(normalised.MU))
    axes.axhline(limit, color=GREY, lw=0.8, ls=":")
    axes.text(steps[-1], limit + 0.04, f"limit {limit:.3f}", ha="right", color=GREY)
    axes.set(
        xlabel="step",
        ylabel="attention entropy (nats)",
        title="Figure 4: sparse, then dense again",
        ylim=(-0.08, 2.5),
    )
    axes.legend(frameon=False, loc="upper right")


def dying_run() -> None:
    """One model at two learning rates, from the records of `joma bench diagnosis`."""
    table = pq.read_table(RECORDS)
    rates = {"1-post/lr0.001": ("learning rate 1e-3", BLUE), "1-post/lr0.03": ("3e-2", ORANGE)}
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.1), layout="constrained")
    shown = {
        "attention_entropy": ("attention entropy (nats)", "linear"),
        "max_attention_logit": ("largest attention logit", "log"),
        "loss": ("validation loss", "linear"),
    }
    for axes, (metric, (label, scale)) in zip(panels, shown.items(), strict=True):
        for run, (name, colour) in rates.items():
            steps, values = probed(table, run, metric)
            axes.plot(steps, values, color=colour, label=name)
        axes.set(xlabel="step", title=label, yscale=scale)
        axes.spines[["top", "right"]].set_visible(False)
    (frequencies,) = set(probed(table, "1-post/lr0.03", "loss", kind="control")[1])
    panels[2].axhline(frequencies, color=GREY, lw=0.8, ls=":")
    panels[2].text(990, frequencies + 0.3, "word frequencies alone", ha="right", color=GREY)
    panels[0].legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.94))
    figure.savefig(HERE / "dies.png", dpi=130)


def probed(
    table: pa.Table, run: str, metric: str, kind: str = "measured"
) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and what the fixed batch showed: the largest logit, else the mean over heads."""
    for column, value in {"run": run, "metric": metric, "kind": kind, "context": "probe"}.items():
        table = table.filter(pc.equal(table[column].cast("string"), value))
    how = "max" if metric == "max_attention_logit" else "mean"
    found = table.group_by("step").aggregate([("value", how)]).sort_by("step")
    return found["step"].to_numpy(), found[f"value_{how}"].to_numpy()


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    first_screen()
    dying_run()
