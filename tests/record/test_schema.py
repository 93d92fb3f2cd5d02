"""The documentation of run files says what is in them."""

import ast
import inspect
import re
import sqlite3
from contextlib import closing
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from hookline.record.bins import LIMIT
from hookline.record.course import EVENTS, PASSES
from hookline.record.schema import APPLICATION, TABLES, VERSION, columns_of, create
from hookline.record.store import Store
from hookline.record.writer import INTERVAL
from tests.record.sample import sample

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"


def meanings(kind):
    """What the source says of each field: the text that stands below it."""
    found = {}
    for each in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.getsource(each)).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def table_of(name):
    """The table of a page for a table of the file, in Markdown."""
    types = dict(part.split('" ') for part in create(name).partition("(")[2][1:-1].split(', "'))
    said = meanings(TABLES[name])
    lines = [f"| `{column}` | {types[column]} | {said[column]} |" for column in columns_of(name)]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *lines])


@pytest.mark.parametrize("name", TABLES)
def test_every_column_stands_in_the_documentation_with_its_meaning(name):
    assert [field.name for field in fields(TABLES[name])] == list(columns_of(name))
    _, heading, section = PAGE.read_text().partition(f"\n### `{name}`\n")
    assert heading
    assert table_of(name) in section.partition("\n### ")[0]


def test_the_documentation_names_the_marks_of_a_file():
    page = PAGE.read_text()
    assert f"{APPLICATION:#x}" in page
    assert f"schema version {VERSION}" in page


@pytest.mark.parametrize("query", re.findall("```sql\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_queries_of_the_documentation_find_something(query, tmp_path):
    with Store(tmp_path / "run.hookline") as store:
        store.write(sample())
    with closing(sqlite3.connect(tmp_path / "run.hookline")) as opened:
        rows = opened.execute(query).fetchall()
    assert rows
    assert all(row[0] is not None for row in rows)


def test_the_bounds_in_the_documentation_are_those_of_the_source():
    page = PAGE.read_text()
    assert f"{LIMIT} bins each" in page
    assert f"the first {PASSES} passes and the last {PASSES}" in page
    assert f"the first {EVENTS:,} calls and the last {EVENTS:,}" in page
    assert INTERVAL == 1.0
    assert "once a second" in page


def test_the_columns_stand_in_the_order_that_files_have_had():
    """What `SELECT *` gives is known by its place."""
    whose = ["root", "path", "type", "level", "mode"]
    times = ["calls", "self_time", "total_time", "minimum", "median", "maximum", "name", "clock"]
    assert list(columns_of("times")) == [*whose, "direction", *times]
    assert list(columns_of("memory"))[:6] == [*whose, "calls"]
    events = ["name", "index", "pass_number", "step", "thread", "begin", "duration"]
    assert list(columns_of("events")) == [*whose, "direction", *events]
