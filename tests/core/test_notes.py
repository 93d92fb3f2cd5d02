"""The note that an error gets on its way out."""

import pytest

from hookline.core import notes
from hookline.core.notes import add_detail, annotate, is_annotated


class Slotted(Exception):  # noqa: N818
    """An error that lets nobody add a note."""

    def add_note(self, note):
        raise TypeError(note)


def test_r3_an_error_gets_one_note():
    """The note says what hookline knows; the error is the same in all else."""
    error = ValueError("wrong", 3)
    assert not is_annotated(error)
    annotate(error, "raised in layer, call 0")

    assert error.args == ("wrong", 3)
    assert error.__notes__ == ["hookline: raised in layer, call 0"]
    assert is_annotated(error)


def test_r3_the_note_is_replaced_when_the_error_is_raised_again():
    """One object raised a thousand times has one note: the latest."""
    error = ValueError()
    for number in range(1_000):
        annotate(error, f"call {number}")

    assert error.__notes__ == ["hookline: call 999"]


def test_r3_other_notes_stay():
    """Notes of others keep their place and text."""
    error = ValueError()
    error.add_note("before")
    annotate(error, "first")
    error.add_note("after")
    annotate(error, "second")

    assert error.__notes__ == ["before", "hookline: second", "after"]


def test_r3_notes_that_are_no_texts():
    """Somebody may have put anything into the list of notes."""
    error = ValueError()
    error.__notes__ = [7, None]
    assert not is_annotated(error)
    annotate(error, "here")

    assert error.__notes__ == [7, None, "hookline: here"]
    assert is_annotated(error)


def test_r3_control_flow_gets_no_note():
    """What steers and means no error comes out as it was, and so do its subclasses."""

    class Steering(GeneratorExit):
        pass

    for error in (GeneratorExit(), Steering()):
        annotate(error, "here")
        assert not hasattr(error, "__notes__")


def test_r3_torch_checkpoints_steer_too():
    """The exception by which a checkpoint ends its recomputation early is control flow."""
    from torch.utils.checkpoint import _StopRecomputationError

    import hookline.modules.engine  # noqa: F401 - it says which of torch's exceptions steer

    assert _StopRecomputationError in notes.control_flow


@pytest.mark.parametrize("change", [annotate, add_detail])
def test_r3_an_error_that_forbids_notes_comes_out_all_the_same(change):
    """The error matters more than its note."""
    error = Slotted()
    change(error, "here")

    assert not is_annotated(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), ValueError()])
def test_r3_any_other_exception_gets_a_note(error):
    """Interrupts and exits are told where they happened too."""
    annotate(error, "here")

    assert error.__notes__ == ["hookline: here"]


def test_c9_errors_during_clean_up_are_details():
    """They are kept beside the note, in order, and are no note of their own."""
    error = ValueError()
    add_detail(error, "hook a raised KeyError()")
    assert not is_annotated(error)
    annotate(error, "here")
    add_detail(error, "hook b raised OSError()")

    assert error.__notes__ == [
        "while cleaning up: hook a raised KeyError()",
        "hookline: here",
        "while cleaning up: hook b raised OSError()",
    ]
