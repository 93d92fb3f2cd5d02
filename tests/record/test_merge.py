"""Several processes of a run: found by their files, compared, and those in trouble named."""

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest

from hookline.core.records import NonFiniteRow, TimeRow
from hookline.errors import RunFileError
from hookline.record.merge import over_ranks, remarks, rows_of_all, stragglers
from hookline.record.rows import EventRow, RunRow, SeriesRow
from hookline.record.runs import load
from hookline.record.store import Store
from tests.record.sample import sample


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.hookline"


def write(path, rank=0, ranks=1, rows=None, **info):
    """A file of one process."""
    tables = sample(rank=rank, ranks=ranks)
    tables[RunRow] = [replace(tables[RunRow][0], **info)]
    tables |= rows or {}
    with Store(path.with_name(f"{path.name}.{rank}") if rank else path) as store:
        store.write(tables)


def ranks_of(run):
    return [rank.info.rank for rank in run.ranks]


def time_row(path="body", calls=10, own=1.0, total=None, direction="forward", root="Net"):
    total = own if total is None else total
    times = (own, total, own / calls, own / calls, own / calls)
    return TimeRow(root, path, "Linear", "module", "train", direction, calls, *times)


def write_times(path, *of_ranks):
    for rank, rows in enumerate(of_ranks):
        write(path, rank, len(of_ranks), {TimeRow: list(rows)})


def test_all_files_of_a_run_are_read(path):
    for rank in range(3):
        write(path, rank, 3)
    run = load(path)
    assert ranks_of(run) == [0, 1, 2]
    assert run.info.rank == 0
    assert run.rows(TimeRow) == run.ranks[0].rows(TimeRow)
    assert len(rows_of_all(run, NonFiniteRow)) == 3
    assert [rank for rank, _ in rows_of_all(run, NonFiniteRow)] == [0, 1, 2]
    assert remarks(run) == []


def test_the_course_over_passes_may_be_left_out(path):
    write(path)
    whole, rest = load(path), load(path, course=False)
    assert whole.rows(SeriesRow)
    assert whole.rows(EventRow)
    assert (rest.rows(SeriesRow), rest.rows(EventRow)) == ([], [])
    assert rest.rows(TimeRow) == whole.rows(TimeRow)


def test_a_file_of_another_process_is_read_for_itself(path):
    for rank in range(2):
        write(path, rank, 2)
    run = load(f"{path}.1")
    assert ranks_of(run) == [1]
    assert remarks(run) == []


@pytest.mark.parametrize("other", [{"id": "another"}, {"started": 1_700_000_700.0}], ids=str)
def test_files_of_other_runs_are_left_out_and_the_rank_named_as_missing(path, other):
    """An older run of more processes; one with the same id (a port comes again) of another time."""
    write(path, 0, 2)
    write(path, 1, 2, **other)
    run = load(path)
    assert ranks_of(run) == [0]
    (remark,) = remarks(run)
    assert remark.startswith("there is no file of rank 1: ")


def test_a_run_of_one_process_does_not_look_for_others(path):
    write(path)
    write(path, 1, 2)
    assert ranks_of(load(path)) == [0]
    assert remarks(load(path)) == []


def test_what_is_no_run_or_empty_counts_as_missing(path):
    write(path, 0, 3)
    path.with_name(f"{path.name}.1").write_text("no run")
    Store(path.with_name(f"{path.name}.2")).close()
    assert load(path).missing == (1, 2)
    assert "rank 1, 2" in remarks(load(path))[0]


def test_a_missing_first_file_is_an_error(path):
    write(path, 1, 2)
    with pytest.raises(RunFileError, match="there is no run at"):
        load(path)


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_that_died_is_named(path):
    here = {"host": platform.node(), "state": "running"}
    write(path, 0, 4)
    write(path, 1, 4, process=dead_process(), updated=1_700_000_003.0, **here)
    write(path, 2, 4, state="failed", error="RuntimeError: closed\nmore")
    write(path, 3, 4, process=os.getpid(), **here)
    assert [rank.state for rank in load(path).ranks] == ["finished", "killed", "failed", "running"]
    assert remarks(load(path)) == [
        "rank 1: killed after 3.0 s",
        "rank 2: failed after 12.5 s: RuntimeError: closed",
        "rank 3: running after 12.5 s",
    ]


def test_a_process_elsewhere_that_does_not_write_any_more_was_killed(path):
    write(path, host="elsewhere", state="running")
    assert load(path).ranks[0].state == "killed"


@pytest.mark.parametrize(("state", "told"), [("interrupted", 0), ("failed", 2)])
def test_where_all_were_interrupted_the_head_says_it(path, state, told):
    """Of those that failed, the first to end is the first that is named."""
    write(path, 0, 2, state=state, error="E")
    write(path, 1, 2, state=state, error="E", updated=1_700_000_005.0)
    said = ["rank 1: failed after 5.0 s: E", "rank 0: failed after 12.5 s: E"]
    assert remarks(load(path)) == said[:told]


def test_a_call_is_compared_over_ranks(path):
    """Minimum, median and maximum of the mean time of a call, against plain division."""
    totals, calls = [3.0, 1.0, 8.0], [10, 10, 20]
    pairs = zip(totals, calls, strict=True)
    write_times(path, *([time_row(total=t, calls=c)] for t, c in pairs))
    (row,) = over_ranks(load(path))
    assert (row.minimum, row.median, row.maximum) == (1.0 / 10, 3.0 / 10, 8.0 / 20)
    assert (row.slowest, row.ranks, row.calls) == (2, 3, 20)


def test_modules_that_only_some_ranks_ran_are_counted(path):
    write_times(path, [time_row("a")], [time_row("a"), time_row("b")])
    assert {row.path: row.ranks for row in over_ranks(load(path))} == {"a": 2, "b": 1}


def test_one_process_has_nothing_to_compare(path):
    write(path)
    assert over_ranks(load(path)) == []
    assert stragglers(load(path)) == []


def test_a_straggler_is_named_with_what_it_loses_and_where(path):
    usual = [time_row("a", own=2.0), time_row("b", own=2.0)]
    slow = [time_row("a", own=2.0), time_row("b", own=4.0)]
    write_times(path, usual, slow, usual)
    (found,) = stragglers(load(path))
    assert (found.rank, found.ratio, found.lost) == (1, pytest.approx(1.5), pytest.approx(2.0))
    assert found.worst.path == "b"
    (remark,) = remarks(load(path))
    assert remark.startswith("rank 1 is slow: 1.50 times the time of the others, 2 s in all; ")
    assert remark.endswith("most in Net b (train, forward)")


@pytest.mark.parametrize(
    ("usual", "slow"),
    [
        ([time_row(own=5.0)], [time_row(own=5.9)]),  # less than 1.2 times
        ([time_row(own=0.01)], [time_row(own=0.1)]),  # of a run of 12.5 s, nothing
        ([time_row()], [time_row(), time_row("only here", own=9.0)]),
        (
            [time_row(), time_row(direction="backward")],
            [time_row(), time_row(direction="backward", own=9.0)],
        ),
        ([time_row(), time_row("", own=1.0)], [time_row(), time_row("", own=9.0)]),
        ([time_row(calls=10)], [time_row(calls=20, own=2.0)]),  # more calls, none of them slower
    ],
    ids=["a little", "no matter", "not shared", "waits in backward", "waits in root", "more calls"],
)
def test_no_straggler(path, usual, slow):
    write_times(path, usual, slow)
    assert stragglers(load(path)) == []
