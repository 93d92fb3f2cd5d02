"""Recording a run from Python, and reading what runs kept."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from hookline.errors import HookTypeError, HookValueError
from hookline.record.runs import Rank, RunData, load
from hookline.report.extras import needs_extra
from hookline.report.formats import check_run_file, is_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.nn import Module

    from hookline.record.measures import Level
    from hookline.record.writer import Writer
    from hookline.torch_base.select import Where


class Run(RunData):
    """What a run kept; `load_run` and `record` give it.

    Example:
        >>> import torch, hookline
        >>> with hookline.record() as run:
        ...     _ = torch.nn.Linear(2, 2)(torch.zeros(1, 2))
        >>> [row["calls"] for row in run.to_rows()]
        [1]
    """

    def to_rows(self, table: str = "times") -> list[dict[str, Any]]:
        """A table as plain data, for `pandas.DataFrame` and the like.

        Args:
            table: its name: `times`, `memory`, `flops`, `uncounted`, `stats`, `parameters`,
                `nonfinite`, `silent`, `modules`, `passes`, `series`, `events`, `faults` or `run`.

        Raises:
            HookValueError: there is no such table.
        """
        from hookline.record.schema import TABLES
        from hookline.report.files import to_dict

        if table not in TABLES:
            msg = f"{table!r} is no table; choose one of {', '.join(TABLES)}"
            raise HookValueError(msg)
        return [to_dict(row) for row in self.rows(TABLES[table])]

    def plot(self, kind: str = "time") -> Figure:
        """Draw a plot with matplotlib; see [hookline.report.plots.plot][].

        Args:
            kind: `time`, `activations`, `gradients`, `updates` or `passes`.

        Raises:
            HookValueError: there is no such plot, or the run has nothing for it.
            MissingExtraError: matplotlib is not installed.
        """
        from hookline.report.plots import plot

        return plot(self, kind)

    def export(self, path: str | Path) -> None:
        """Write it to a file of another format, by the ending of the file's name.

        Args:
            path: `report.html`, `run.json`, `run.csv`, `run.trace.json`, `time.png`, ...

        Raises:
            HookValueError: there is no such format.
            OSError: the file can't be written.
        """
        from hookline.report.formats import export

        export(self, path)

    def to_tensorboard(self, writer: Any) -> None:
        """Add it to TensorBoard's files.

        Args:
            writer: a folder, or a `SummaryWriter` or whatever has its methods `add_scalar` and
                `add_histogram_raw`.

        Raises:
            MissingExtraError: a folder is given, and tensorboard is not installed.
        """
        from hookline.report.tensorboard import add_to

        if not isinstance(writer, str | Path):
            add_to(writer, self)
            return
        with _summary_writer(writer) as opened:
            add_to(opened, self)

    def _repr_html_(self) -> str:
        """The report, in a frame of its own."""
        from html import escape

        from hookline.report.html import render

        style = "width:100%;height:640px;border:1px solid #8888"
        return f'<iframe style="{style}" srcdoc="{escape(render(self))}"></iframe>'


def load_run(path: str | Path) -> Run:
    """Read what a run kept, of all its processes.

    Args:
        path: its file, as it was given to `hookline run -o` or `record`.

    Raises:
        RunFileError: there is no such file, it is no run, or it is of a newer version.

    Example:
        >>> import os, tempfile, torch, hookline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "run.hookline")
        ...     with hookline.record(path):
        ...         _ = torch.nn.ReLU()(torch.ones(2))
        ...     run = hookline.load_run(path)
        >>> [row["path"] for row in run.to_rows("modules")]
        ['']
    """
    found = load(path)
    return Run(found.ranks, found.missing)


def record(  # noqa: PLR0913 - one keyword for each thing to measure
    path: str | Path | None = None,
    *models: Module,
    time: bool = True,
    nonfinite: bool = True,
    stats: bool = False,
    memory: bool = False,
    flops: bool = False,
    print: bool = False,  # noqa: A002 - as the option of `hookline run`
    level: Level = "module",
    where: Where = None,
    every: int = 100,
) -> Recording:
    """Measure what models do while a `with` block runs, in all threads, and keep it.

    Args:
        path: the file to keep it in, brought up to date about once a second, so that it can be
            read at any moment and after any end; None to keep it in memory only.
        *models: measure only these and what is in them, also where they are called inside others;
            whatever runs by default.
        time: measure forward and backward time.
        nonfinite: find where NaN and Inf come from.
        stats: measure activations, gradients and parameters.
        memory: count bytes of outputs, and those that are kept for the backward.
        flops: count FLOPs.
        print: print a line for each call, on stderr.
        level: `"module"`, `"function"` or `"both"`.
        where: a pattern or several of what to measure, as [select][hookline.select] takes them.
        every: of which passes statistics are made: each so-manyth.

    Returns:
        A context manager that gives itself; what was measured so far can be read from it at any
        time, as from a [Run][hookline.Run].

    Raises:
        HookTypeError: the first argument is no file but a model.
        HookValueError: the level is unknown, there is nothing to measure, or the file's name is
            that of an export, such as `report.html`.
        SelectionError: a pattern matches nothing in any of the models.
        RunFileError: the file can't be written, holds something else, or is in use.

    Example:
        >>> import torch, hookline
        >>> from hookline.core.records import TimeRow
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> with hookline.record(None, model) as run:
        ...     _ = model(torch.zeros(2, 4))
        >>> [(row.path, row.calls) for row in run.rows(TimeRow)]
        [('0', 1), ('1', 1), ('', 1)]
    """
    from hookline.record.measures import Measures
    from hookline.record.run import Recorder
    from hookline.record.writer import Writer
    from hookline.torch_base.select import patterns_of

    measures = Measures(
        time=time,
        nonfinite=nonfinite,
        stats=stats,
        memory=memory,
        flops=flops,
        print=print,
        level=level,
        every=every,
    )
    patterns = patterns_of(where)
    _check_path(path)
    _check(models, patterns)
    return Recording(Writer(Recorder(measures, patterns, models), path, sys.argv, _say))


class Recording(Run):
    """A run that is being measured, or was: a context manager, for one use; `record` gives it."""

    def __init__(self, writer: Writer) -> None:
        self._writer: Final = writer
        self._kept: Rank | None = None
        self._was_entered = False

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """What was measured in this process, up to now."""
        return (self._kept or self._writer.now(),)

    def __enter__(self) -> Self:
        if self._was_entered:
            msg = "a recording can be entered once; call record(...) again"
            raise HookValueError(msg)
        self._was_entered = True
        self._writer.start()
        # As in a notebook, where nothing leaves the block when the kernel ends.
        atexit.register(self._writer.close)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        atexit.unregister(self._writer.close)
        self._kept = self._writer.close(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.ranks,)  # elsewhere nothing is being measured

    # The default is there still when the interpreter shuts down and modules are emptied.
    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self._was_entered and self._writer.abandon():
            atexit.unregister(self._writer.close)
            warn("a recording was collected while open; its hooks are removed", ResourceWarning)


def _check_path(path: object) -> None:
    """Refuse what is no file.

    Raises:
        HookTypeError: it is not even a name.
        HookValueError: it is that of an export.
    """
    if not (path is None or isinstance(path, str | Path)):
        msg = f"record takes the file first, or None, then models: not {type(path).__name__}"
        raise HookTypeError(msg)
    if path is not None and is_known(path):
        msg = f"{path} would be an export; record(None, …) and run.export({str(path)!r}) write it"
        raise HookValueError(msg)
    if path is not None:
        check_run_file(path)


def _check(models: Sequence[Module], patterns: Iterable[Any]) -> None:
    """Refuse what is no model, and patterns that match nothing in any, while that can be known."""
    from torch import nn

    from hookline.errors import SelectionError
    from hookline.torch_base.select import select

    for model in models:
        if not isinstance(model, nn.Module):
            msg = (
                f"record takes models after the file, not {type(model).__name__}; what to measure "
                "is said by keywords: record(path, model, stats=True)"
            )
            raise HookTypeError(msg)
    for pattern in patterns if models else ():
        errors: list[SelectionError] = []
        for model in models:
            try:
                select(model, pattern)
            except SelectionError as error:
                errors.append(error)
        if len(errors) == len(models):
            raise errors[0]


def _summary_writer(folder: str | Path) -> Any:
    with needs_extra("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(str(folder))


def _say(text: str) -> None:
    sys.stderr.write(f"hookline: {text}\n")
