"""When hooks run, and the kinds of value hooks."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from hookline.errors import HookValueError


class Phase(StrEnum):
    """When the engine fires. Records, errors and listings use these names.

    Example:
        >>> Phase.FORWARD_PRE.value
        'forward_pre'
    """

    FORWARD_PRE = "forward_pre"
    """Before the call; inputs may be replaced."""
    FORWARD = "forward"
    """After the call; the output may be replaced."""
    BACKWARD_PRE = "backward_pre"
    """The gradient of the output has arrived; it may be replaced."""
    BACKWARD = "backward"
    """The call's backward is done, its parameters' gradients included."""

    __hash__ = str.__hash__  # in C; that of enumerations is in Python


FORWARD_PRE, FORWARD, BACKWARD_PRE, BACKWARD = Phase
"""The members as plain names, for the hot paths: it takes long to look one up in an enumeration."""


class HookKind(IntEnum):
    """The three kinds of value hooks that `with_hooks` registers.

    `HookKind(0)` and `HookKind("forward_pre")` both give the member.

    Raises:
        HookValueError: for anything else; the message lists the members.

    Example:
        >>> HookKind("backward") is HookKind.backward
        True
        >>> HookKind.backward.phase
        <Phase.BACKWARD_PRE: 'backward_pre'>
    """

    forward_pre = 0
    forward = 1
    backward = 2

    @property
    def phase(self) -> Phase:
        """The phase in which hooks of this kind run.

        A `backward` value hook gets the gradient of the output: phase `backward_pre`.
        """
        return (Phase.FORWARD_PRE, Phase.FORWARD, Phase.BACKWARD_PRE)[self]

    @classmethod
    def _missing_(cls, value: object) -> HookKind:
        if isinstance(value, str) and value in cls.__members__:
            return cls[value]
        members = ", ".join(f"{kind.name!r} ({kind.value})" for kind in cls)
        msg = f"{value!r} is not a kind of hook; choose one of {members}"
        raise HookValueError(msg)
