"""Tables as data: cut, sorted, without empty columns, narrowed."""

import pytest

from hookline.report.tables.sheet import Column, Line, Sheet
from hookline.report.tables.units import amount, duration, number, percent, plural, size, times


def tree(*weights):
    """A root, and under it `a` with a line under it, then one line for each further weight."""
    root = Line("root", [0, ""], weight=100)
    a = Line("a", above=root)
    inner = Line("inner", [1, "x"], name="a.inner", weight=weights[0], above=a)
    rest = [Line(f"l{i}", [i + 2, "y"], weight=w, above=root) for i, w in enumerate(weights[1:])]
    return [root, a, inner, *rest]


def sheet(*weights):
    columns = [Column("n"), Column("text", number=False, spare=1)]
    return Sheet("title", "name", columns, tree(*weights))


def labels(table):
    return ["  " * line.depth + line.label for line in table.lines]


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (1, ["root"]),
        (2, ["root"]),  # `inner` comes next, and needs `a` too
        (3, ["root", "  a", "    inner"]),
        (4, ["root", "  a", "    inner", "  l1"]),
        (5, ["root", "  a", "    inner", "  l0", "  l1"]),
        (None, ["root", "  a", "    inner", "  l0", "  l1"]),
    ],
)
def test_a_cut_table_keeps_the_heaviest_lines_and_what_they_stand_under(limit, left):
    table = sheet(9, 1, 5).cut(limit)
    assert labels(table) == left
    assert table.left_out == 5 - len(left)


def test_a_sorted_table_has_no_tree():
    """Largest numbers first, full names, and no lines that only hold others together."""
    table = sheet(0, 0, 0).sorted_by("n")
    assert labels(table) == ["l1", "l0", "a.inner", "root"]


def test_a_sorted_table_is_cut_at_its_end():
    """What is heavy but small in that column goes."""
    lines = [Line("heavy", [1], weight=9), Line("light", [5], weight=0)]
    table = Sheet("", "name", [Column("n")], lines).sorted_by("n").cut(1)
    assert labels(table) == ["light"]


def test_a_table_sorted_by_text_goes_from_a_to_z():
    assert labels(sheet(0, 0).sorted_by("text")) == ["root", "a.inner", "l0"]
    assert labels(sheet(0, 0).sorted_by("name")) == ["a.inner", "l0", "root"]


def test_what_has_no_value_comes_last_in_a_sorted_table():
    lines = [Line("unknown", [None]), Line("small", [-1]), Line("large", [5])]
    table = Sheet("", "name", [Column("n")], lines)
    assert labels(table.sorted_by("n")) == ["large", "small", "unknown"]


def test_a_column_without_a_value_is_left_out():
    lines = [Line("a", ["", 0, None]), Line("b", ["", 1, None])]
    table = Sheet("", "", [Column("x"), Column("y"), Column("z")], lines).tidied()
    assert [column.name for column in table.columns] == ["y"]
    assert [line.values for line in table.lines] == [[0], [1]]


def test_a_narrowed_table_keeps_its_tree():
    table = sheet(1, 1).narrowed(1)
    assert [column.name for column in table.columns] == ["n"]
    assert labels(table) == labels(sheet(1, 1))
    assert all(line.above is None or line.above in table.lines for line in table.lines)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (duration, 0.25, "250.00 ms"),
        (size, 0, "0   B"),
        (size, 1023, "1023   B"),
        (size, 1536, "1.50 KiB"),
        (size, 5 * 2**40, "5.00 TiB"),
        (amount, 999, "999  "),
        (amount, 2_500_000_000, "2.50 G"),
        (percent, 0.125, "12.5%"),
        (number, float("inf"), "inf"),
        (times, 0.5, "×0.50"),
    ],
)
def test_numbers_are_written_in_the_unit_that_suits_them(show, value, text):
    assert show(value) == text


def test_plurals():
    assert [plural(n, "line") for n in (0, 1, 1234)] == ["0 lines", "1 line", "1,234 lines"]
    assert plural(2, "pass") == "2 passes"
