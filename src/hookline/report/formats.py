"""The formats in which a run can be exported, by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

from hookline.core.patterns import did_you_mean
from hookline.errors import HookValueError
from hookline.record.runs import RunData
from hookline.report.extras import check_extra

FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    ".html": ("html", "write_html"),
    ".json": ("files", "write_json"),
    ".csv": ("files", "write_csv"),
    ".trace.json": ("trace", "write_trace"),
    ".png": ("plots", "write_plot"),
    ".svg": ("plots", "write_plot"),
    ".pdf": ("plots", "write_plot"),
}
"""For each ending, the module in this package and the function in it that writes such a file."""

_CLOSE: Final = 0.7
"""How much an ending must be like a known one to be taken for a slip."""


def is_known(path: str | Path) -> bool:
    """Whether a file of this name would be an export, not a run file.

    Example:
        >>> is_known("report.HTML"), is_known("run.hookline")
        (True, False)
    """
    return _ending(path) is not None


def check_run_file(path: str | Path) -> None:
    """Refuse a run file whose name looks as if an export was meant: `report.htm`, `run.jsn`.

    Raises:
        HookValueError: it does; the message lists the formats that there are.

    Example:
        >>> check_run_file("run.hookline")
        >>> try:
        ...     check_run_file("report.htm")
        ... except HookValueError as error:
        ...     print(str(error)[:62])
        report.htm: there is no format .htm; did you mean '.html'? For
    """
    meant = _meant(path)
    if meant and not is_known(path):
        msg = (
            f"{path}: there is no format {Path(path).suffix.lower()}{did_you_mean(meant)} "
            f"Formats are {', '.join(FORMATS)}; a file to keep the run in is best called "
            f"{Path(path).stem}.hookline"
        )
        raise HookValueError(msg)


def check_can_write(path: str | Path) -> None:
    """Refuse an export that needs what is not installed; other names are fine.

    Raises:
        MissingExtraError: it does; the message says how to install it.
    """
    if FORMATS.get(_ending(path) or "", ("", ""))[0] == "plots":
        check_extra("plot")


def export(run: RunData, path: str | Path) -> None:
    """Write a run to a file, in the format that the file's name ends with.

    Args:
        run: the run.
        path: the file; replaced if it is there.

    Raises:
        HookValueError: there is no such format; the message lists those that there are.
        MissingExtraError: the format needs what is not installed.
        OSError: the file can't be written.
    """
    ending = _ending(path)
    if ending is None:
        meant = _meant(path)
        choose = f"{did_you_mean(meant)} Choose" if meant else "; choose"
        msg = f"{path} has no known ending{choose} one of {', '.join(FORMATS)}"
        raise HookValueError(msg)
    module, function = FORMATS[ending]
    write: Callable[[RunData, Path], None] = getattr(
        import_module(f"hookline.report.{module}"), function
    )
    write(run, Path(path))


def _ending(path: str | Path) -> str | None:
    name = Path(path).name.lower()
    # The longest that fits: a trace is JSON too.
    return max((e for e in FORMATS if name.endswith(e)), key=len, default=None)


def _meant(path: str | Path) -> list[str]:
    """The ending that may have been meant, if one is near."""
    ending = Path(path).suffix.lower()
    return get_close_matches(ending, FORMATS, 1, _CLOSE) if ending else []
