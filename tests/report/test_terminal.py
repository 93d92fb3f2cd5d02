"""What is printed of a run: head, tables in order, troubles last; long tables cut."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hookline.core.records import StatsRow, TimeRow
from hookline.errors import HookValueError
from hookline.record.rows import FaultRow, PassRow, RunRow
from hookline.record.runs import Rank, RunData
from hookline.report.tables import TABLES
from hookline.report.terminal import LINES, NOTHING_CALLED, NOTHING_WRITTEN, print_run
from tests.record.sample import sample


def printed(kept, path="run.hookline", **options):
    file = io.StringIO()
    print_run(RunData([Rank(Path(path), kept)]), file, **options)
    return file.getvalue()


def without(tables, *kinds):
    return {kind: rows for kind, rows in tables.items() if kind not in kinds}


def test_head_then_tables_then_faults():
    text = printed(sample(passes=60))
    parts = [
        "train.py --epochs 3: finished after 12.5 s, 60 optimizer steps\n",
        "GPT: passes: 60 train, 4 eval\n",
        "time by module: GPT (train)",
        "time by function (train)",
        "activations by module",
        "parameters: GPT (SGD)",
        "NaN and Inf",
        "never called: 1 module",
        "hookline: --where 'encodr' matched nothing; near names: embed\n",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert text.endswith(parts[-1])


def test_what_a_run_has_not_is_not_mentioned():
    kept = {kind: sample()[kind] for kind in (RunRow, PassRow, TimeRow)}
    text = printed(kept)
    titles = [line for line in text.splitlines() if re.match(r"\S", line)]
    assert len(titles) == 5  # two lines of the head, train, eval, functions
    assert "hookline:" not in text


def test_the_error_that_ended_a_run_is_told_by_its_first_line():
    tables = sample()
    tables[RunRow] = [replace(tables[RunRow][0], state="failed", error="ValueError: bad\nnote")]
    head = printed(tables).splitlines()[:3]
    assert head[0].startswith("train.py --epochs 3: failed after 12.5 s")
    assert head[1] == "ValueError: bad"
    assert head[2].startswith("GPT: passes")


def test_nothing_called():
    """Where no module ran, that is all that is said, with the likely causes and the faults."""
    info = {RunRow: sample()[RunRow]}
    assert printed(info) == NOTHING_CALLED + "\n"
    assert printed(info | {FaultRow: [FaultRow("x")]}) == NOTHING_CALLED + "\nhookline: x\n"


def test_r9_a_run_that_was_killed_before_anything_was_written_says_so():
    """Nobody knows whether a module was called, so that is not denied."""
    info = replace(sample()[RunRow][0], state="running", updated=sample()[RunRow][0].started)
    text = printed({RunRow: [info]})
    first, second = text.splitlines()
    assert first.startswith("train.py --epochs 3: killed after 0.0 s")
    assert second == NOTHING_WRITTEN
    assert NOTHING_CALLED not in text


def test_a_long_table_is_cut_and_says_so():
    tables = without(sample(blocks=30), *(set(sample()) - {RunRow, PassRow, TimeRow}))
    text = printed(tables)
    total = 6 * 30 + 4
    left_out = total - LINES
    assert text.count(f"… and {left_out:,} more lines") == 2  # train and eval
    assert text.endswith(
        f"hookline: {2 * left_out:,} lines left out; hookline show run.hookline --all shows all\n"
    )
    everything = printed(tables, limit=None)
    assert everything.count("%") - text.count("%") == 2 * left_out
    assert "left out" not in everything


def test_many_tables_are_shorter():
    """A run in which all was measured does not fill the terminal many times over."""
    text = printed(sample(blocks=30))
    assert text.count("\n") < 500
    assert printed(sample(blocks=30), limit=None).count("\n") > 1000
    short = printed(sample(blocks=30), tables=["times"])
    assert short.partition("(eval)")[0].count("%") == LINES - 1  # `blocks` has no times


def test_what_was_not_kept_says_how_to_keep_it():
    assert "keep the run with -o run.hookline" in printed(sample(blocks=30), path="")


def test_the_slowest_lines_of_a_cut_tree_are_kept():
    text = printed(sample(blocks=30), tables=["times"], limit=10)
    train = text.partition("(eval)")[0]
    assert len([line for line in train.splitlines() if "%" in line]) <= 10
    slow = [r for r in sample(blocks=30)[TimeRow] if r.level == "module" and r.mode == "train"]
    total = {}
    for row in slow:
        total[row.path] = total.get(row.path, 0) + row.total_time
    slowest = max((path for path in total if path), key=total.get)
    assert re.search(rf"^ +{slowest.rpartition('.')[2]} ", train, re.MULTILINE)


def test_chosen_tables_only():
    text = printed(sample(), tables=["stats", "times"])
    assert text.startswith("time by module: GPT (train)")
    assert "activations by module" in text
    assert "hookline:" not in text
    assert "parameters" not in text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "no pass was looked at; see --every"),
        (("--stats", "--every", "100"), "no pass was looked at; see --every"),
        (("--time",), "the run was made without --stats"),
    ],
)
def test_r9_a_chosen_table_without_rows_says_why(options, why):
    """Of those that were asked for by name; the others are printed as ever."""
    tables = without(sample(), StatsRow)
    tables[RunRow] = [replace(tables[RunRow][0], options=options)]
    text = printed(tables, tables=["stats", "times"])
    assert text.startswith("time by module: GPT (train)")
    assert text.endswith(f"hookline: the table stats has no rows: {why}\n")
    assert "has no rows" not in printed(tables)


def test_r9_every_table_can_say_why_it_is_empty():
    """With what was measured, and without."""
    empty = {RunRow: [replace(sample()[RunRow][0], options=("--print",))]}
    text = printed(empty, tables=TABLES)
    assert [line.split()[3] for line in text.splitlines()] == list(TABLES)
    assert text.count("the run was made without --") == len(TABLES) - 2


def test_sorted_by_a_column():
    text = printed(sample(), tables=["stats"], sort="norm", limit=None)
    table = text.partition("gradients by")[0]
    norms = [float(line.split()[-2]) for line in table.splitlines() if line.endswith("% ")]
    assert len(norms) > 10
    assert norms == sorted(norms, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tables": ["time"]}, "'time' is no table; choose from times, memory"),
        ({"sort": "nrom"}, "'nrom' is no column of these tables; choose from module, type"),
    ],
)
def test_r10_unknown_tables_and_columns_are_refused(options, message):
    with pytest.raises(HookValueError, match=re.escape(message)):
        printed(sample(), **options)


def test_a_column_that_some_tables_have_sorts_these():
    """The others are left in their order."""
    text = printed(sample(), sort="norm")
    assert re.search(r"^  GPT  .*100\.0%", text, re.MULTILINE)


def test_each_table_has_a_file():
    folder = Path(__file__).parents[2] / "src/hookline/report/tables"
    helpers = {"__init__", "sheet", "units", "groups", "directed"}
    assert {path.stem for path in folder.glob("*.py")} - helpers == set(TABLES)


def test_names_are_no_markup():
    tables = sample()
    tables[FaultRow] = [FaultRow("[red]broken[/red] :smile:")]
    assert "hookline: [red]broken[/red] :smile:\n" in printed(tables)
