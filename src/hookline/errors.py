"""The errors that hookline raises.

All derive from [HooklineError][]; each also derives from the built-in error that Python's
habits suggest, so that `except KeyError` and the like keep working.
"""

from __future__ import annotations


class HooklineError(Exception):
    """The base of every error that hookline raises itself."""


class HookNameError(HooklineError, KeyError):
    """A hook's name is taken already, or nothing is registered under it."""

    # KeyError shows the repr of its argument; these messages are sentences.
    __str__ = Exception.__str__


class HookTypeError(HooklineError, TypeError):
    """Something of the wrong type: a hook, a module, or what a hook returned."""


class HookValueError(HooklineError, ValueError):
    """A value that cannot be used here, such as an unknown kind of hook."""


class SelectionError(HooklineError, ValueError):
    """A pattern selects nothing, or cannot be read; the message offers near names."""


class CaptureError(HooklineError, ValueError):
    """What was captured cannot be given, or cannot be kept, as it was asked for."""


class CaptureKeyError(HooklineError, KeyError):
    """Nothing was captured under a name."""

    __str__ = Exception.__str__  # as HookNameError


class CaptureLimitError(CaptureError, MemoryError):
    """What is captured does not fit into the limit."""


class RunFileError(HooklineError, OSError):
    """The file of a run cannot be read or written."""


class MissingExtraError(HooklineError, ImportError):
    """Something that is not installed with hookline unless asked for; the message says how."""


class CompileError(HooklineError, RuntimeError):
    """A module has hooks that cannot be part of the one graph that was asked for."""


class RecomputeError(HooklineError, RuntimeError):
    """A checkpoint repeats a forward without a change that a hook made when it ran first."""


class HookWarning(UserWarning):
    """Hooks are left out of something, such as a program that is being recorded."""


class NonFiniteError(HooklineError, ArithmeticError):
    """NaN or Inf was found.

    Args:
        message: where, and why.
        row: what was found, as a `NonFiniteRow`.

    Attributes:
        row: what was found.
    """

    def __init__(self, message: str, row: object = None) -> None:
        super().__init__(message)
        self.row = row
