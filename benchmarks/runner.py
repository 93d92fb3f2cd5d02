"""Interleaved rounds, in thread time: noise meets all variants alike, other load none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from time import thread_time

Variant = Callable[[], AbstractContextManager[object]]
"""Makes what is on while the work runs."""

Run = Callable[[], object]
Job = Callable[[], AbstractContextManager[Run]]
"""Gives what is to be run; what it takes to come so far, and to end, is not measured."""


def whole(run: Run) -> Job:
    """A job that is measured from beginning to end."""
    return lambda: nullcontext(run)


class Jobs:
    """Several ways to do one piece of work, each with what it runs: a variant says which is done.

    Args:
        jobs: the ways, by name.
    """

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs = jobs
        self._doing: Run = lambda: None

    def run(self) -> None:
        """Do it."""
        self._doing()

    def variants(self) -> dict[str, Variant]:
        """The ways, by name."""
        return {name: self._chosen(job) for name, job in self._jobs.items()}

    def _chosen(self, job: Job) -> Variant:
        @contextmanager
        def chosen() -> Iterator[None]:
            with job() as self._doing:
                yield

        return chosen


@dataclass(frozen=True, slots=True)
class Work:
    """Something to be measured.

    Attributes:
        name: what it is.
        run: does it once.
        per: how many calls of interest one run makes; figures are per call.
        variants: what it is run under, by name; the first one is the base.
        repeat: how often it is run for one sample.
    """

    name: str
    run: Callable[[], object]
    per: int
    variants: dict[str, Variant]
    repeat: int = 20


@dataclass(frozen=True, slots=True)
class Figure:
    """What one variant costs, in microseconds a call: median and quartiles over the rounds."""

    work: str
    variant: str
    extra: float
    low: float
    high: float
    ratio: float


def measure(work: Work, rounds: int) -> list[Figure]:
    """The cost of each variant beyond the base, and its ratio to the base."""
    samples: dict[str, list[float]] = {name: [] for name in work.variants}
    names = list(work.variants)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            with work.variants[name]():
                work.run()
                begin = thread_time()
                for _ in range(work.repeat):
                    work.run()
                elapsed = thread_time() - begin
            samples[name].append(elapsed / work.repeat / work.per * 1e6)
    return figures_of(work.name, samples)


def figures_of(work: str, samples: dict[str, list[float]]) -> list[Figure]:
    """The first one's figure as it is, and those of the others beyond it.

    Args:
        work: its name.
        samples: microseconds a call, of each variant, a round each.
    """
    base_name, *others = samples
    base = median(samples[base_name])
    figures = [Figure(work, base_name, base, *_quartiles(samples[base_name]), 1.0)]
    for name in others:
        extra = [sample - base for sample in samples[name]]
        middle = median(extra)
        figures.append(Figure(work, name, middle, *_quartiles(extra), (middle + base) / base))
    return figures


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = quantiles(values, n=4)
    return low, high
