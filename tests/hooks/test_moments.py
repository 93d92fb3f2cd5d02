"""Moments, samples and histograms of numbers, against plain torch in 64 bits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.core.magnitudes import BINS, edges
from hookline.hooks import moments
from hookline.hooks.histogram import magnitudes
from hookline.hooks.moments import Moments, measure, pieces, sample_of, square_sum


def assert_moments(found, values):
    """All fields against plain torch over the finite values."""
    whole = values.double().flatten()
    finite = whole[whole.isfinite()]
    assert found.count == finite.numel()
    assert found.nan == int(whole.isnan().sum())
    assert found.infinite == int(whole.isinf().sum())
    assert found.zeros == int((finite == 0).sum())
    if finite.numel():
        assert found.mean == pytest.approx(float(finite.mean()), rel=1e-12, abs=1e-12)
        assert found.std == pytest.approx(float(finite.std(correction=0)), rel=1e-9, abs=1e-12)
        assert (found.minimum, found.maximum) == (float(finite.min()), float(finite.max()))
        norm = math.sqrt(max(found.sum_of_squares, 0))
        assert norm == pytest.approx(float(finite.norm()), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_moments_are_those_of_plain_torch(dtype):
    """Any dtype, worked on in 64 bits."""
    values = torch.randn(37, 11).mul(3).add(5).to(dtype)
    values[0, 0] = 0
    assert_moments(Moments.of(values), values)


def test_what_is_not_finite_is_counted_and_left_out():
    """NaN, +inf and -inf are counted apart; the rest is as if they were not there."""
    values = torch.randn(50)
    values[3], values[7], values[9] = math.nan, math.inf, -math.inf
    assert_moments(Moments.of(values), values)
    nothing = Moments.of(torch.full((3,), math.nan))
    assert (nothing.count, nothing.nan, nothing.mean, nothing.std) == (0, 3, 0.0, 0.0)


def test_of_complex_numbers_magnitudes_are_taken():
    """|z| in place of z."""
    values = torch.randn(20, dtype=torch.complex64)
    assert_moments(Moments.of(values), values.abs())
    assert float(square_sum(values)) == pytest.approx(float(values.abs().double().square().sum()))


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_merging_parts_gives_the_whole(parts):
    """However numbers are cut, the merged moments are those of all together."""
    merged = Moments()
    for part in parts:
        merged.merge(Moments.of(torch.tensor(part, dtype=torch.float64)))
    whole = torch.tensor([x for part in parts for x in part], dtype=torch.float64)
    assert merged.count == whole.numel()
    if merged.count:
        assert merged.mean == pytest.approx(float(whole.mean()), rel=1e-9, abs=1e-6)
        assert merged.std == pytest.approx(float(whole.std(correction=0)), rel=1e-6, abs=1e-6)
        assert merged.minimum == float(whole.min())
        assert merged.zeros == int((whole == 0).sum())


def test_a_small_spread_about_a_large_mean_survives_merging():
    """The sum of squares less the square of the sum would give nonsense here."""
    merged, parts = Moments(), [torch.randn(100, dtype=torch.float64) + 1e9 for _ in range(200)]
    for part in parts:
        merged.merge(Moments.of(part))
    assert merged.std == pytest.approx(float(torch.cat(parts).std(correction=0)), rel=1e-6)


def test_scaled_moments_are_those_of_scaled_numbers():
    """A loss scale is taken out after measuring."""
    values = torch.randn(100)
    values[0] = 0
    assert_moments(Moments.of(values * 1024).scaled(1 / 1024), values)


def test_large_tensors_are_worked_on_in_pieces(monkeypatch):
    """Contiguous, transposed and expanded tensors: every number once, no piece too large."""
    monkeypatch.setattr(moments, "PIECE", 100)
    whole = torch.arange(5 * 7 * 30.0).view(5, 7, 30)
    for values in (whole, whole.permute(2, 0, 1), whole[:, :1].expand(5, 9, 30), whole.view(-1)):
        found = list(pieces(values))
        assert len(found) > 1
        assert all(piece.dim() == 1 and piece.numel() <= 100 for piece in found)
        together = torch.cat(found).sort().values
        assert torch.equal(together, values.reshape(-1).sort().values)
        assert len(measure(values)) == len(found)
        assert_moments(Moments.of(values), values)
        expected = float(values.double().square().sum())
        assert float(square_sum(values)) == pytest.approx(expected)
    assert list(pieces(torch.empty(0))) == []
    assert measure(torch.empty(0)).shape == (0, 8)


def test_samples_are_spread_evenly_and_draw_no_random_number():
    """A strided sample, of a non-contiguous tensor too; the generator is left alone."""
    state = torch.get_rng_state()
    values = torch.arange(10_000.0).view(100, 100)
    assert torch.equal(sample_of(values, 10), torch.arange(10) * 1000.0)
    assert torch.equal(sample_of(values.T, 10), values.T.reshape(-1)[::1000])
    assert torch.equal(sample_of(values[:2], 1000), values[:2].reshape(-1))
    assert torch.equal(torch.get_rng_state(), state)


def test_magnitudes_are_counted_by_powers_of_two():
    """Each finite number that is not zero is in the bin of its magnitude; none is in two."""
    values = torch.randn(500, dtype=torch.float64) * torch.logspace(-20, 12, 500)
    values[:4] = torch.tensor([0.0, math.nan, math.inf, -math.inf])
    counts, limits = magnitudes(values).tolist(), edges()
    assert len(counts) == BINS == len(limits) - 1
    for low, high, count in zip(limits, limits[1:], counts, strict=False):
        size = values[4:].abs()
        assert count == int(((size >= low) & (size < high) & (size > 0)).sum())
    assert sum(counts) == 496
    assert (
        magnitudes(torch.tensor([1.0]), 0.25).tolist() == magnitudes(torch.tensor([0.25])).tolist()
    )


def test_the_histogram_of_a_tiny_number_is_in_the_first_bin():
    """Denormal numbers are not zero."""
    counts = magnitudes(torch.tensor([1e-45, 0.0, 2.0**-49])).tolist()
    assert (counts[0], sum(counts)) == (2, 2)
    assert magnitudes(torch.tensor([2.0**40, 3e38])).tolist()[-1] == 2
