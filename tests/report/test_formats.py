"""Exports of a run: each holds the same numbers as the run."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline
from hookline.core.magnitudes import edges
from hookline.core.records import StatsRow, TimeRow
from hookline.errors import HookValueError
from hookline.record.rows import EventRow, RunRow, SeriesRow
from hookline.record.runs import Rank, RunData
from hookline.record.schema import TABLES
from hookline.report.formats import FORMATS, check_run_file, export, is_known
from hookline.report.tensorboard import add_to
from hookline.report.trace import trace_of
from tests.record.sample import sample


@pytest.fixture
def run(tmp_path):
    return RunData([Rank(tmp_path / "run.hookline", sample())])


@pytest.fixture
def two(tmp_path):
    ranks = [sample(seed=rank, rank=rank, ranks=2) for rank in range(2)]
    return RunData([Rank(tmp_path / f"run.hookline.{n}", rank) for n, rank in enumerate(ranks)])


def test_r10_an_unknown_ending_is_refused_with_those_that_there_are(run, tmp_path):
    with pytest.raises(HookValueError, match=r"known ending; choose one of \.html, \.json, \.csv"):
        export(run, tmp_path / "run.xlsx")
    with pytest.raises(HookValueError, match=r"ending; did you mean '\.html'\? Choose one of"):
        export(run, tmp_path / "run.htm")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("r.htm", ".html"), ("r.JSN", ".json"), ("r.cvs", ".csv"), ("r.trace", ".trace.json")],
)
def test_r10_a_run_file_with_an_ending_that_is_nearly_a_format_is_refused(name, meant):
    """It would be a run file that somebody then opens in a browser."""
    with pytest.raises(HookValueError, match=rf"did you mean '{meant}'\? Formats are \.html, "):
        check_run_file(name)
    with pytest.raises(HookValueError, match=meant):
        hookline.record(name)


@pytest.mark.parametrize("name", ["run", "run.hookline", "a.run", "a.db", "r.html", "a.b/run"])
def test_other_names_are_fine(name):
    """Those of run files, whatever their ending, and those of exports."""
    check_run_file(name)


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_writes_a_file(run, tmp_path, ending):
    path = tmp_path / f"a.b{ending}"
    assert is_known(path)
    export(run, path)
    assert path.stat().st_size > 500


def test_json_holds_every_row_of_every_process(two, tmp_path):
    export(two, tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert len(found["ranks"]) == 2
    for rank, tables in zip(two.ranks, found["ranks"], strict=True):
        assert set(tables) == set(TABLES)
        for name, kind in TABLES.items():
            assert len(tables[name]) == len(rank.rows(kind))
        for row, plain in zip(rank.rows(TimeRow), tables["times"], strict=True):
            assert TimeRow(**plain) == row
        for row, plain in zip(rank.rows(SeriesRow), tables["series"], strict=True):
            assert tuple(plain["values"]) == row.values


def test_json_has_none_for_what_is_not_finite(run, tmp_path):
    [row] = [replace(run.rows(StatsRow)[0], mean=math.nan, maximum=math.inf)]
    tables = {StatsRow: [row]}
    export(RunData([Rank(tmp_path, tables)]), tmp_path / "run.json")
    [plain] = json.loads((tmp_path / "run.json").read_text())["ranks"][0]["stats"]
    assert plain["mean"] is None
    assert plain["maximum"] is None
    assert plain["minimum"] == row.minimum


def test_csv_holds_the_times_and_the_other_tables_beside(two, tmp_path):
    export(two, tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    rows = [(rank.info.rank, row) for rank in two.ranks for row in rank.rows(TimeRow)]
    assert len(found) == len(rows)
    for plain, (rank, row) in zip(found, rows, strict=True):
        assert int(plain["rank"]) == rank
        assert float(plain["self_time"]) == row.self_time
        assert plain["path"] == (row.path or "")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"run.stats.csv", "run.nonfinite.csv", "run.series.csv", "run.run.csv"}
    with (tmp_path / "run.series.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert tuple(json.loads(first["values"])) == two.rows(SeriesRow)[0].values


def test_a_trace_has_every_event_where_it_was(run, tmp_path):
    export(run, tmp_path / "run.trace.json")
    found = json.loads((tmp_path / "run.trace.json").read_text())["traceEvents"]
    calls = [each for each in found if each["ph"] == "X"]
    rows = sorted(run.rows(EventRow), key=lambda row: (row.begin, -row.duration))
    assert len(calls) == len(rows)
    for each, row in zip(calls, rows, strict=True):
        assert each["ts"] == pytest.approx(row.begin * 1e6, abs=1e-3)
        assert each["dur"] == pytest.approx(row.duration * 1e6, abs=2e-3)
        assert each["name"] == (row.path or "GPT")
        assert each["args"]["pass"] == row.pass_number
    names = {each["args"]["name"] for each in found if each["ph"] == "M"}
    assert names == {"rank 0: train.py --epochs 3", "thread 0 forward", "thread 0 backward"}


def test_each_rank_is_a_process_of_the_trace(two, tmp_path):
    export(two, tmp_path / "run.trace.json")
    found = json.loads((tmp_path / "run.trace.json").read_text())["traceEvents"]
    assert {each["pid"] for each in found} == {0, 1}


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 10**9)), max_size=30), st.data())
def test_events_that_nest_do_so_in_the_trace(spans, data):
    """Nested intervals, in whole nanoseconds, come out nested and outer ones first."""
    begin, nested = 0, []
    for gap, length in spans:
        outer = (begin + gap % 10**6, length)
        inner = data.draw(st.integers(0, length))
        nested += [outer, (outer[0] + length - inner, inner)]
        begin = outer[0] + length
    first = sample()[EventRow][0]
    rows = [replace(first, begin=a / 1e9, duration=d / 1e9) for a, d in nested]
    rank = Rank(Path(), {RunRow: sample()[RunRow], EventRow: rows})
    stack = []
    for each in (each for each in trace_of(rank) if each["ph"] == "X"):
        start, stop = round(each["ts"] * 1e3), round((each["ts"] + each["dur"]) * 1e3)
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or stop <= stack[-1]
        stack.append(stop)


class Writer:
    """Stands for a SummaryWriter."""

    def __init__(self):
        self.scalars, self.histograms = {}, {}

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, {})[step] = value

    def add_histogram_raw(self, tag, **given):
        self.histograms[tag] = given


def test_tensorboard_gets_every_bin_at_its_pass(run):
    writer = Writer()
    add_to(writer, run)
    for row in run.rows(SeriesRow):
        place = f"GPT.{row.path}" if row.path else "GPT"
        found = writer.scalars[f"{row.metric}/{place} {row.direction} ({row.mode})"]
        assert list(found) == [row.first + row.width * n for n in range(len(row.values))]
        assert tuple(found.values()) == row.values


def test_tensorboard_gets_histograms_of_magnitudes(run):
    bins = [0] * (len(edges()) - 1)
    bins[10], bins[12] = 3, 5
    row = replace(run.rows(StatsRow)[0], histogram=tuple(bins))
    writer = Writer()
    add_to(writer, RunData([Rank(Path(), {StatsRow: [row], RunRow: run.rows(RunRow)})]))
    [found] = writer.histograms.values()
    assert found["bucket_counts"] == [3, 0, 5]
    assert found["bucket_limits"] == list(edges()[11:14])
    assert (found["min"], found["max"], found["num"]) == (edges()[10], edges()[13], 8)
    assert found["sum"] == 3 * (edges()[10] + edges()[11]) / 2 + 5 * (edges()[12] + edges()[13]) / 2
