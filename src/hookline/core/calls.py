"""Which call an event belongs to."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from hookline.core.phases import Phase
from hookline.errors import HookTypeError

Mode: TypeAlias = Literal["train", "eval", "no_grad"]


class Inputs:
    """The complete inputs of a call: what a pre-hook gets and returns when they are several.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.

    Example:
        >>> Inputs((1, 2), {"scale": 3})
        Inputs((1, 2), {'scale': 3})
    """

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        if type(args) is not tuple or not (kwargs is None or isinstance(kwargs, dict)):
            msg = (
                "Inputs takes a tuple of positional arguments and a dict of keyword arguments, "
                f"not {type(args).__name__} and {type(kwargs).__name__}: "
                "Inputs((x,), {'mask': mask})"
            )
            raise HookTypeError(msg)
        self.args = args
        self.kwargs: dict[str, Any] = {} if kwargs is None else kwargs

    def __repr__(self) -> str:
        return f"Inputs({self.args!r}, {self.kwargs!r})"


@runtime_checkable
class Root(Protocol):
    """What a pass knows of its root."""

    name: str
    """The class name, with `#2` and so on where several roots share it."""
    seats: dict[Any, tuple[str, ...]]
    """The paths of each module in it."""


class NamedRoot:
    """A root of which only the name is left, as in a file or a copy; another may share it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seats: dict[Any, tuple[str, ...]] = {}


class Pass:
    """One outermost forward of a root, and the backwards of what it made.

    Attributes:
        root: the root module's record.
        number: how many passes of this root came before.
        step: the optimizer steps taken before it began.
        mode: `train`, `eval`, or `no_grad` (a forward in training mode without gradients).
        starts: for each key, the autograd sequence numbers at which its calls began; the place
            in the list is the call index.
        functions: the same for each function that a module calls, by module path and name.
        totals: how many calls there were of each function that no module calls, by name.
        changed: the indexes of the calls that hooks changed, by `Call.counted` and the phase.
        opener: the key whose call began the pass.
        backwards: how often a backward run had begun or ended in the thread before.
    """

    __slots__ = (
        "backwards",
        "changed",
        "functions",
        "mode",
        "number",
        "opener",
        "root",
        "starts",
        "step",
        "totals",
    )

    def __init__(
        self, root: Root, number: int, step: int, mode: Mode, opener: object, backwards: int
    ) -> None:
        self.root = root
        self.number = number
        self.step = step
        self.mode: Mode = mode
        self.opener = opener
        self.backwards = backwards
        self.starts: dict[object, list[int]] = {}
        self.functions: dict[object, list[int]] = {}
        self.totals: dict[str, int] = {}
        self.changed: dict[object, set[int]] = {}

    def calls_of(self, counted: object) -> int:
        """How many calls there were so far of what is counted by a key; see `Call.counted`."""
        starts = self.starts.get(counted) or self.functions.get(counted)
        return len(starts) if starts else self.totals.get(counted, 0)  # type: ignore[call-overload]

    def __reduce__(self) -> tuple[Any, ...]:
        # Elsewhere there are none of its calls; what is kept of them still says which pass it was.
        return Pass, (self.root, self.number, self.step, self.mode, None, 0)


class InPass:
    """What belongs to a pass, and is told by it.

    Attributes:
        running: the pass.
    """

    __slots__ = ()
    running: Pass

    @property
    def root(self) -> str:
        """The name of the root that contains the module."""
        return self.running.root.name

    @property
    def pass_number(self) -> int:
        """The number of the pass, counted for each root."""
        return self.running.number

    @property
    def step(self) -> int:
        """The optimizer steps taken before the pass began."""
        return self.running.step

    @property
    def mode(self) -> Mode:
        """`train`, `eval`, or `no_grad` (in training mode without gradients)."""
        return self.running.mode


class Call(InPass):
    """One call of a module or function: the same object in all four phases.

    A hook may keep attributes of its own on it. It holds no tensor beyond the event that needs
    it, and its module only weakly.

    Attributes:
        index: 0 for the first call in the pass, 1 for the next, and so on.
        recomputing: whether activation checkpointing repeats an earlier call; the index is that
            of the call it repeats, if that one was seen.
        repeats: where autograd's numbering stood when the call that it repeats began; None if it
            repeats none, or one that was not seen.
        parent: the watched call directly inside of which it runs; None where a module that nobody
            watches is between.
        phase: the phase of the event that runs, else None.
        thread: the number of the thread that it runs in.
        now: the thread's time in nanoseconds at this event, without what hooks took (for hooks
            with `timed`).
        changed: where hooks changed it: its inputs at `forward_pre`, its output at `forward`.
        start, stop: the autograd nodes that the call made have sequence numbers in this range.
    """

    window_type: ClassVar[Any]
    """What stands for such a call's backward in a run of autograd's engine."""

    index: int = 0
    recomputing: bool = False
    repeats: int | None = None
    parent: Call | None = None
    phase: Phase | None = None
    start: int = 0
    stop: int = 0
    thread: int = 0
    changed: tuple[Phase, ...] = ()
    args: Any = None
    kwargs: Any = None
    out: Any = None
    grad_input: Any = None
    grad_output: Any = None
    now: int = 0

    @property
    def identity(self) -> object:
        """What all calls of one module have in common, or of one function in it."""
        raise NotImplementedError  # each level has its own

    @property
    def counted(self) -> object:
        """The key by which such calls are counted in their pass."""
        raise NotImplementedError  # each level has its own

    def describe(self) -> str:
        """The call in words, for errors."""
        raise NotImplementedError  # each level has its own words


Key = weakref.ref
"""A module is known by a weak reference to it: equal for the same module, and it keeps nothing."""
