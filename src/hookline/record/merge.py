"""Several processes of a run taken together: how they differ, and which of them are in trouble."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple, TypeVar

from hookline.core.names import full_name
from hookline.core.records import DirectedRow, TimeRow
from hookline.record.runs import Rank, RunData

RowT = TypeVar("RowT")

SLOWER: Final = 1.2
"""So many times the time of the others is too much for a process."""

_MATTERS: Final = 0.01
"""But only if it is at least this share of the run."""

_key: Final = attrgetter("root", "path", "type", "level", "mode", "direction", "name", "clock")
_Key = tuple[str, str | None, str, str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class RankRow(DirectedRow):
    """The mean time of a call of one module or function, over the processes that ran it.

    All times are in seconds, calls inside included.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train", "forward", "", "host")
        >>> RankRow(*where, 2, 10, 0.1, 0.2, 0.3, 1).slowest
        1
    """

    name: str
    """The function."""
    clock: str
    """The clock."""
    ranks: int
    """How many processes ran it."""
    calls: int
    """How often each of them did; the most often."""
    minimum: float
    """The mean time of a call in the process in which it is the shortest."""
    median: float
    """That in the middle."""
    maximum: float
    """That in the process in which it is the longest."""
    slowest: int
    """The rank of that process."""


class Straggler(NamedTuple):
    """A process that takes longer than the others."""

    rank: int
    """Its rank."""
    ratio: float
    """How many times as long."""
    lost: float
    """How many seconds more, over the whole run."""
    worst: RankRow
    """The module or function in which it loses most."""


def rows_of_all(run: RunData, kind: type[RowT]) -> list[tuple[int, RowT]]:
    """The rows of a class of all processes, each with the rank of its process."""
    return [(rank.info.rank, row) for rank in run.ranks for row in rank.rows(kind)]


def over_ranks(run: RunData) -> list[RankRow]:
    """How long calls take in the processes of a run; nothing for a run of one process."""
    if len(run.ranks) < 2:  # noqa: PLR2004
        return []
    found: dict[_Key, dict[int, TimeRow]] = {}
    for rank, row in rows_of_all(run, TimeRow):
        found.setdefault(_key(row), {})[rank] = row
    return [_merged(key, rows) for key, rows in found.items()]


def stragglers(run: RunData) -> list[Straggler]:
    """The processes that take at least 1.2 times as long as the others.

    What is compared is the forward of the modules below the root: the own time of a call, of
    modules that all of the processes called. The rest is where processes wait for each other, so
    that the fast ones take as long as the slow one or longer: for gradients in the backward, for
    sharded parameters at the begin of the root. The time lost must be at least a hundredth of the
    run.
    """
    ranks = {rank.info.rank: rank for rank in run.ranks}
    of_all = {number: _own_times(rank) for number, rank in ranks.items()}
    shared = set.intersection(*map(set, of_all.values())) if len(of_all) > 1 else set[_Key]()
    merged = {_key(row): row for row in over_ranks(run)}
    return [
        straggler
        for number, rank in ranks.items()
        for straggler in _straggling(number, of_all, shared, merged)
        if straggler.ratio >= SLOWER and straggler.lost >= _MATTERS * rank.info.seconds
    ]


def remarks(run: RunData) -> list[str]:
    """What is to be said of the processes of a run: which are missing, ended early, or lag."""
    return [*_missing(run), *_ended_early(run), *_lagging(run)]


def _missing(run: RunData) -> Iterator[str]:
    if run.missing:
        ranks = ", ".join(map(str, run.missing))
        yield (
            f"there is no file of rank {ranks}: it ended before it wrote one, or the file is on "
            "another machine; put the files of all ranks in one folder"
        )


def _ended_early(run: RunData) -> Iterator[str]:
    """The processes that did not finish, the first that ended first; of several processes."""
    states = {rank.info.rank: rank.state for rank in run.ranks}
    # That all still run, or were interrupted, is told by the head of the report.
    alike = len(states) == 1 or set(states.values()) in ({"running"}, {"interrupted"})
    for info in sorted((rank.info for rank in run.ranks), key=lambda info: info.updated):
        state = states[info.rank]
        if state != "finished" and not alike:
            error = f": {first_line(info.error)}" if info.error else ""
            yield f"rank {info.rank}: {state} after {info.seconds:.1f} s{error}"


def first_line(text: str) -> str:
    """The first line of an error, which says what it is."""
    return text.partition("\n")[0]


def _lagging(run: RunData) -> Iterator[str]:
    for rank, ratio, lost, worst in stragglers(run):
        yield (
            f"rank {rank} is slow: {ratio:.2f} times the time of the others, {lost:.2g} s in all; "
            f"most in {full_name(worst)} ({worst.mode}, {worst.direction})"
        )


def _straggling(
    rank: int,
    of_all: dict[int, dict[_Key, tuple[int, float]]],
    shared: Iterable[_Key],
    merged: dict[_Key, RankRow],
) -> Iterator[Straggler]:
    """How one process compares with the others in what all of them ran."""
    lost: dict[_Key, float] = {}
    usual = 0.0
    for key in shared:
        calls, own = of_all[rank][key]
        others = median(times[key][1] for other, times in of_all.items() if other != rank)
        usual += others * calls
        lost[key] = (own - others) * calls
    if usual > 0:
        total = sum(lost.values())
        worst = max(lost, key=lambda key: lost[key])
        yield Straggler(rank, 1 + total / usual, total, merged[worst])


def _own_times(rank: Rank) -> dict[_Key, tuple[int, float]]:
    """The calls and the own time of each, of forwards below a root."""
    rows = [r for r in rank.rows(TimeRow) if r.path and r.calls and r.direction == "forward"]
    # With both levels, the functions are a part of the modules' own time.
    level = "module" if any(row.level == "module" for row in rows) else "function"
    return {_key(row): (row.calls, row.self_time / row.calls) for row in rows if row.level == level}


def _merged(key: _Key, rows: dict[int, TimeRow]) -> RankRow:
    means = {rank: row.total_time / row.calls for rank, row in rows.items() if row.calls}
    slowest = max(means, key=lambda rank: means[rank])
    spread = (min(means.values()), median(means.values()), means[slowest])
    calls = max(row.calls for row in rows.values())
    return RankRow(*key, len(means), calls, *spread, slowest)
