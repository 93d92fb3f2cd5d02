"""A line on the terminal that tells how a run goes on, about twice a second."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from hookline.core.thread import local
from hookline.record.bottom import BottomLine
from hookline.record.pace import turns

if TYPE_CHECKING:
    from rich.text import Text

INTERVAL: Final = 0.5
"""Seconds between two looks, at least."""

_ROOTS: Final = 3
"""Of so many models the passes are told; of those with most of them."""


class Glance(NamedTuple):
    """How a run stands."""

    passes: Mapping[str, int]
    """The passes of each root so far."""
    slowest: tuple[str, float] | None
    """What took most time of its own, and its share of all; None where times are not measured."""
    nonfinite: int | None
    """How often NaN or Inf was found; None where nobody looks."""


class Live:
    """Shows how a run stands in the bottom line of a terminal, until it is stopped.

    It has a thread of its own, and hooks of no kind. A fault in it ends it, and is told by `stop`.

    Args:
        look: tells how the run stands; waits for nothing.
        terminal: the descriptor of a terminal.
        interval: seconds between two looks, at least.
    """

    def __init__(
        self, look: Callable[[], Glance], terminal: int, interval: float = INTERVAL
    ) -> None:
        self._look: Final = look
        self._interval: Final = interval
        self._line: Final = BottomLine(terminal)
        self._began: Final = time.monotonic()
        self._latest: Final[deque[tuple[float, int]]] = deque(maxlen=10)
        self._over: Final = threading.Event()
        self._fault: Exception | None = None
        self._thread: Final = threading.Thread(target=self._run, name="hookline live", daemon=True)

    def start(self) -> None:
        """Show the line from now on."""
        self._thread.start()

    def stop(self) -> Exception | None:
        """Take the line away, and give the terminal back as it was.

        Returns:
            What went wrong meanwhile, if anything did.
        """
        self._over.set()
        self._thread.join()
        self._line.close()
        return self._fault

    def _run(self) -> None:
        local.thread.busy = True  # its torch calls, if any, are ours
        try:
            for _ in turns(self._over, self._interval, first=0.0):
                self._line.show(self._rendered(self._look()))
        except OSError:
            pass  # the terminal is gone
        except Exception as error:  # noqa: BLE001 - whatever our fault is
            self._fault = error

    def _rendered(self, glance: Glance) -> str:
        now, passes = time.monotonic(), sum(glance.passes.values())
        self._latest.append((now, passes))
        since, before = self._latest[0]
        rate = (passes - before) / (now - since) if now > since else 0.0
        # In the last column some terminals go on to the next line.
        return rendered(text_of(glance, rate, now - self._began), max(1, self._line.columns - 1))


def text_of(glance: Glance, rate: float, seconds: float) -> Text:
    """The line.

    Args:
        glance: how the run stands.
        rate: passes a second.
        seconds: how long the run has taken so far.

    Example:
        >>> print(text_of(Glance({"Net": 1200}, ("Net head", 0.25), 0), 12.5, 96.0))
        hookline 1:36 │ Net: 1,200 passes, 12.5/s │ slowest: Net head 25% │ no NaN or Inf
    """
    from rich.text import Text

    minutes, rest = divmod(int(seconds), 60)
    parts = [Text(f"hookline {minutes}:{rest:02}", style="bold")]
    most = sorted(glance.passes.items(), key=lambda each: -each[1])[:_ROOTS]
    counts = ", ".join(f"{root}: {passes:,}" for root, passes in most)
    parts.append(Text(f"{counts} passes, {rate:.3g}/s" if most else "no pass yet"))
    if glance.slowest is not None:
        name, share = glance.slowest
        parts.append(Text(f"slowest: {name} {share:.0%}"))
    if glance.nonfinite:
        parts.append(Text(f"NaN or Inf {glance.nonfinite:,} times", style="bold red"))
    elif glance.nonfinite == 0:
        parts.append(Text("no NaN or Inf", style="green"))
    return Text(" │ ").join(parts)


def rendered(text: Text, columns: int) -> str:
    """Text as a terminal takes it, cut to a width."""
    from rich.console import Console

    text.truncate(columns, overflow="ellipsis")
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, highlight=False)
    console.print(text, end="", no_wrap=True, crop=True)
    return file.getvalue()
