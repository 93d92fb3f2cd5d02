"""The note that an error gets on its way out: where in the model it happened.

An error keeps its identity: the same exception object comes out, with one note by the innermost
watched call. Raised again later, its note is replaced, so notes never pile up.
"""

from __future__ import annotations

from contextlib import suppress

_PREFIX = "hookline: "

control_flow: set[type[BaseException]] = {GeneratorExit}
"""Exceptions that steer and mean no error; they get no note."""


def annotate(error: BaseException, text: str) -> None:
    """Give an error its one note, replacing an earlier one of ours."""
    if isinstance(error, tuple(control_flow)):
        return
    note = _PREFIX + text
    notes = getattr(error, "__notes__", None) or []
    for place, old in enumerate(notes):
        if isinstance(old, str) and old.startswith(_PREFIX):
            notes[place] = note
            return
    # An exception class may forbid notes; the error itself matters more.
    with suppress(Exception):
        error.add_note(note)


def add_detail(error: BaseException, text: str) -> None:
    """Add what went wrong while cleaning up after `error`; kept beside its note."""
    with suppress(Exception):
        error.add_note(f"while cleaning up: {text}")


def is_annotated(error: BaseException) -> bool:
    """Whether the error carries a note of ours."""
    notes = getattr(error, "__notes__", None) or ()
    return any(isinstance(note, str) and note.startswith(_PREFIX) for note in notes)
