"""Lines for rows that belong to modules and functions: modules as a tree, functions by caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hookline.core.names import where
from hookline.report.tables.sheet import Line, Sheet, split

Draw = Callable[[str, str, list[Any]], Sheet]
"""Makes the table of these rows, given `module` or `function` and the end of its title."""
Values = Callable[[list[Any]], Sequence[Any]]
"""Gives a value for each column, for the rows of one module or function."""
Weight = Callable[[list[Any]], Any]
"""Gives the weight of the line of these rows."""


def by_level(rows: Sequence[Any], apart: tuple[str, ...], draw: Draw) -> Iterator[Sheet]:
    """A table of modules for each root and mode, then one of functions for each mode.

    Args:
        rows: the rows of both levels.
        apart: the fields by which rows stand in tables of their own, besides.
        draw: makes a table.
    """
    modules = [row for row in rows if row.level == "module"]
    for part in split(modules, by=("root", *apart)):
        yield draw("module", f"by module: {part[0].root} ({part[0].mode})", part)
    functions = [row for row in rows if row.level == "function"]
    for part in split(functions, by=apart):
        yield draw("function", f"by function ({part[0].mode})", part)


def lines_of(level: str, rows: Sequence[Any], values: Values, weight: Weight) -> list[Line]:
    """The lines of a table of one level: modules as a tree, functions by the module that calls."""
    if level == "module":
        return _module_lines(rows, rows[0].root, values, weight)
    return _function_lines(rows, values, weight)


def _module_lines(rows: Iterable[Any], root: str, values: Values, weight: Weight) -> list[Line]:
    """The modules of a root by path, parents without rows included, in the order of the rows."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.path or "", []).append(row)
    inner: dict[str, list[str]] = {}
    seen = {""}
    for path in found:
        _add(path, inner, seen)
    lines: list[Line] = []

    def walk(path: str, above: Line | None) -> None:
        label = path.rpartition(".")[2] or root or "outside modules"
        line = Line(label, name=path or label, above=above, style="dim")
        if path in found:
            own = found[path]
            line.values, line.weight, line.style = values(own), weight(own), ""
        lines.append(line)
        for each in inner.get(path, ()):
            walk(each, line)

    walk("", None)
    return lines


def _add(path: str, inner: dict[str, list[str]], seen: set[str]) -> None:
    """Put a path under its parent, and that under its own."""
    while path not in seen:
        seen.add(path)
        above = path.rpartition(".")[0]
        inner.setdefault(above, []).append(path)
        path = above


def _function_lines(rows: Iterable[Any], values: Values, weight: Weight) -> list[Line]:
    """The functions under the module that calls them, the heaviest first."""
    lines: list[Line] = []
    for group in _groups(list(rows)):
        head = Line(_owner(group[0]), style="bold")
        inside = [
            Line(part[0].name, values(part), where(part[0]), weight(part), head)
            for part in split(group, by=("name",))
        ]
        lines += [head, *sorted(inside, key=lambda line: line.weight, reverse=True)]
    return lines


def _groups(rows: Sequence[Any]) -> list[list[Any]]:
    """The rows by the module that calls; those outside any come last."""
    inside = [row for row in rows if row.path is not None]
    outside = [row for row in rows if row.path is None]
    groups: list[list[Any]] = []
    for root in split(inside, by=("root",)):
        place = _places([row.path for row in root])
        groups += sorted(split(root, by=("path",)), key=lambda group: place(group[0].path))
    return groups + split(outside, by=("root",))


def _places(paths: Iterable[str]) -> Callable[[str], list[int]]:
    """The place of each path in the tree of all: behind its parent, siblings as they come."""
    first: dict[str, int] = {}

    def place(path: str) -> list[int]:
        above = place(path.rpartition(".")[0]) if path else []
        return [*above, first.setdefault(path, len(first))]

    for path in paths:
        place(path)
    return place


def _owner(row: Any) -> str:
    """The heading of the functions that one module calls."""
    if row.path is None:
        return "outside modules"
    return f"{row.root} {row.path}".rstrip()
