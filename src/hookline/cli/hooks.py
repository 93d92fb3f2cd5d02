"""`hookline hooks`: which ready-made hooks there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

_HOOKS: Final = "hookline.hooks."


class Ready(NamedTuple):
    """A ready-made hook."""

    module: str
    """Where users import it from: `module_hooks` or `function_hooks`."""
    name: str
    """What it is called there."""
    option: str
    """The option of `hookline run` that uses it, if there is one."""
    text: str
    """What it gives, in a line."""


@click.command(
    short_help="Show which ready-made hooks there are.",
    epilog="""\b
    Examples:
      hookline hooks                                       this list
      python -c 'from hookline.module_hooks import StatsHook; help(StatsHook)'
    """,
)
def hooks() -> None:
    """Show which ready-made hooks there are, what each gives, and the option of `run` for it."""
    from hookline.report.tables.sheet import Column, Line, Sheet, split
    from hookline.report.terminal import print_lines, print_sheets

    columns = [Column("hookline run", number=False), Column("gives", number=False)]
    print_sheets(
        Sheet(
            f"hookline.{part[0].module}",
            "hook",
            columns,
            [Line(hook.name, (hook.option, hook.text)) for hook in part],
        )
        for part in split(catalogue(), by=("module",))
    )
    print_lines(["hookline run uses those that have an option there; see hookline run --help"])


def catalogue() -> Iterator[Ready]:
    """The ready-made hooks, from the source: to import them would load torch.

    Example:
        >>> next(hook.option for hook in catalogue() if hook.name == "StatsHook")
        '--stats'
    """
    from hookline.record.measures import MAKERS

    options = {hook: f"--{name}" for name, (hook, _) in MAKERS.items()}
    folder = Path(__file__).parents[1]
    for module in ("module_hooks", "function_hooks"):
        for node in ast.walk(_tree(folder / f"{module}.py")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_HOOKS):
                home = folder.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                for name in node.names:
                    known = name.asname or name.name
                    yield Ready(module, known, options.get(known, ""), _summary(home, name.name))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _summary(path: Path, name: str) -> str:
    """The first line of a class's docstring, without links."""
    nodes = _tree(path).body
    found = next(n for n in nodes if isinstance(n, ast.ClassDef) and n.name == name)
    text = (ast.get_docstring(found) or "").partition("\n")[0]
    return re.sub(r"\[([^\]]*)\]\[[^\]]*\]", r"\1", text)
