"""What differs between two runs: each kind of change, what is too small, and the order."""

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    ParameterRow,
    Silent,
    StatsRow,
    TimeRow,
)
from hookline.record.rows import ModuleRow, RunRow
from hookline.record.runs import Rank, RunData
from hookline.report.compare import CHANGES, compare, missing, totals
from hookline.report.difference import print_difference
from tests.record.sample import SLOW, sample

AT = ("Net", "head", "Linear", "module", "train")


def of(*rows):
    tables = {}
    for row in rows:
        tables.setdefault(type(row), []).append(row)
    return RunData([Rank(Path(), tables)])


def time_row(path="head", own=1.0, calls=10, direction="forward"):
    times = (own, own, own / calls, own / calls, own / calls)
    return TimeRow("Net", path, "Linear", "module", "train", direction, calls, *times)


def stats_row(norm=10.0, abs_max=2.0, zero_share=0.25):
    numbers = (0.5, 1.0, -1.0, 2.0, abs_max, norm, zero_share, 0, 0)
    return StatsRow(*AT, "forward", "output", 2, 80, *numbers)


def memory_row(outputs=1000, saved=1000):
    return MemoryRow(*AT, 6, 3, outputs, saved, saved, 40, 200, 80, 400)


def flop_row(flops=1000):
    return FlopRow(*AT, "forward", 10, flops, flops, ())


def parameter_row(norm=0.5):
    numbers = (1.0, norm, norm, norm, 0.1, 0.1, 0.1)
    return ParameterRow("Net", "head.weight", (), (4,), "SGD", 3, *numbers)


def nonfinite_row(verdict="producer", path="head"):
    where = ("Net", path, "Linear", "module", "train", "forward")
    return NonFiniteRow(*where, verdict, "", "output", 0, 1, 1, 3, 0, (4,), "float32")


def changes(before, after, threshold=1.25):
    rows = [each if isinstance(each, tuple) else (each,) for each in (before, after)]
    found = compare(of(*rows[0]), of(*rows[1]), threshold)
    return [(each.change, each.what, each.path) for each in found]


def test_a_run_equals_itself():
    run = RunData([Rank(Path(), sample())])
    assert compare(run, run) == []
    assert missing(run, run) == []


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (time_row(own=1.0), time_row(own=1.5), ("slower", "time", "head")),
        (time_row(own=1.5), time_row(own=1.0), ("faster", "time", "head")),
        (memory_row(1000), memory_row(2000), ("larger", "outputs", "head")),
        (memory_row(1000, 2000), memory_row(1000, 0), ("smaller", "saved", "head")),
        (flop_row(1000), flop_row(4000), ("larger", "FLOPs", "head")),
        (stats_row(norm=1.0), stats_row(norm=3.0), ("larger", "norm", "head")),
        (stats_row(abs_max=8.0), stats_row(abs_max=2.0), ("smaller", "largest", "head")),
        (stats_row(), stats_row(0.0, 0.0, 1.0), ("dead", "zeros", "head")),
        (stats_row(0.0, 0.0, 1.0), stats_row(), ("alive", "zeros", "head")),
        (parameter_row(), parameter_row(0.0), ("dead", "gradient", "head.weight")),
        (time_row(), (time_row(), nonfinite_row()), ("not finite", "", "head")),
        ((time_row(), nonfinite_row()), time_row(), ("finite", "", "head")),
    ],
)
def test_what_changed_is_told(before, after, change):
    assert changes(before, after) == [change]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (time_row(own=1.0), time_row(own=1.2)),
        (time_row(own=1.0, calls=10), time_row(own=2.0, calls=20)),  # a call takes as long
        (
            (time_row("a", own=100.0), time_row("b", own=0.1)),
            (time_row("a", own=100.0), time_row("b", own=0.5)),
        ),
        (stats_row(norm=1.0), stats_row(norm=1.9)),
        (stats_row(norm=1.0), stats_row(norm=math.inf)),
        (parameter_row(0.5), parameter_row(5.0)),
    ],
    ids=["below threshold", "more calls", "does not matter", "wanders", "infinite", "gradient"],
)
def test_what_does_not_matter_is_left_out(before, after):
    assert changes(before, after) == []


def test_the_threshold_is_the_users():
    assert changes(time_row(own=1.0), time_row(own=1.2), 1.1) == [("slower", "time", "head")]
    assert changes(time_row(own=1.0), time_row(own=1.2), 1.2) == [("slower", "time", "head")]
    assert changes(time_row(own=1.0), time_row(own=1.2), 1.3) == []


def test_the_time_of_a_call_is_compared_with_its_ratio():
    """Against plain division."""
    (found,) = compare(of(time_row(own=1.0, calls=10)), of(time_row(own=6.0, calls=20)))
    assert (found.before, found.after, found.ratio) == (1.0 / 10, 6.0 / 20, pytest.approx(3.0))


def modules(*paths):
    return [ModuleRow("Net", path, "M", place, 0) for place, path in enumerate(paths)]


def test_of_what_came_and_went_the_topmost_is_told():
    before, after = modules("", "a", "old", "old.x", "old.x.y"), modules("", "a", "a.new")
    assert changes(tuple(before), tuple(after)) == [("gone", "", "old"), ("new", "", "a.new")]


def test_modules_that_never_run_any_more():
    """Not those that never did, nor those that are new."""
    silent = [Silent(path, "M", "not called", "why", ("T",), "Net") for path in ("a", "b", "new")]
    before = (*modules("", "a", "b"), silent[1])
    after = (*modules("", "a", "b", "new"), *silent)
    assert changes(before, after) == [("never called", "", "a"), ("new", "", "new")]


def test_what_is_gone_or_never_ran_is_not_finite_again():
    """Nobody looked at it in the second run."""
    before = (
        *modules("", "old", "a", "b"),
        *(nonfinite_row(path=path) for path in ("old", "a", "b")),
    )
    silent = Silent("a", "M", "not called", "why", ("T",), "Net")
    found = changes(before, (*modules("", "a", "b"), silent))
    assert found == [("never called", "", "a"), ("gone", "", "old"), ("finite", "", "b")]


def test_the_worst_comes_first():
    before = (
        *modules("", "head", "gone"),
        *(time_row("slow"), time_row("slower"), time_row("fast", own=5.0)),
        stats_row(),
    )
    after = (
        *modules("", "head"),
        *(time_row("slow", own=2.0), time_row("slower", own=3.0), time_row("fast", own=1.0)),
        *(stats_row(0.0, 0.0, 1.0), nonfinite_row("propagator", "x"), nonfinite_row()),
    )
    found = changes(before, after)
    assert found == [
        ("not finite", "", "head"),
        ("not finite", "", "x"),
        ("dead", "zeros", "head"),
        ("gone", "", "gone"),
        ("slower", "time", "slower"),
        ("slower", "time", "slow"),
        ("faster", "time", "fast"),
    ]
    places = [CHANGES.index(change) for change, *_ in found]
    assert places == sorted(places)


def printed(before, after, **options):
    file = io.StringIO()
    print_difference(before, after, file=file, **options)
    return file.getvalue()


def test_a_slow_module_of_a_real_model_is_the_only_one():
    """Its parents take longer too, but not by their own doing."""
    old, new = sample(), sample()
    new[TimeRow] = [
        replace(row, self_time=3 * row.self_time, total_time=3 * row.total_time)
        if row.path == SLOW and row.mode == "train"
        else row
        for row in new[TimeRow]
    ]
    runs = [RunData([Rank(Path(), tables)]) for tables in (old, new)]
    found = compare(*runs)
    assert {(each.change, each.path, each.mode) for each in found} == {("slower", SLOW, "train")}
    assert {each.direction for each in found} == {"forward", "backward"}
    text = printed(*runs)
    assert text.startswith("GPT (train, forward): ")
    assert text.count("×3.00") == 2
    assert printed(*runs, limit=1).count("×3.00") == 1


def test_a_pass_is_compared_as_a_whole():
    lines = totals(of(time_row("", own=1.0)), of(time_row("", own=2.0)))
    assert lines == ["Net (train, forward): 100.00 ms → 200.00 ms a call (×2.00)"]


def test_no_difference_and_what_can_not_be_compared():
    text = printed(of(time_row(), stats_row()), of(time_row()))
    assert "nothing changed by ×1.25 or more" in text
    assert "hookline: only the first run has statistics: not compared" in text


def test_r9_runs_without_a_table_in_common_are_not_called_alike():
    """Nothing was compared, so nothing is said to be the same."""
    text = printed(of(time_row()), of(stats_row()))
    assert "these runs have no table of numbers in common" in text
    assert "nothing changed" not in text
    assert "hookline: only the first run has times: not compared" in text
    assert "nothing changed" in printed(of(parameter_row()), of(parameter_row()))


def made_with(*options):
    return RunRow("", (), "finished", 0.0, 1.0, options=options)


@pytest.mark.parametrize("first", [True, False], ids=["first looked", "second looked"])
def test_r9_nothing_is_called_finite_that_one_run_did_not_look_at(first):
    """Nor not finite; that only one of them looked is told, and what statistics saw."""
    looked = (made_with("--time", "--nonfinite"), time_row(), nonfinite_row("bad parameter"))
    other = (made_with("--time", "--stats"), time_row(), replace(stats_row(), nan=3))
    runs = (looked, other) if first else (other, looked)
    assert changes(*runs) == []
    which = "first" if first else "second"
    saw = "statistics of the other saw them in 1 place"
    told = f"hookline: only the {which} run looked for NaN and Inf ({saw}): not compared"
    assert told in printed(of(*runs[0]), of(*runs[1]))
    quiet = [tuple(row for row in rows if not isinstance(row, StatsRow)) for rows in runs]
    assert f"only the {which} run looked for NaN and Inf: not compared" in missing(
        of(*quiet[0]), of(*quiet[1])
    )
    both = (made_with("--time", "--nonfinite"), time_row())
    assert changes(looked, both) == [("finite", "", "head")]
    assert missing(of(*looked), of(*both)) == []
