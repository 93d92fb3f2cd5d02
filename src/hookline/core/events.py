"""The call loop: how the hooks of one event are called, and ended when something raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.core.demand import demand
from hookline.core.entry import Lineup
from hookline.core.notes import add_detail, annotate, is_annotated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hookline.core.entry import Entry
    from hookline.core.phases import Phase
    from hookline.core.thread import Thread


def fire(
    pairs: tuple[tuple[Entry, Any], ...],
    call: Any,
    arguments: Sequence[Any] | None,
    phase: Phase,
    thread: Thread,
) -> None:
    """Call the hooks of one event in order.

    The one loop for both levels and all four phases. A hook that was removed since the tuple was
    prepared is skipped. An error stops the loop and leaves with its note; `thread.culprit` then
    tells whose it was.

    Args:
        pairs: the hooks and their callbacks.
        call: the call.
        arguments: what the callbacks get; None for the call alone.
        phase: the event.
        thread: the thread's state.
    """
    call.phase = phase
    entry, notes = None, thread.notes
    try:
        for entry, callback in pairs:
            if entry.alive:
                entry.fired = True
                thread.busy = entry if entry.paired else False
                if demand.modes and entry.paired:
                    demand.apart(callback, *([call] if arguments is None else arguments))
                elif arguments is None:
                    callback(call)
                else:
                    callback(*arguments)
    except BaseException as error:
        if entry is not None:  # Ctrl-C may come before the first
            blame(error, entry, call, thread, notes)
        raise
    finally:
        thread.busy = False
        call.phase = None


def blame(error: BaseException, entry: Entry, call: Any, thread: Thread, notes: int) -> None:
    """Note which hook raised, and remember it until the call is ended."""
    thread.culprit = entry
    where = f"raised by {call.phase} hook {entry.name} of {call.describe()}"
    note_once(error, where, thread, notes)


def note_once(error: BaseException, text: str, thread: Thread, notes: int) -> None:
    """Give the error its note, unless something inside did so already.

    Args:
        error: the error.
        text: where it was raised.
        thread: the thread's state.
        notes: what `thread.notes` was when that began which raised.
    """
    inside = thread.notes > notes and thread.noted == id(error) and is_annotated(error)
    if not inside:
        annotate(error, text)
    working_for: Thread | None = thread
    while working_for is not None:
        working_for.notes += 1
        working_for.noted = id(error)
        working_for = working_for.works_for


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


def fail(
    error: BaseException,
    lineup: Lineup,
    begun: tuple[Entry, ...] | None,
    call: Any,
    thread: Thread,
    notes: int,
) -> None:
    """End the forward of a call that raised: a note, and one end for each hook that had its begin.

    Args:
        error: what was raised.
        lineup: the hooks of the event that ran.
        begun: the hook objects whose begin ran; None if the begins were not all through.
        call: the call.
        thread: the thread's state.
        notes: what `thread.notes` was when the call began.
    """
    culprit, thread.culprit = thread.culprit, None
    call.now = thread.clock.now
    if begun is None:
        pending = before(lineup.paired, lineup, culprit) if culprit is not None else ()
    else:
        pending = not_ended(begun, lineup, culprit) if culprit is not None else begun
    where = f"raised in {call.describe()}, inputs {call.describe_inputs()}"
    note_once(error, where, thread, notes)
    abort(pending, call, error, thread)
    call.out = None
    at_end = begun is not None and culprit is not None
    _call_always(lineup, culprit if at_end else None, call, error)


def _call_always(lineup: Lineup, culprit: Entry | None, call: Any, error: BaseException) -> None:
    """Run the hooks that run also where the call raised, but those whose turn was before."""
    for entry, callback in lineup.always:
        ran = culprit is not None and (lineup.entries.index(entry) <= lineup.entries.index(culprit))
        if entry.alive and not ran:
            try:
                callback(call)
            except BaseException as another:  # noqa: BLE001 - the first error wins
                add_detail(error, f"{entry.name} raised {another!r}")
            call.out = None  # what it returned goes nowhere


def before(paired: tuple[Entry, ...], lineup: Lineup, culprit: Entry) -> tuple[Entry, ...]:
    """The hook objects whose begin ran: those in front of the one whose begin raised."""
    front = set(lineup.entries[: lineup.entries.index(culprit)])
    return tuple(entry for entry in paired if entry in front)


def not_ended(begun: tuple[Entry, ...], lineup: Lineup, culprit: Entry) -> tuple[Entry, ...]:
    """The begun hook objects behind the one whose end raised."""
    place = lineup.entries.index(culprit)
    behind = set(lineup.entries[place + 1 :])
    return tuple(entry for entry in begun if entry in behind)


def with_displaced(lineup: Lineup, begun: tuple[Entry, ...]) -> Lineup:
    """The lineup of an end, with begun hooks whose place another of their name took meanwhile."""
    displaced = {e.key: e for e in begun if e.key and e.alive and e not in lineup.entries}
    if not displaced:
        return lineup
    entries: list[Entry] = []
    for entry in lineup.entries:
        if entry.key in displaced:
            entries.append(displaced.pop(entry.key))
        entries.append(entry)
    return Lineup(entries)


def ends(
    pairs: tuple[tuple[Entry, Any], ...], begun: tuple[Entry, ...]
) -> tuple[tuple[Entry, Any], ...]:
    """The end callbacks that are due when the lineup changed since the begin."""
    return tuple(pair for pair in pairs if not pair[0].paired or pair[0] in begun)
