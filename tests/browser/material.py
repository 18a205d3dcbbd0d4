"""Stores to make pages of: a run, a large sweep, and one whose every name is an attack."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from joma.records import arrow
from joma.records.store import Store

ATTACKS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "</pre></details><svg onload=window.hacked=1>",
    '"><b onmouseover=window.hacked=1>bold</b>',
    "<a href='javascript:window.hacked=1'>click</a>",
    "%{y}${alert(1)}`&lt;b&gt;",
    '=HYPERLINK("http://example.invalid")',
)


def run(name: str = "toy", steps: int = 40, layers: int = 3, dies: bool = True) -> pa.Table:
    """A run with loss, entropies, logits and certified stable ranks; it dies, or does not."""
    at = np.repeat(np.arange(steps, dtype=float) * 10, layers)
    layer = np.tile(np.arange(layers), steps)
    fall = np.exp(-at / (20 if dies else 400))
    rank = 5 + 10 * fall

    def rows(metric, value, **more):
        return arrow.from_columns(
            run=name, metric=metric, step=at, layer=layer, value=value, **more
        )

    times = np.arange(steps, dtype=float) * 10
    loss = np.full(steps, 6.0) if dies else 6 * np.exp(-times / 200)
    return pa.concat_tables(
        [
            rows("attention_entropy", 2.5 * fall, context="probe", sequence_length=35),
            rows("max_attention_logit", 1 + 300 * (1 - fall), context="probe"),
            rows("stable_rank", rank, lower=rank - 1, upper=rank + 1, bound="certified"),
            arrow.from_columns(run=name, metric="loss", step=times, value=loss, context="train"),
        ]
    )


def sweep(path: Path, rows: int) -> Store:
    """Records of a sweep with at least so many rows: 24 layers of 16 heads, 154 revisions."""
    layers, heads, revisions = 24, 16, 154
    step = np.concatenate([[0.0], 2.0 ** np.arange(10), 1000.0 * np.arange(1, revisions - 10)])
    grid = np.array(np.meshgrid(step, np.arange(layers), np.arange(heads), indexing="ij"))
    at, layer, head = (axis.ravel() for axis in grid)
    store, rng = Store(path), np.random.default_rng(0)
    for i in range(-(-rows // (2 * len(at)))):
        noise = rng.normal(size=(2, len(at)))
        for metric, value in (
            ("attention_entropy", 3 - 0.1 * np.log1p(at) + 0.1 * noise[0]),
            ("max_attention_logit", 5 + layer + 0.1 * noise[1]),
        ):
            store.append(
                arrow.from_columns(
                    run=f"suite/model-{i:02d}",
                    metric=metric,
                    step=at,
                    value=value,
                    layer=layer.astype(int),
                    head=head.astype(int),
                    context="probe",
                    sequence_length=128,
                )
            )
    return store


def hostile(path: Path) -> Store:
    """Names of runs, stages, sites, metrics and reasons that try to be markup."""
    store = Store(path, provenance={"config": {a: a for a in ATTACKS}, "command": list(ATTACKS)})
    for i, attack in enumerate(ATTACKS):
        table = run(attack, steps=4, layers=1, dies=bool(i % 2))
        site = pa.array([attack] * table.num_rows).dictionary_encode()
        place = table.schema.get_field_index("site")
        store.append(table.set_column(place, table.schema.field("site"), site))
        store.append(
            arrow.from_columns(
                run=attack,
                stage=attack,
                metric=attack,
                site=attack,
                step=[0.0, 1.0],
                value=[1.0, 2.0],
                layer=[0, 0],
            )
        )
        store.append(
            arrow.from_columns(
                run=attack, metric=attack, step=[2.0], value=[float("nan")], status=attack
            )
        )
    return store
