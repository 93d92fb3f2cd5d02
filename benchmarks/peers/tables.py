"""What was measured of the tools, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.machine import sentence

Found = dict[str, Any]
Row = dict[str, Any]

OURS = "hookline"


def report(about: dict[str, str], found: list[Found], chainer: Row, missing: list[str]) -> str:
    """All tables, with what one must know to read them."""
    parts = [sentence(about)]
    if missing:
        parts.append(f"Not installed and left out: {', '.join(missing)}.")
    loads = "; ".join(f"{each['group']} {each['load'][0]} to {each['load'][1]}" for each in found)
    parts.append(f"Load (over 1, 5, 15 minutes) before and after: {loads}.")
    parts += [_table(work, rows, found) for work, rows in _by_work(found).items()]
    parts.append("\n".join(f"- {remark}" for each in found for remark in each["remarks"]))
    if chainer:
        parts.append(_chainer(chainer))
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_work(found: list[Found]) -> dict[str, list[tuple[Found, dict[str, Row]]]]:
    """For each piece of work the runs in which it was measured, each with its figures by name."""
    works: dict[str, list[tuple[Found, dict[str, Row]]]] = {}
    for each in found:
        for work in dict.fromkeys(row["work"] for row in each["figures"]):
            rows = {row["variant"]: row for row in each["figures"] if row["work"] == work}
            works.setdefault(work, []).append((each, rows))
    return works


def _table(work: str, runs: list[tuple[Found, dict[str, Row]]], found: list[Found]) -> str:
    keeps = {name: kept for each in found for name, kept in each["keeps"].items()}
    first = next(iter(runs[0][1].values()))
    told = f"{work}: {first['variant']} {first['extra']:.1f} µs in the first run"
    lines = [
        f"| {told} | beyond it, µs | quartiles | ratio | hookline beside it | later in-place |",
        "|---|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *_rows(runs, keeps)])


def _rows(runs: list[tuple[Found, dict[str, Row]]], keeps: dict[str, str | None]) -> Iterator[str]:
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
            kept = keeps.get(name) if "outputs" in row["work"] else None
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
