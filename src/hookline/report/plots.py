"""Plots of a run with matplotlib, which the extra `plot` installs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.core.records import ParameterRow, StatsRow, TimeRow
from hookline.errors import HookValueError
from hookline.record.rows import ModuleRow, SeriesRow
from hookline.record.runs import RunData
from hookline.report.extras import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST: Final = 30
"""So many bars a plot has at most: the largest."""

FORWARD, BACKWARD, RECOMPUTE = "#0072b2", "#d55e00", "#009e73"
"""Colours that people tell apart however they see colours (Okabe and Ito, 2008)."""


def plot(run: RunData, kind: str = "time") -> Figure:
    """Draw a plot of a run.

    | kind | shows |
    |---|---|
    | `time` | the time of each module's own, forward, backward and recomputed |
    | `activations` | the norm of each module's outputs, over depth: mean, and range over passes |
    | `gradients` | the same of the gradients of outputs |
    | `updates` | how large the update of each parameter was against the parameter |
    | `passes` | the time of a pass of each root, over the run |

    Args:
        run: the run.
        kind: which plot.

    Returns:
        A figure that belongs to no window: `figure.savefig("time.png")`.

    Raises:
        HookValueError: there is no such plot, or the run has nothing for it.
        MissingExtraError: matplotlib is not installed.
    """
    if kind not in _KINDS:
        msg = f"{kind!r} is no plot; choose one of {', '.join(_KINDS)}"
        raise HookValueError(msg)
    figure = _drawn(run, kind)
    if figure is None:
        msg = f"the run has nothing for the plot {kind!r}; record it with {_KINDS[kind][1]}"
        raise HookValueError(msg)
    return figure


def write_plot(run: RunData, path: Path) -> None:
    """Draw the first plot that the run has something for, to any file that matplotlib can write.

    Raises:
        HookValueError: there is nothing to draw.
        MissingExtraError: matplotlib is not installed.
    """
    figure = next((f for f in (_drawn(run, kind) for kind in _KINDS) if f is not None), None)
    if figure is None:
        msg = "the run has nothing to draw; record it with --time or --stats"
        raise HookValueError(msg)
    figure.savefig(path)


def _drawn(run: RunData, kind: str) -> Figure | None:
    figure = _new_figure()
    return figure if _KINDS[kind][0](run, figure.subplots()) else None


def _new_figure() -> Figure:
    with needs_extra("plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=(9, 5), layout="constrained")


def _time(run: RunData, axes: Axes) -> bool:
    """Bars of modules' own time, that which takes most on top."""
    own: dict[str, dict[str, float]] = {}
    for row in run.rows(TimeRow):
        if row.level == "module":
            times = own.setdefault(_name(run, row.root, row.path), {})
            times[row.direction] = times.get(row.direction, 0.0) + row.self_time * 1e3
    top = sorted(own, key=lambda name: sum(own[name].values()), reverse=True)[:MOST]
    begin = [0.0] * len(top)
    colours = {"forward": FORWARD, "backward": BACKWARD, "recompute": RECOMPUTE}
    for direction, colour in colours.items():
        lengths = [own[name].get(direction, 0.0) for name in top]
        if any(lengths):
            axes.barh(top, lengths, left=begin, color=colour, label=direction)
        begin = [a + b for a, b in zip(begin, lengths, strict=True)]
    axes.set(xlabel="own time in all passes (ms)", title="Time by module")
    _finish_bars(axes, len(top), len(own))
    return bool(top)


def _updates(run: RunData, axes: Axes) -> bool:
    """Points of each parameter's update ratio, with the rule of thumb of 1e-3."""
    rows = [row for row in run.rows(ParameterRow) if row.update_ratio > 0][:MOST]
    names = [row.name for row in rows]
    axes.plot([row.update_ratio for row in rows], names, "o", color=FORWARD, label="mean")
    axes.plot([row.update_ratio_max for row in rows], names, "|", color=BACKWARD, label="largest")
    axes.axvline(1e-3, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="‖Δw‖ / ‖w‖ a step", title="Updates of parameters")
    _finish_bars(axes, len(rows), len(run.rows(ParameterRow)))
    return bool(rows)


def _finish_bars(axes: Axes, shown: int, there: int) -> None:
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    if shown:
        axes.legend()
    if there > shown:
        axes.set_ylabel(f"{shown} of {there}")


def _norms(direction: str, title: str) -> Callable[[RunData, Axes], bool]:
    def draw(run: RunData, axes: Axes) -> bool:
        """A line of mean norms in the model's order, with the range over passes."""
        rows = [r for r in run.rows(StatsRow) if r.direction == direction and r.level == "module"]
        rows = [row for row in rows if row.mode == "train"] or rows
        order = {(row.root, row.path): row.place for row in run.rows(ModuleRow)}
        rows.sort(key=lambda row: order.get((row.root, row.path or ""), 0))
        ranges = _ranges(run, direction)
        names = [_name(run, row.root, row.path) for row in rows]
        found = [ranges.get((r.root, r.path, r.mode, r.leaf), (r.norm, r.norm)) for r in rows]
        places = range(len(rows))
        lowest, highest = [low for low, _ in found], [high for _, high in found]
        axes.fill_between(places, lowest, highest, alpha=0.25, color=FORWARD)
        axes.plot(places, [row.norm for row in rows], ".-", color=FORWARD)
        axes.set_xticks(*_thinned(names), rotation=90, fontsize=7)
        axes.set(ylabel="L2 norm: mean, and range over passes", title=title)
        axes.set_yscale("log" if any(row.norm > 0 for row in rows) else "linear")
        return bool(rows)

    return draw


def _ranges(run: RunData, direction: str) -> dict[tuple[Any, ...], tuple[float, float]]:
    found: dict[tuple[Any, ...], tuple[float, float]] = {}
    for row in run.rows(SeriesRow):
        values = [value for value in row.values if not math.isnan(value)]
        if row.metric == "norm" and row.direction == direction and values:
            found[row.root, row.path, row.mode, row.leaf] = min(values), max(values)
    return found


def _thinned(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Not more labels than can be read."""
    step = max(1, math.ceil(len(names) / 60))
    places = list(range(0, len(names), step))
    return places, [names[place] for place in places]


def _passes(run: RunData, axes: Axes) -> bool:
    """A line for each root and direction: how long a pass took."""
    rows = [r for r in run.rows(SeriesRow) if r.metric == "time" and r.path == "" and not r.name]
    for row in rows:
        places = [row.first + row.width * (place + 0.5) for place in range(len(row.values))]
        times = [value * 1e3 for value in row.values]
        axes.plot(places, times, ".-", label=f"{row.root} {row.mode} {row.direction}")
    axes.set(xlabel="pass", ylabel="time of a call (ms)", title="Time over passes")
    if rows:
        axes.legend()
    return bool(rows)


def _name(run: RunData, root: str, path: str | None) -> str:
    if not path:
        return root
    several = len({row.root for row in run.rows(TimeRow)} - {""}) > 1
    return f"{root}.{path}" if several else path


_KINDS: Final[dict[str, tuple[Callable[[RunData, Any], bool], str]]] = {
    "time": (_time, "--time"),
    "activations": (_norms("forward", "Activations by module"), "--stats"),
    "gradients": (_norms("backward", "Gradients of outputs by module"), "--stats"),
    "updates": (_updates, "--stats"),
    "passes": (_passes, "--time"),
}
"""For each plot, what draws it, and the option by which a run has what it needs."""
