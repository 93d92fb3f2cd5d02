"""What grows is measured at each size, and drawn."""

import re

import pytest

from benchmarks.growth import GROWING, Growing, Point, measured, table
from benchmarks.growth_plot import draw


@pytest.mark.parametrize("growing", GROWING, ids=lambda growing: growing.name)
def test_each_kind_of_growth_gives_figures(growing):
    """At its smallest size and the next."""
    assert all(growing.sample(size) > 0 for size in growing.sizes[:2])
    assert list(growing.sizes) == sorted(growing.sizes)


def test_each_size_has_its_median_and_quartiles():
    """Over the rounds; what is no time is measured once."""
    given = {1: iter([3.0, 1.0, 2.0]), 10: iter([30.0, 20.0, 10.0])}
    points = measured(Growing("n", "µs", (1, 10), lambda size: next(given[size])), 3)
    assert points == [Point(1, 2.0, 1.0, 3.0), Point(10, 20.0, 10.0, 30.0)]

    once = measured(Growing("n", "KiB", (1, 10), float, timed=False), 3)
    assert once == [Point(1, 1.0, 1.0, 1.0), Point(10, 10.0, 10.0, 10.0)]


def test_growth_is_shown_as_a_table_and_as_a_picture(tmp_path):
    """The picture holds its words as text, and is the same each time."""
    growing = Growing("hooks", "µs a call", (1, 1000), float)
    found = {growing: [Point(1, 2.5, 2.0, 3.0), Point(1000, 1234.0, 1200.0, 1300.0)]}
    path = tmp_path / "growth.svg"
    draw(found, path)
    first = path.read_text()
    draw(found, path)

    assert table(found).splitlines()[-1] == "| hooks | µs a call | 1: 2.5, 1,000: 1,234 |"
    words = set(re.findall(r"<text[^>]*>([^<]*)</text>", first))
    assert {"hooks", "µs a call", "1,000", "linear growth", "quartiles"} <= words
    assert path.read_text() == first
