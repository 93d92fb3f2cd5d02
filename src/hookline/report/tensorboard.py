"""A run for TensorBoard: its series as scalars, its histograms as histograms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hookline.core.magnitudes import edges
from hookline.core.records import ParameterRow, StatsRow
from hookline.record.rows import SeriesRow
from hookline.record.runs import RunData


def add_to(writer: Any, run: RunData) -> None:
    """Add a run to a writer.

    Tags are `metric/path direction`, such as `norm/encoder.0 forward (train)`; the step is the
    pass with which a bin begins, and of histograms and parameters the last pass.

    Args:
        writer: a `SummaryWriter`, or whatever has its methods `add_scalar` and
            `add_histogram_raw`.
        run: the run, of which the first process is taken.
    """
    for row in run.rows(SeriesRow):
        for place, value in enumerate(row.values):
            if not math.isnan(value):
                writer.add_scalar(_tag(row, row.metric), value, row.first + place * row.width)
    last = run.info.steps
    for row in run.rows(StatsRow):
        if any(row.histogram):
            _add_histogram(writer, row, last)
    for row in run.rows(ParameterRow):
        writer.add_scalar(f"grad_norm/{row.name}", row.grad_norm, last)
        writer.add_scalar(f"update_ratio/{row.name}", row.update_ratio, last)


def _tag(row: SeriesRow | StatsRow, metric: str) -> str:
    place = f"{row.root}.{row.path}" if row.path else row.root
    name = f":{row.name}" if row.name else ""
    leaf = "" if row.leaf in ("", "output", "grad_output", "grad_output[0]") else f" {row.leaf}"
    return f"{metric}/{place}{name}{leaf} {row.direction} ({row.mode})"


def _add_histogram(writer: Any, row: StatsRow, step: int) -> None:
    """Magnitudes, from the first to the last bin that has any."""
    filled = [place for place, count in enumerate(row.histogram) if count]
    bins = slice(filled[0], filled[-1] + 1)
    counts, limits = list(row.histogram[bins]), list(edges()[bins.start + 1 : bins.stop + 1])
    middles = [(a + b) / 2 for a, b in zip(edges()[bins], limits, strict=True)]
    writer.add_histogram_raw(
        _tag(row, "magnitudes"),
        min=edges()[bins.start],
        max=limits[-1],
        num=sum(counts),
        sum=_dot(counts, middles),
        sum_squares=_dot(counts, [m * m for m in middles]),
        bucket_limits=limits,
        bucket_counts=counts,
        global_step=step,
    )


def _dot(counts: Iterable[int], values: Iterable[float]) -> float:
    return sum(count * value for count, value in zip(counts, values, strict=True))
