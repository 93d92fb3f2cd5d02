"""The file of a run: what is written comes back; what can not be used is refused with a reason."""

import math
import os
import platform
import shutil
import sqlite3
from dataclasses import replace

import pytest

from hookline.core.records import NonFiniteRow, TimeRow
from hookline.errors import RunFileError
from hookline.record.rows import EventRow, FaultRow, RunRow, SeriesRow, pack
from hookline.record.runs import load
from hookline.record.schema import APPLICATION, TABLES, VERSION
from hookline.record.store import Store
from tests.record.sample import sample


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.hookline"


def write(path, tables):
    with Store(path) as store:
        store.write(tables)


def test_every_row_comes_back_as_it_was(path):
    tables = sample()
    write(path, tables)
    run = load(path)
    for kind, rows in tables.items():
        assert run.rows(kind) == rows, kind


def test_what_is_not_there_comes_back_too(path):
    """None, NaN, Inf, bools and tuples in columns of their types."""
    where = ("Net", None, "", "function", "train", "forward")
    row = NonFiniteRow(*where, "producer", "", "output", 0, 1, 1, None, None, (2, 3), "float32")
    known = replace(row, position=(0, 1), nan=3, inf=0, scale=math.inf, skipped=True)
    times = TimeRow(*where, 1, *[math.nan] * 5)
    write(path, {NonFiniteRow: [row, known], TimeRow: [times]})
    run = load(path)
    assert run.rows(NonFiniteRow) == [row, known]
    assert run.rows(NonFiniteRow)[1].skipped is True
    assert math.isnan(run.rows(TimeRow)[0].median)


def test_series_are_packed(path):
    where = ("Net", "", "", "module", "train", "forward", "", "time", 0, 1)
    row = SeriesRow(*where, pack([0.5, math.nan, 2.0]))
    assert len(row.packed) == 12
    assert row.values[0] == 0.5
    assert math.isnan(row.values[1])


def test_rows_replace_those_of_their_kind_only(path):
    with Store(path) as store:
        store.write({FaultRow: [FaultRow("a"), FaultRow("b")], RunRow: sample()[RunRow]})
        store.write({FaultRow: [FaultRow("c")]})
    run = load(path)
    assert run.rows(FaultRow) == [FaultRow("c")]
    assert run.rows(RunRow) == sample()[RunRow]


def test_a_row_that_cannot_be_written_leaves_the_file_as_it_was(path):
    with Store(path) as store:
        store.write({FaultRow: [FaultRow("a")]})
        with pytest.raises(RunFileError, match="could not be written"):
            store.write({FaultRow: [FaultRow("b"), FaultRow(object())]})
    assert load(path).rows(FaultRow) == [FaultRow("a")]


GONE = "could not be written: it was moved or removed meanwhile"


@pytest.mark.parametrize("what", ["file", "folder", "moved", "replaced"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_file_that_is_no_longer_there_is_told_as_that(what, when, tmp_path):
    """Also where SQLite speaks of a disk error, or writes on into a file that has no name."""
    path = tmp_path / "folder" / "run.hookline"
    path.parent.mkdir()

    def rows():
        yield FaultRow("a")
        if when == "meanwhile":
            _take_away(path, what)
        yield FaultRow("b")

    with Store(path) as store:
        if when == "before":
            _take_away(path, what)
        with pytest.raises(RunFileError, match=GONE):
            store.write({FaultRow: rows()})
    assert path.exists() == (what == "replaced")


def test_a_journal_that_is_removed_is_told_and_the_next_write_is_whole(path):
    """As a folder is removed its journal may go first, and the file a moment later."""

    def rows():
        yield FaultRow("a")
        path.with_name(f"{path.name}-journal").unlink()

    with Store(path) as store:
        with pytest.raises(RunFileError, match=GONE):
            store.write({FaultRow: rows()})
        store.write({FaultRow: [FaultRow("b")]})
    assert load(path).rows(FaultRow) == [FaultRow("b")]


def _take_away(path, what):
    if what == "file":
        path.unlink()
    elif what == "folder":
        shutil.rmtree(path.parent)
    else:
        path.rename(path.with_name("elsewhere"))
        if what == "replaced":
            path.write_text("mine")


def test_the_file_can_be_read_while_it_is_written(path):
    with Store(path) as store:
        store.write({FaultRow: [FaultRow("a")]})
        assert load(path).rows(FaultRow) == [FaultRow("a")]
        store.write({FaultRow: [FaultRow("b")]})


def test_any_sqlite_tool_can_read_it(path):
    write(path, sample())
    with sqlite3.connect(path) as opened:
        assert opened.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert opened.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        names = {name for (name,) in opened.execute("SELECT name FROM sqlite_master")}
        [slowest] = opened.execute(
            "SELECT path FROM times WHERE mode = 'train' ORDER BY self_time DESC LIMIT 1"
        )
    opened.close()
    assert names == set(TABLES)
    assert slowest == ("blocks.1.mlp.fc",)


def test_an_earlier_run_is_replaced(path):
    write(path, sample())
    write(path, {FaultRow: [FaultRow("new")]})
    run = load(path)
    assert run.rows(EventRow) == []
    assert run.rows(FaultRow) == [FaultRow("new")]


def test_a_run_that_is_being_written_is_not_replaced(path):
    [row] = sample()[RunRow]
    row = replace(row, state="running", process=os.getpid(), host=platform.node())
    with Store(path) as store:
        store.write({RunRow: [row]})
        with pytest.raises(RunFileError, match=f"being written by process {os.getpid()}"):
            Store(path)
        store.write({RunRow: [replace(row, process=2**22 + 1)]})
    Store(path).close()


def test_what_is_no_run_is_not_replaced(path):
    path.write_text("a diary\n" * 100)
    with pytest.raises(RunFileError, match="can't be read as a run"):
        Store(path)
    assert path.read_text().startswith("a diary")
    with sqlite3.connect(other := path.with_name("other.db")) as opened:
        opened.execute("CREATE TABLE mine (a)")
    opened.close()
    with pytest.raises(RunFileError, match="is no run"):
        Store(other)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(RunFileError, match=r"can't be written: there is no folder .*no$"):
        Store(tmp_path / "no" / "run.hookline")


def test_what_cannot_be_read_is_told(path):
    with pytest.raises(RunFileError, match="there is no run at"):
        load(path)


def test_a_newer_schema_is_refused(path):
    write(path, {})
    with sqlite3.connect(path) as opened:
        opened.execute(f"PRAGMA user_version = {VERSION + 1}")
    opened.close()
    with pytest.raises(RunFileError, match=f"has schema {VERSION + 1}.*newer hookline"):
        load(path)


def test_an_older_file_without_a_table_or_column_is_read(path):
    write(path, sample())
    with sqlite3.connect(path) as opened:
        opened.execute("DROP TABLE events")
        opened.execute("ALTER TABLE times DROP COLUMN clock")
        opened.execute("ALTER TABLE times ADD COLUMN colour")
    opened.close()
    run = load(path)
    assert run.rows(EventRow) == []
    assert run.rows(TimeRow) == sample()[TimeRow]


def test_a_file_without_a_run_says_so(path):
    write(path, {})
    with pytest.raises(RunFileError, match="killed before it wrote anything"):
        _ = load(path).info
