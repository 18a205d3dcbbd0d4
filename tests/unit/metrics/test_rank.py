"""Stable rank: known answers, any dtype, layout and source, and what it leaves untouched."""

import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from joma.metrics._rows import BLOCK
from joma.metrics._survey import survey
from joma.metrics.rank import (
    PROBE,
    Rows,
    StableRankProbe,
    effective_rank,
    stable_rank,
    stable_ranks,
)
from joma.probes.base import Need, Place
from joma.records.schema import OK, Bound

# Small matrices take the float64 Gram path, so known answers are met to float64 rounding.
EXACT = 1e-12
# Large ones are measured in float32: their value is good to a few of its rounding units.
SINGLE = 1e-6
# Width of the bounds that is asked for by default.
RTOL = 1e-3

LARGE = (700, 600)  # just above the size where all eigenvalues are computed


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def large(generator):
    """Decaying columns: certified in few passes."""
    weight = torch.randn(LARGE, generator=generator) / torch.arange(1, 601) ** 0.4
    return weight.contiguous()


def reference(weight):
    sigma = torch.linalg.svdvals(weight.double())
    return float((sigma / sigma[0]).square().sum())


def test_rank_one_matrix_has_stable_rank_one(generator):
    u, v = torch.randn(2, 7, generator=generator)
    found = stable_rank(torch.outer(u, v))
    assert found.value == pytest.approx(1.0, rel=SINGLE)  # the outer product is rounded
    assert found.effective_rank == pytest.approx(1.0, rel=SINGLE)


def test_orthogonal_matrix_has_full_stable_rank(generator):
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    found = stable_rank(q)
    assert found.value == pytest.approx(6.0, rel=EXACT)
    assert found.effective_rank == pytest.approx(6.0, rel=EXACT)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(5, 8), LARGE])
def test_scale_does_not_matter(generator, scale, shape):
    weight = torch.randn(shape, generator=generator)
    scaled = scale * weight
    found = stable_rank(scaled)
    assert found.value == pytest.approx(reference(weight), rel=SINGLE)
    expected = torch.linalg.svdvals(weight.double())[0] * scale
    assert found.top[0] == pytest.approx(float(expected), rel=SINGLE)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_squares_may_overflow_or_vanish_in_float64(generator, scale):
    weight = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    for small in (512, 0):
        found = stable_rank(weight * scale, small=small, columns=4)
        assert found.value == pytest.approx(reference(weight), rel=RTOL)
        assert found.lower <= reference(weight) <= found.upper


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 9), (9, 3), (64, 513), (513, 64)])
def test_small_matrices_of_any_shape_are_exact(generator, shape):
    weight = torch.randn(shape, generator=generator)
    found = stable_rank(weight)
    assert found.method == "gram" and found.passes == 1
    assert found.value == pytest.approx(reference(weight), rel=EXACT)
    assert found.top[0] == pytest.approx(torch.linalg.svdvals(weight.double())[0].item())


def test_effective_rank_is_the_exponential_of_the_entropy(generator):
    weight = torch.randn(20, 12, generator=generator, dtype=torch.float64)
    share = torch.linalg.svdvals(weight)
    share /= share.sum()
    expected = math.exp(-float((share * share.log()).sum()))
    assert stable_rank(weight).effective_rank == pytest.approx(expected, rel=EXACT)
    assert effective_rank(torch.linalg.svdvals(weight)) == pytest.approx(expected, rel=EXACT)


def test_effective_rank_of_low_rank_does_not_count_rounding(generator):
    q, _ = torch.linalg.qr(torch.randn(300, 2, generator=generator, dtype=torch.float64))
    assert stable_rank(q @ q.mT).effective_rank == pytest.approx(2.0, rel=SINGLE)


@pytest.mark.parametrize(
    ("weight", "status"),
    [
        (torch.zeros(3, 2), "zero matrix"),
        (torch.zeros(700, 600), "zero matrix"),
        (torch.tensor([[1.0, math.nan]]), "non-finite entries"),
        (torch.tensor([[1.0, math.inf]]), "non-finite entries"),
        (torch.tensor([[1.0, -math.inf]], dtype=torch.float16), "non-finite entries"),
        (torch.tensor([[1e300, math.inf]], dtype=torch.float64), "non-finite entries"),
        (torch.zeros(0, 5), "empty matrix"),
        (torch.zeros(5, 0), "empty matrix"),
    ],
)
def test_undefined_is_nan_with_its_reason(weight, status):
    found = stable_rank(weight)
    assert math.isnan(found.value) and math.isnan(found.lower) and math.isnan(found.upper)
    assert found.status == status


@pytest.mark.parametrize("shape", [LARGE, LARGE[::-1]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_and_orientation_is_certified(large, shape, dtype):
    weight = (large if shape == LARGE else large.mT.contiguous()).to(dtype)
    found = stable_rank(weight)
    truth = reference(weight)
    assert found.method == "lanczos"
    assert found.lower <= truth <= found.upper <= found.lower * (1 + 1.1 * RTOL)
    assert found.value == pytest.approx(truth, rel=SINGLE)
    assert (found.dtype == torch.float64) == (dtype == torch.float64)


def test_views_need_no_copy(large):
    truth = stable_rank(large).value
    padded = torch.zeros(1400, 1300)
    padded[::2, 5:605] = large
    for view in (large.mT, padded[::2, 5:605], padded[:, 5:605][::2].mT):
        assert stable_rank(view).value == pytest.approx(truth, rel=SINGLE)
    assert stable_rank(large.mT[:40]).value == pytest.approx(reference(large.mT[:40]), rel=EXACT)


@pytest.mark.parametrize("rtol", [1e-2, 1e-3, 1e-4, 1e-6])
def test_bounds_are_as_narrow_as_asked(large, rtol):
    found = stable_rank(large, rtol)
    assert found.lower <= reference(large) <= found.upper
    assert found.upper / found.lower - 1 <= 1.1 * rtol


def test_flat_spectrum_falls_back_to_the_gram_matrix(generator):
    weight = torch.randn(LARGE, generator=generator)
    found = stable_rank(weight, rtol=1e-8)
    assert found.method == "cholesky"
    assert found.lower <= reference(weight) <= found.upper


def test_fallback_finds_what_lanczos_missed(generator, monkeypatch):
    """Cholesky fails if the level is too low; then all eigenvalues decide."""
    weight = torch.randn(200, 120, generator=generator)
    monkeypatch.setattr("joma.metrics._certificate.Projection.blindness", lambda *_: (9.0, 0.0))
    monkeypatch.setattr("joma.metrics._lanczos._ritz", lambda c: (*_low(c), 0.0))
    found = stable_rank(weight, small=10, columns=4)
    assert found.method == "gram"
    assert found.value == pytest.approx(reference(weight), rel=EXACT)


def _low(compressed):
    values, vectors = torch.linalg.eigh((compressed + compressed.mT) / 2)
    return values * 0.5, vectors


def test_orthogonal_weights_need_no_fallback(generator):
    """All singular values at the top: rounding blurs a float32 run, a float64 one sees clearly."""
    q, _ = torch.linalg.qr(torch.randn(LARGE, generator=generator, dtype=torch.float64))
    found = stable_rank(q.float())
    assert found.method == "lanczos" and found.passes <= 4
    assert found.value == pytest.approx(600.0, rel=SINGLE)


def test_products_worse_than_float32_are_noticed(large, monkeypatch):
    """TF32 or bfloat16 matmul, switched on behind our back, costs a second run, not the truth."""
    seen = []

    def sloppy(rows, block, scale, dtype):
        seen.append(dtype)
        weight = rows.whole.to(dtype)
        x = block.to(dtype)
        if dtype == torch.float32:
            weight, x = weight.bfloat16().float(), x.bfloat16().float()
        return (weight.mT @ (weight @ x)).mT.double()

    monkeypatch.setattr("joma.metrics._lanczos.product", sloppy)
    found = stable_rank(large)
    assert seen[0] == torch.float32 and found.dtype == torch.float64
    assert found.lower <= reference(large) <= found.upper


def test_autocast_and_gradients_do_not_matter(large):
    weight = torch.nn.Parameter(large)
    with torch.autocast("cpu", torch.bfloat16):
        found = stable_rank(weight)
    assert found == stable_rank(large)
    assert found.dtype == torch.float32 and weight.grad is None


def test_same_seed_same_answer_and_no_global_state(large):
    torch.manual_seed(3)
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = stable_rank(large), stable_rank(large)
    other = stable_rank(large, seed=1)
    assert one == two and other.value != one.value
    assert other.lower <= one.value <= other.upper
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(legacy, np.random.get_state()[1])  # noqa: NPY002


def test_weights_drawn_from_our_seed_are_not_our_start(generator):
    """A model initialised with seed 0 must not be measured with its own first entries."""
    from joma.metrics._lanczos import _STREAM

    ours = np.random.default_rng([_STREAM, 0, 0]).standard_normal(8)
    theirs = [
        torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy(),
        np.random.default_rng(0).standard_normal(8),
    ]
    assert all(not np.allclose(ours, other) for other in theirs)


def test_weight_is_left_as_it_was(large):
    copy = large.clone()
    stable_rank(large)
    assert torch.equal(large, copy)


def test_half_precision_is_never_copied_as_a_whole(large):
    blocks = list(Rows.of(large.bfloat16()).blocks(torch.float32))
    assert len(blocks) > 1 and sum(map(len, blocks)) == 700
    assert max(block.numel() * 4 for block in blocks) <= BLOCK


def test_shards_and_files_are_read_by_blocks(large, tmp_path):
    save_file({"w": large}, tmp_path / "w.safetensors")

    def read():
        with safe_open(tmp_path / "w.safetensors", "pt") as file:
            part = file.get_slice("w")
            yield from (part[i : i + 150] for i in range(0, 700, 150))

    from_file = stable_rank(Rows(shape=LARGE, read=read))
    from_parts = stable_rank(Rows(shape=LARGE, read=lambda: [large[:100], large[100:]]))
    for found in (from_file, from_parts):
        assert found.method == "lanczos"
        assert found.value == pytest.approx(stable_rank(large).value, rel=SINGLE)


def test_float64_blocks_of_a_source_stay_float64(large):
    parts = [large[:300].double(), large[300:].double()]
    found = stable_rank(Rows(shape=LARGE, read=lambda: parts))
    assert found.dtype == torch.float64


def test_wide_source_needs_no_transpose(large):
    wide = large.mT.contiguous()
    for small in (0, 640):  # by Lanczos and by Gram, both on the 700 columns
        found = stable_rank(Rows(shape=(600, 700), read=lambda: [wide]), small=small)
        assert found.lower <= reference(large) <= found.upper


def test_stack_of_matrices_is_measured_one_by_one(generator):
    stack = torch.randn(2, 3, 5, 8, generator=generator)
    found = stable_ranks(stack)
    assert [each.value for each in found] == [stable_rank(w).value for w in stack.flatten(0, 1)]


def test_float32_norm_of_torch_would_have_been_wrong():
    """Naive accumulation on the CPU; kernels of torch may improve, ours must not need it."""
    weight = torch.full((2048, 2048), 0.1)
    exact = float(np.float32(0.1)) ** 2 * 2048 * 2048
    assert survey(Rows.of(weight)).squares == pytest.approx(exact, rel=EXACT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stable_rank(torch.eye(3), rtol=0.0), "rtol must lie in"),
        (lambda: stable_rank(torch.eye(3), columns=2), "columns must be at least 4; got 2"),
        (lambda: Rows.of(torch.ones(2, 2, 2)), "must be a matrix of floats; got shape"),
        (lambda: Rows.of(torch.ones(2, 2, dtype=torch.int8)), "Dequantise it first"),
        (
            lambda: stable_rank(Rows(shape=(5, 3), read=lambda: [torch.ones(4, 3)])),
            "announced 5 rows and gave 4",
        ),
        (
            lambda: stable_rank(Rows(shape=(5, 3), read=lambda: [torch.ones(5, 4)])),
            r"must have shape \(rows, 3\); got \(5, 4\)",
        ),
    ],
)
def test_refuses_with_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_probe_reads_with_certified_bounds_and_hands_back_a_start(large):
    place = Place(layer=3, site="mlp.up")
    readings, warm = PROBE.measure(place, {"weight": large})
    (reading,) = readings
    assert isinstance(PROBE, StableRankProbe) and PROBE.need is Need.MLP_IN
    assert (reading.metric, reading.layer, reading.site) == ("stable_rank", 3, "mlp.up")
    assert reading.bound == Bound.CERTIFIED and reading.status == OK
    assert reading.lower <= reference(large) <= reading.upper
    again, _ = PROBE.measure(place, {"weight": large}, warm)
    assert again[0].lower <= reference(large) <= again[0].upper


def test_probe_reads_the_effective_rank_where_it_is_free():
    readings, _ = PROBE.measure(Place(layer=0), {"weight": torch.eye(5)})
    assert {r.metric: r.value for r in readings} == {
        "stable_rank": pytest.approx(5.0),
        "effective_rank": pytest.approx(5.0),
    }


def test_probe_reads_nan_with_its_reason():
    (reading,), _ = PROBE.measure(Place(layer=0), {"weight": torch.zeros(4, 4)})
    assert math.isnan(reading.value) and reading.status == "zero matrix"
    assert reading.bound == Bound.NONE
