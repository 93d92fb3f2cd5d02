"""Plots of a run: what is drawn are the run's numbers."""

import builtins
from pathlib import Path

import pytest

from hookline.core.records import ParameterRow, StatsRow, TimeRow
from hookline.errors import HookValueError, MissingExtraError
from hookline.record.rows import RunRow, SeriesRow
from hookline.record.runs import Rank, RunData
from hookline.report.plots import MOST, plot, write_plot
from tests.record.sample import SLOW, paths, sample


@pytest.fixture
def run():
    return RunData([Rank(Path(), sample())])


def test_time_is_the_sum_of_each_modules_own(run):
    axes = plot(run, "time").axes[0]
    own = {}
    for row in run.rows(TimeRow):
        if row.level == "module":
            name = row.path or "GPT"
            own[name] = own.get(name, 0) + row.self_time * 1e3
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == sorted(own, key=own.get, reverse=True)
    assert names[0] == SLOW
    forward, backward = axes.containers
    for name, one, other in zip(names, forward, backward, strict=True):
        assert one.get_width() + other.get_width() == pytest.approx(own[name])
        assert other.get_x() == pytest.approx(one.get_width())


def test_only_the_largest_are_drawn_and_it_is_said():
    axes = plot(RunData([Rank(Path(), sample(blocks=20))]), "time").axes[0]
    assert len(axes.containers[0]) == MOST
    assert axes.get_ylabel() == f"{MOST} of {len(list(paths(20))) - 1}"


@pytest.mark.parametrize(
    ("kind", "direction"), [("activations", "forward"), ("gradients", "backward")]
)
def test_norms_stand_in_the_order_of_the_model(run, kind, direction):
    axes = plot(run, kind).axes[0]
    norms = {
        row.path: row.norm
        for row in run.rows(StatsRow)
        if row.direction == direction and row.mode == "train"
    }
    ordered = [path for path, _ in paths(3) if path in norms]
    assert [label.get_text() for label in axes.get_xticklabels()] == [p or "GPT" for p in ordered]
    assert list(axes.lines[0].get_ydata()) == [norms[path] for path in ordered]


def test_updates_are_those_of_the_parameters(run):
    axes = plot(run, "updates").axes[0]
    rows = run.rows(ParameterRow)
    assert list(axes.lines[0].get_xdata()) == [row.update_ratio for row in rows]
    assert list(axes.lines[1].get_xdata()) == [row.update_ratio_max for row in rows]


def test_passes_are_lines_of_the_roots(run):
    axes = plot(run, "passes").axes[0]
    rows = [r for r in run.rows(SeriesRow) if r.path == "" and r.metric == "time"]
    assert len(axes.lines) == len(rows) == 3
    assert list(axes.lines[0].get_ydata()) == [value * 1e3 for value in rows[0].values]


def test_r10_what_cannot_be_drawn_says_why(run):
    with pytest.raises(HookValueError, match="'tim' is no plot; choose one of time, activations"):
        plot(run, "tim")
    empty = RunData([Rank(Path(), {RunRow: sample()[RunRow]})])
    with pytest.raises(
        HookValueError, match="nothing for the plot 'updates'; record it with --stats"
    ):
        plot(empty, "updates")


def test_a_file_gets_the_first_plot_that_there_is_something_for(tmp_path):
    tables = sample()
    del tables[TimeRow]
    write_plot(RunData([Rank(Path(), tables)]), tmp_path / "run.svg")
    assert "Activations by module" in (tmp_path / "run.svg").read_text()
    with pytest.raises(HookValueError, match="nothing to draw"):
        write_plot(RunData([Rank(Path(), {})]), tmp_path / "other.svg")


def test_r10_a_missing_extra_is_named(run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[plot\]'"):
        plot(run)
