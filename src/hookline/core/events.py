"""The call loop: how the hooks of one event are called, and ended when something raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.core.notes import add_detail, annotate, is_annotated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hookline.core.entry import Entry, Lineup
    from hookline.core.phases import Phase
    from hookline.core.thread import Thread


def fire(
    pairs: tuple[tuple[Entry, Any], ...],
    call: Any,
    arguments: tuple[Any, ...],
    phase: Phase,
    thread: Thread,
) -> None:
    """Call the hooks of one event in order.

    The one loop for both levels and all four phases. A hook that was removed since the tuple was
    prepared is skipped. An error stops the loop and leaves with its note; `thread.culprit` then
    tells whose it was.
    """
    call.phase = phase
    entry = None
    try:
        for entry, callback in pairs:
            if entry.alive:
                if entry.paired:
                    thread.busy = True
                    try:
                        callback(*arguments)
                    finally:
                        thread.busy = False
                else:
                    callback(*arguments)
    except BaseException as error:
        assert entry is not None
        blame(error, entry, call, thread)
        raise
    finally:
        call.phase = None


def blame(error: BaseException, entry: Entry, call: Any, thread: Thread) -> None:
    """Note which hook raised, and remember it until the call is ended."""
    thread.culprit = entry
    note_once(error, f"raised by {call.phase} hook {entry.name} of {call.describe()}", thread)


def note_once(error: BaseException, text: str, thread: Thread) -> None:
    """Give the error its note, unless something inside the running call did so already."""
    inside = (len(thread.stack) + 1, id(error))
    if thread.noted != inside or not is_annotated(error):
        annotate(error, text)
    thread.noted = inside


def abort(entries: Iterable[Entry], call: Any, error: BaseException, thread: Thread) -> None:
    """Tell hooks whose begin ran that the call raised; what they raise becomes a detail."""
    for entry in entries:
        if entry.alive and entry.aborted is not None:
            was_busy, thread.busy = thread.busy, True
            try:
                entry.aborted(call, error)
            except BaseException as another:  # noqa: BLE001 - the first error wins
                add_detail(error, f"{entry.name} raised {another!r}")
            finally:
                thread.busy = was_busy


def begun_before(lineup: Lineup, culprit: Entry | None) -> tuple[Entry, ...]:
    """The hook objects whose begin ran: all, or those in front of the one whose begin raised."""
    if culprit is None:
        return lineup.paired
    place = lineup.entries.index(culprit)
    return tuple(entry for entry in lineup.entries[:place] if entry.paired)


def not_ended(begun: tuple[Entry, ...], lineup: Lineup, culprit: Entry) -> tuple[Entry, ...]:
    """The begun hook objects behind the one whose end raised."""
    place = lineup.entries.index(culprit)
    behind = set(lineup.entries[place + 1 :])
    return tuple(entry for entry in begun if entry in behind)


def ends(
    pairs: tuple[tuple[Entry, Any], ...], begun: tuple[Entry, ...]
) -> tuple[tuple[Entry, Any], ...]:
    """The end callbacks that are due when the lineup changed since the begin."""
    return tuple(pair for pair in pairs if not pair[0].paired or pair[0] in begun)
