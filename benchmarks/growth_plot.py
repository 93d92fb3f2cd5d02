"""The growth of cost as a picture that is legible on light and on dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.growth import Growing, Point

_INK, _LINE, _GUIDE = "#808894", "#2a7fd0", "#d9822b"
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and in the reader's font
    "svg.hashsalt": "hookline",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.titlesize": 10,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLUMNS = 4


def draw(found: dict[Growing, list[Point]], path: Path) -> None:
    """One panel for each thing that grows, all axes logarithmic.

    Args:
        found: the figures of each.
        path: the file, as `.svg`.
    """
    rows = -(-len(found) // _COLUMNS)
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 2.9 * rows), layout="constrained")
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for panel, (growing, points) in zip(panels, found.items(), strict=False):
            _panel(panel, growing, points)
        for panel in panels[len(found) :]:
            panel.set_axis_off()
        handles, names = panels[0].get_legend_handles_labels()
        panels[-1].legend(handles, names, loc="center", frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _panel(panel: Axes, growing: Growing, points: list[Point]) -> None:
    """What was measured, its quartiles, and what growth in step with the size would be."""
    sizes = [point.size for point in points]
    figures = [point.figure for point in points]
    panel.plot(
        [sizes[0], sizes[-1]],
        [figures[0], figures[0] * sizes[-1] / sizes[0]],
        "--",
        color=_GUIDE,
        linewidth=1.2,
        label="linear growth",
    )
    panel.fill_between(
        sizes,
        [point.low for point in points],
        [point.high for point in points],
        color=_LINE,
        alpha=0.3,
        linewidth=0,
        label="quartiles",
    )
    panel.plot(sizes, figures, "o-", color=_LINE, markersize=4, label="measured, median")
    for point in (points[0], points[-1]):
        panel.annotate(
            f"{point.figure:,.0f}",
            (point.size, point.figure),
            xytext=(0, -13),
            textcoords="offset points",
            ha="center",
        )
    panel.set(xscale="log", yscale="log", title=growing.name, ylabel=growing.unit)
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.minorticks_off()
    panel.set_ylim(min(figures) / 3, max(figures) * 3)
