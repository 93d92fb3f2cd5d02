"""Bins over passes, checked against a plain loop over all numbers."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.record.bins import LIMIT, Grid

plain = {"mean": statistics.fmean, "max": max, "sum": sum}


@pytest.mark.parametrize("kind", plain)
@given(st.data())
def test_each_bin_holds_what_was_put_into_its_passes(kind, data):
    first = data.draw(st.integers(0, 5))
    gaps = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=40))
    grid, number, given_ = Grid(first), first, []
    series, other = grid.series(kind), grid.series("sum")
    for gap in gaps:
        number += gap
        value = data.draw(st.floats(-9, 9))
        grid.add(series, number, value)
        given_.append((number, value))
    grid.add(other, number, 1.0)
    values = series.values()
    assert len(values) <= LIMIT
    assert number < first + LIMIT * grid.width
    assert len(other.values()) == len(values)
    for place, found in enumerate(values):
        begin = first + place * grid.width
        inside = [v for n, v in given_ if begin <= n < begin + grid.width]
        if inside:
            assert found == pytest.approx(plain[kind](inside), abs=1e-9)
        else:
            assert math.isnan(found)


def test_a_bin_becomes_no_wider_than_it_must():
    grid = Grid(0)
    series = grid.series("sum")
    for number in range(LIMIT):
        grid.add(series, number, 1.0)
    assert (grid.width, series.values()) == (1, [1.0] * LIMIT)
    grid.add(series, LIMIT, 1.0)
    assert (grid.width, series.values()) == (2, [2.0] * (LIMIT // 2) + [1.0])


def test_what_belongs_to_an_earlier_pass_counts_to_the_first_bin():
    """A backward may come late, of a pass that began before the recording did."""
    grid = Grid(10)
    series = grid.series("sum")
    grid.add(series, 7, 1.0)
    grid.add(series, 10, 1.0)
    assert series.values() == [2.0]
