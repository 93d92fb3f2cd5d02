"""Tables of times: trees of modules, functions by module, units, widths."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from hookline.core.records import TimeRow
from hookline.record.runs import Rank, RunData
from hookline.report.tables.times import sheets
from hookline.report.terminal import draw, print_sheets


def row(path, direction="forward", total=1.0, own=None, **changes):
    """A module's row, in which all that a test does not care about is plain."""
    own = total if own is None else own
    fields = {"root": "Net", "type": "Linear", "level": "module", "mode": "train", "calls": 1}
    times = {"self_time": own, "total_time": total, "minimum": own, "median": own, "maximum": own}
    return TimeRow(**{**fields, **times, "path": path, "direction": direction, **changes})


def function(name, path="", **changes):
    """A function's row."""
    return row(path, name=name, level="function", type="", **changes)


def printed(rows):
    file = io.StringIO()
    print_sheets(sheets(RunData([Rank(Path(), {TimeRow: list(rows)})])), file)
    return file.getvalue()


def lines_of(rows):
    """The printed lines without their margins: titles, headings and rows."""
    lines = [line.strip() for line in printed(rows).splitlines()]
    return [line for line in lines if line and not line.startswith("─")]


def cells_of(rows):
    """The rows of the first table, cut at the gaps between columns."""
    return [re.split(r" {2,}", line) for line in lines_of(rows)[2:]]


def test_modules_form_a_tree():
    """Modules stand under their parents, indented, in the order in which they were measured."""
    rows = [row(path, type="M") for path in ("", "b", "b.x", "a", "b.y")]
    labels = [line[:8].rstrip() for line in printed(rows).splitlines()[4:]]

    assert [label for label in labels if label] == ["  Net", "    b", "      x", "      y", "    a"]


def test_parents_without_rows_are_shown():
    """A module of which no parent was watched stands at its place all the same."""
    assert [cells[0] for cells in cells_of([row("layers.0.attn")])] == [
        "Net",
        "layers",
        "0",
        "attn",
    ]


def test_each_number_stands_in_its_column():
    """Calls, inclusive and own time in both directions, and the share of the root's time."""
    rows = [
        row("", "forward", total=2.0, own=0.5, calls=3, type="Net"),
        row("", "backward", total=6.0, own=1.0, calls=3, type="Net"),
        row("head", "forward", total=0.5, own=0.25, calls=3),
        row("head", "backward", total=1.5, own=0.75, calls=3),
    ]

    assert lines_of(rows)[1].split() == (
        ["module", "type", "calls", "forward", "self", "backward", "self", "share"]
    )
    assert [re.sub(" +", " ", line) for line in lines_of(rows)[2:]] == [
        "Net Net 3 2.00 s 500.00 ms 6.00 s 1.00 s 100.0%",
        "head Linear 3 500.00 ms 250.00 ms 1.50 s 750.00 ms 25.0%",
    ]


def test_rows_of_one_module_are_added():
    """Two rows of the same module and direction make one line."""
    assert [re.sub(" +", " ", line) for line in lines_of([row("a"), row("a", calls=2)])[3:]] == [
        "a Linear 3 2.00 s 2.00 s 100.0%"
    ]


def test_share_without_a_row_of_the_root():
    """Where only parts were watched, shares are of all that was measured."""
    rows = [row("a", total=3.0, own=1.0), row("a.b", total=2.0), row("c", "backward", total=1.0)]

    assert [cells[-1] for cells in cells_of(rows)[1:]] == ["75.0%", "50.0%", "25.0%"]


def test_no_time_has_no_share():
    """Times of zero divide nothing."""
    assert "%" not in printed([row("", total=0.0)])


def test_recompute_has_a_column_only_where_it_happened():
    """Checkpointed modules show the time of their repeated forward; it is no part of the share."""
    assert "recompute" not in printed([row("")])

    text = printed([row(""), row("", "recompute", total=0.25)])
    assert "recompute" in text
    assert "250.00 ms  100.0%" in text


def test_roots_and_modes_are_kept_apart():
    """Each root has a table of its own for each mode, titled by both."""
    rows = [row("", root=root, mode=mode) for root in ("G", "D#2") for mode in ("train", "eval")]
    titles = [line for line in lines_of(rows) if line.startswith("time by")]

    assert titles == [
        "time by module: G (train)",
        "time by module: G (eval)",
        "time by module: D#2 (train)",
        "time by module: D#2 (eval)",
    ]


def test_functions_stand_under_their_module():
    """Functions are grouped by the module that calls them; those outside any come last."""
    rows = [
        function("add_", path=None, root=""),
        function("relu"),
        function("softmax", path="layers.0"),
        function("relu", "", direction="backward"),
    ]

    assert [line.split("  ")[0] for line in lines_of(rows)] == [
        "time by function (train)",
        "function",
        "Net",
        "relu",
        "Net layers.0",
        "softmax",
        "outside modules",
        "add_",
    ]


def test_functions_come_after_modules():
    """With both levels, the tables of modules stand before those of functions."""
    rows = [function("relu", total=1.0), row("", total=4.0)]

    assert [line for line in lines_of(rows) if line.startswith("time by")] == [
        "time by module: Net (train)",
        "time by function (train)",
    ]


def test_groups_stand_in_the_order_of_the_tree():
    """A module's functions stand before those of the modules in it, as in the modules' table."""
    paths = ["b.0", "b.1", "a", "b", ""]
    rows = [function("f", path) for path in paths] + [function("g", "b.0", root="Other")]
    heads = [line for line in lines_of(rows) if line.startswith(("Net", "Other"))]

    assert heads == ["Net", "Net b", "Net b.0", "Net b.1", "Net a", "Other b.0"]


def test_functions_of_a_module_are_sorted_by_time():
    """In each group, that which takes most time both ways comes first."""
    rows = [
        *(function("small", total=1.0), function("both", total=2.0), function("large", total=3.0)),
        *(function("both", direction="backward", total=2.0), function("other", "x", total=9.0)),
    ]
    names = [line.split()[0] for line in lines_of(rows)[2:]]

    assert names == ["Net", "both", "large", "small", "Net", "other"]


def test_share_of_a_function():
    """A function's share is of all functions in its table, inside and outside of modules."""
    rows = [
        *(row("", total=100.0), function("relu", total=1.0)),
        *(function("relu", total=2.0, direction="backward"), function("exp", "a", total=4.0)),
        *(function("add_", None, root="", total=1.0), function("exp", mode="eval", total=5.0)),
    ]
    shares = [line.split() for line in lines_of(rows) if line.endswith("%")]

    assert [(cells[0], cells[-1]) for cells in shares] == [
        ("Net", "100.0%"),
        *[("relu", "37.5%"), ("exp", "50.0%"), ("add_", "12.5%")],
        ("exp", "100.0%"),
    ]


def test_modes_of_functions_are_kept_apart():
    """Functions have a table for each mode, those outside of modules in that of their mode."""
    rows = [
        *(function("relu"), function("add_", None, root="", mode="no_grad")),
        *(function("relu", mode="eval"), function("randn", None, root="")),
    ]

    assert [line.split("  ")[0] for line in lines_of(rows)] == [
        *("time by function (train)", "function", "Net", "relu", "outside modules", "randn"),
        *("time by function (no_grad)", "function", "outside modules", "add_"),
        *("time by function (eval)", "function", "Net", "relu"),
    ]


def test_columns_of_functions():
    """Types and own times are shown only where they tell something."""
    assert lines_of([function("relu")])[1].split() == ["function", "calls", "forward", "share"]

    kinds = [function("relu"), row("", name="Mine", level="function", type="custom")]
    assert lines_of(kinds)[1].split() == ["function", "type", "calls", "forward", "share"]
    assert "custom" in printed(kinds)

    nested = [function("relu"), function("outer", direction="backward", total=3.0, own=1.0)]
    assert lines_of(nested)[1].split() == (
        ["function", "calls", "forward", "self", "backward", "self", "share"]
    )


def test_directions_without_a_call_have_no_column():
    """Where nothing ran backward (or forward), there is no column for it."""
    (forward, backward) = (lines_of([row("", way)])[1].split() for way in ("forward", "backward"))

    assert forward == ["module", "type", "calls", "forward", "self", "share"]
    assert backward == ["module", "type", "calls", "backward", "self", "share"]


def test_recomputed_functions():
    """Functions that a checkpoint repeated have a column, and no share for it."""
    rows = [
        *(function("relu", total=1.0), function("relu", direction="recompute", total=3.0)),
        *(function("relu", direction="backward", total=5.0, own=2.0), function("exp", total=4.0)),
    ]
    lines = lines_of(rows)

    assert "recompute" in lines[1].split()
    assert lines[-2].split()[0] == "relu"
    assert lines[-2].endswith("60.0%")
    assert lines[-1].endswith("40.0%")


@pytest.mark.parametrize("make", [row, function])
def test_device_times_are_called_so(make):
    """Titles say where times are the device's, and never mix them with others."""
    rows = [make("relu"), make("relu", clock="device")]
    titles = [line for line in lines_of(rows) if "time by" in line]

    assert len(titles) == 2
    assert titles[1] == f"device {titles[0]}"
    assert printed(rows).count("100.0%") == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 µs"),
        (1.5e-9, "0.00 µs"),
        (12.345e-6, "12.35 µs"),
        (999.99e-6, "999.99 µs"),
        (999.996e-6, "1.00 ms"),
        (0.5, "500.00 ms"),
        (0.999999, "1.00  s"),
        (7200.0, "7200.00  s"),
    ],
)
def test_units(seconds, text):
    """A time is told in the unit that suits it."""
    assert f" {text} " in printed([row("", total=seconds)])


def test_points_stand_under_each_other():
    """Within a column, decimal points are aligned whatever the units."""
    rows = [row(str(i), total=total) for i, total in enumerate((2e-6, 0.03, 4.0, 500.0))]
    first_points = {line.index(".") for line in printed(rows).splitlines() if "%" in line}

    assert len(first_points) == 1


def test_file_gets_whole_names():
    """Outside a terminal no name is cut or folded, however long."""
    name = "a_long_name_" * 20

    assert name in printed([row(name)])


def test_names_are_no_markup():
    """Brackets and colons in names are printed as they are."""
    text = printed([row("[red]x", type="T[bold]"), function(":smile:", path="[b]")])

    for name in ("[red]x", "T[bold]", ":smile:", "[b]"):
        assert name in text


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [(120, {"type", "self"}, set()), (75, {"self"}, {"type"}), (50, set(), {"type", "self"})],
)
def test_narrow_terminal(width, shown, left_out, monkeypatch):
    """In a narrow terminal columns are left out, and no number is cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    rows = [row("", type="SomeLongerName"), row("", "backward", total=0.123)]
    text = printed(rows)

    words = set(re.sub("\x1b[^m]*m", "", text).split())
    assert shown <= words
    assert not left_out & words
    assert "123.00 ms" in text


def test_narrowest_terminal_folds_names(monkeypatch):
    """A name that does not fit a terminal is folded, not cut."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    text = printed([row("x" * 200)])

    assert text.count("x") == 200
    assert "100.0%" in text


def test_table_can_be_printed_by_the_user():
    """The tables are rich objects, to be shown in any console."""
    console = Console(file=io.StringIO(), width=100, record=True)
    (table,) = sheets(RunData([Rank(Path(), {TimeRow: [row("")]})]))
    console.print(draw(table.narrowed(1)))
    text = console.export_text()

    assert "type" not in text
    assert "100.0%" in text
