"""A run as one HTML page that needs nothing else: no server, no network, no other file."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from hookline.record.rows import RunRow
from hookline.record.runs import RunData
from hookline.report.packed import packed

SERIES_ROOM: Final = 2_500_000
"""So many numbers of series a page holds, of all ranks together: some 3 MB."""

_SCRIPTS: Final = (
    "format",
    "parts",
    "data",
    "columns",
    "grid",
    "modules",
    "tables",
    "canvas",
    "heatmap",
    "timeline",
    "summary",
    "app",
)
"""The parts of the script, each building on those before it."""


def write_html(run: RunData, path: str | Path) -> None:
    """Write the report of a run.

    Args:
        run: what it kept.
        path: the file to write; one that is there is replaced.

    Raises:
        OSError: it can't be written.

    Example:
        >>> import tempfile
        >>> from hookline.record.runs import Rank, RunData
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_html(RunData([Rank(path, {})]), path)
        >>> path.read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    Path(path).write_text(render(run), encoding="utf-8")


def render(run: RunData) -> str:
    """The report of a run as the text of a page.

    Args:
        run: what it kept.

    Returns:
        The page: all rows but histograms, as `report.packed` says. Numbers have 12 digits, those of
        series over passes 8 bits of precision (0.4 %).

    Example:
        >>> from hookline.record.runs import Rank, RunData
        >>> "</html>" in render(RunData([Rank(Path("run.hookline"), {})]))
        True
    """
    infos = [row for rank in run.ranks for row in rank.rows(RunRow)]
    return _template().render(
        title=shlex.join(infos[0].program) if infos else "an empty run",
        ranks=[packed(rank, SERIES_ROOM // len(run.ranks)) for rank in run.ranks],
        style=_part("page.css"),
        script=Markup("\n").join(_part(f"{name}.js") for name in _SCRIPTS),
    )


def _template() -> Template:
    page = Environment(
        loader=PackageLoader("hookline.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return page.get_template("page.html")


def _part(name: str) -> Markup:
    """A file of the page, which is code and no text."""
    text = files("hookline.report").joinpath("page", name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - it is ours
