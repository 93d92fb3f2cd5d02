"""What was measured of the tools, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from benchmarks.machine import sentence

Found = dict[str, Any]
Row = dict[str, Any]
Runs = list[tuple[Found, dict[str, Row]]]
"""In which runs a piece of work was measured, each with its figures by name."""

OURS = "hookline"

_SUMMARY = (
    "Ratios to the plain run, in set-ups to raw torch hooks: of what was measured in every process "
    "the median and the range; of others with hookline's beside them."
)


def report(about: dict[str, str], found: list[Found], chainer: Row, missing: list[str]) -> str:
    """All tables, with what one must know to read them."""
    parts = [sentence(about)]
    if missing:
        parts.append(f"Not installed and left out: {', '.join(missing)}.")
    loads = "; ".join(f"{each['group']} {each['load'][0]} to {each['load'][1]}" for each in found)
    parts.append(f"Load (over 1, 5, 15 minutes) before and after: {loads}.")
    works = _by_work(found)
    parts.append(_summary(works))
    parts += [_table(work, runs, found) for work, runs in works.items()]
    parts.append("\n".join(f"- {remark}" for each in found for remark in each["remarks"]))
    if chainer:
        parts.append(_chainer(chainer))
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_work(found: list[Found]) -> dict[str, Runs]:
    """The runs of each piece of work."""
    works: dict[str, Runs] = {}
    for each in found:
        for work in dict.fromkeys(row["work"] for row in each["figures"]):
            rows = {row["variant"]: row for row in each["figures"] if row["work"] == work}
            works.setdefault(work, []).append((each, rows))
    return works


def _summary(works: dict[str, Runs]) -> str:
    """The ratios of all tools in all pieces of work, to the first way of each."""
    kinds = ("outputs", "gradients"), ("an empty hook", "set-up"), ("a training step",)
    chosen = [[work for work in works if work.startswith(kind)] for kind in kinds]
    return "\n\n".join([_SUMMARY, *(_ratios(names, works) for names in chosen if names)])


def _ratios(chosen: list[str], works: dict[str, Runs]) -> str:
    """Some pieces of work side by side."""
    names = dict.fromkeys(name for work in chosen for _, rows in works[work] for name in rows)
    lines = [f"| tool | {' | '.join(chosen)} |", "|---|" + "--:|" * len(chosen)]
    lines += [
        f"| {name} | {' | '.join(_cell(name, works[work]) for work in chosen)} |"
        for name in _ordered(names)
        if name != "plain"
    ]
    return "\n".join(lines)


def _cell(name: str, runs: Runs) -> str:
    ratios = [rows[name]["ratio"] for _, rows in runs if name in rows]
    if not ratios:
        return ""
    if len(ratios) == 1 and name.startswith(OURS):
        return f"×{ratios[0]:.2f}"
    if len(ratios) > 1:
        return f"×{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    (ours,) = (rows[OURS]["ratio"] for _, rows in runs if name in rows)
    return f"×{ratios[0]:.2f}, hookline ×{ours:.2f}"


def _table(work: str, runs: Runs, found: list[Found]) -> str:
    keeps = {name: kept for each in found for name, kept in each["keeps"].items()}
    first = next(iter(runs[0][1].values()))
    told = f"{work}: {first['variant']} {first['extra']:.1f} µs in the first run"
    lines = [
        f"| {told} | beyond it, µs | quartiles | ratio | hookline beside it | later in-place |",
        "|---|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *_rows(runs, keeps)])


def _rows(runs: Runs, keeps: dict[str, str | None]) -> Iterator[str]:
    """hookline's and torch's from the first run; every other tool from its own."""
    shown: set[str] = set()
    for _, rows in runs:
        others = list(rows)[1:]
        for name in _ordered(others):
            if name in shown:
                continue
            shown.add(name)
            row, ours = rows[name], rows.get(OURS)
            beside = "" if name.startswith(OURS) or not ours else f"×{ours['ratio']:.2f}"
            kept = keeps.get(name) if row["work"].startswith("outputs") else None
            yield (
                f"| {name} | {row['extra']:+.1f} | {row['low']:+.1f} to {row['high']:+.1f} "
                f"| ×{row['ratio']:.2f} | {beside} | {kept or ''} |"
            )


def _ordered(names: Iterable[str]) -> list[str]:
    """hookline first."""
    return sorted(names, key=lambda name: not name.startswith(OURS))


def _chainer(chainer: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in chainer["versions"].items())
    lines = [f"| under ({versions}) | µs a function | quartiles |", "|---|--:|--:|"]
    for row in chainer["figures"]:
        sign = "" if row["ratio"] == 1.0 else "+"
        lines.append(
            f"| {row['work']}: {row['variant']} | {row['extra']:{sign}.1f} "
            f"| {row['low']:{sign}.1f} to {row['high']:{sign}.1f} |"
        )
    return "\n".join(lines)
