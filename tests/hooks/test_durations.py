"""`Durations`: sums, extremes and the median of many durations in little memory."""

import statistics
import sys

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookline.hooks.durations import EXACT, Durations

# A busy machine is no reason to fail.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

durations = st.integers(0, 10**12)


def series_of(values):
    series = Durations()
    for value in values:
        series.add(value, 0)
    return series


@patient
@given(st.lists(st.tuples(durations, durations), min_size=1, max_size=50))
def test_sums_and_extremes(calls):
    """Count, sum, sum without what was inside, minimum and maximum are those of the list."""
    series = Durations()
    for duration, inside in calls:
        series.add(duration, inside)
    values = [duration for duration, _ in calls]

    assert series.count == len(values)
    assert series.total == sum(values)
    assert series.self_total == sum(duration - inside for duration, inside in calls)
    assert (series.minimum, series.maximum) == (min(values), max(values))


@patient
@given(st.lists(durations, min_size=1, max_size=60))
@example([7] * EXACT)
@example(list(range(EXACT)))
def test_the_median_is_exact_up_to_a_bound(values):
    """Up to `EXACT` values it is the one in the middle, or halfway between the two."""
    assert series_of(values).median == statistics.median(values)


@patient
@given(st.integers(0, 2**32), st.integers(EXACT + 1, 3 * EXACT), st.integers(1, 12))
def test_the_median_is_close_beyond_the_bound(seed, count, digits):
    """Beyond it, it is right to 1.1 %, whatever the range of the values."""
    values = [1 + (seed * (n + 1) * 2_654_435_761 >> 7) % 10**digits for n in range(count)]
    ordered = sorted(values)
    low, high = ordered[(count - 1) // 2], ordered[count // 2]

    assert low * 0.989 <= series_of(values).median <= high * 1.011


def test_the_median_stays_within_the_extremes():
    """Equal values give just that value, at any number of them."""
    for value in (0, 1, 3, 1_000_003):
        for count in (1, EXACT, EXACT + 1, 2 * EXACT):
            assert series_of([value] * count).median == value


def test_values_before_the_bound_count_after_it():
    """What was added before the bound is not forgotten beyond it."""
    series = series_of([10] * EXACT + [1_000_000] * (EXACT - 2))

    assert 9.8 <= series.median <= 10.2


def test_nothing_added():
    """An empty series has zeros."""
    series = Durations()

    assert (series.count, series.total, series.self_total) == (0, 0, 0)
    assert (series.minimum, series.median, series.maximum) == (0, 0, 0)


def test_memory_does_not_grow():
    """Beyond the bound only bins and the latest are kept; at most 32 bins for each doubling."""
    series = series_of(range(1, 20 * EXACT))

    assert len(series._values) <= EXACT
    assert len(series._bins) <= 32 * 15
    assert sys.getsizeof(series._bins) < 40_000
