"""What users do with a run: tables, plots, files, TensorBoard, notebooks."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import hookline
from hookline.core.records import StatsRow, TimeRow
from hookline.errors import HookValueError, RunFileError
from hookline.record.rows import SeriesRow
from hookline.record.store import Store
from tests.record.sample import sample


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.hookline"
    with Store(path) as store:
        store.write(sample())
    return path


def test_a_table_as_plain_data(path):
    run = hookline.load_run(path)
    rows = run.to_rows()
    assert len(rows) == len(run.rows(TimeRow))
    assert [row["self_time"] for row in rows] == [row.self_time for row in run.rows(TimeRow)]
    assert run.to_rows("series")[0]["values"] == list(run.rows(SeriesRow)[0].values)
    with pytest.raises(HookValueError, match="'time' is no table; choose one of run, modules"):
        run.to_rows("time")


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(RunFileError, match="there is no run at"):
        hookline.load_run(tmp_path / "run.hookline")


def test_tensorboard_shows_what_the_run_holds(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with hookline.record(None, model, stats=True, every=1) as run:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
    run.to_tensorboard(tmp_path)
    found = EventAccumulator(str(tmp_path)).Reload()
    rows = [row for row in run.rows(SeriesRow) if row.metric == "norm" and row.path == "0"]
    for row in rows:
        events = found.Scalars(f"norm/{row.root}.0 {row.direction} (train)")
        assert [event.step for event in events] == [0, 1, 2]
        assert [event.value for event in events] == pytest.approx(row.values)
    [stats] = [r for r in run.rows(StatsRow) if r.path == "0" and r.direction == "forward"]
    [histogram] = found.Histograms(f"magnitudes/{stats.root}.0 forward (train)")
    assert histogram.histogram_value.num == sum(stats.histogram) == 18


def test_a_notebook_shows_the_report_in_a_frame(path):
    html = hookline.load_run(path)._repr_html_()
    assert html.startswith("<iframe")
    assert html.count("<") == 2
    assert "train.py --epochs 3" in html


def test_a_run_is_told_in_a_line(path, tmp_path):
    """What ran, how it ended, and how many rows there are of what."""
    run = hookline.load_run(path)
    text = repr(run)
    assert text.startswith("<Run of ")
    assert " after " in text
    assert f"times {len(run.rows(TimeRow))}, " in text
    assert "flops" not in text
    assert len(text) < 200
    with Store(tmp_path / "empty.hookline") as store:
        store.write({})
    assert "killed before it wrote anything" in repr(hookline.load_run(tmp_path / "empty.hookline"))
