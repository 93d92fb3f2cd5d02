"""A call's backward in one run of autograd's engine: its gradients, its begin and its end."""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxsize
from typing import Any, ClassVar, Final

from torch import Tensor

from hookline.core.calls import Call
from hookline.core.demand import demand
from hookline.core.entry import Entry, Lineup
from hookline.core.events import (
    abort,
    before,
    ends,
    fire,
    not_ended,
    with_displaced,
)
from hookline.core.phases import BACKWARD, BACKWARD_PRE
from hookline.core.thread import Thread
from hookline.torch_base.marks import (
    INPUT,
    INPUT_PASSED,
    INPUT_SEEN,
    OUTPUT,
    OUTPUT_PART,
    OUTPUT_PASSED,
    OUTPUT_SEEN,
    Mark,
)
from hookline.torch_base.readable import copied

_NOWHERE: Final[frozenset[int]] = frozenset()
_NO_GRADIENTS: Final[dict[int, Tensor | None]] = {}  # of every window that has none; stays empty


class Window:
    """The backward of one call in one run.

    Subclasses say which hooks are called and with what.

    Attributes:
        call: the call.
        run: the run.
        close: the place in the thread's order of nodes before which the call's backward ends.
        order: its place among the windows of its thread, outer ones before inner ones.
        out: the gradients of the outputs that have arrived, by place.
        inputs: the gradients of the inputs that have arrived, by place.
        new_inputs: those that hooks put in their place, until they flow on.
        only_input: the mark of the call's only input, on the node before which it ends.
        waiting: how many gradients must arrive before it begins: all that are changed jointly.
        started: whether it has begun.
        ending: whether its end has come.
        late: whether gradients of outputs arrived after it had begun.
        replaced: the places of outputs whose gradients a hook replaced.
        lineup: the hooks at its begin.
        version: that of what was registered then.
        begun: the hook objects whose begin ran.
    """

    # Slots, since Python takes long to read a default that stands on the class.
    __slots__ = (
        "__weakref__",
        "begun",
        "call",
        "close",
        "ending",
        "inputs",
        "late",
        "lineup",
        "new_inputs",
        "only_input",
        "order",
        "out",
        "replaced",
        "run",
        "started",
        "version",
        "waiting",
    )

    order: int
    lineup: Lineup
    version: int
    looks_on: ClassVar[bool] = False
    """Whether it only shows what arrives, before calls begin with it."""

    def __init__(self, call: Call, run: Any) -> None:
        self.call = call
        self.run = run
        self.close = maxsize
        self.only_input: Mark | None = None
        self.waiting = 0
        self.started = self.ending = self.late = False
        self.out: dict[int, Tensor | None] = {}
        self.inputs = self.new_inputs = _NO_GRADIENTS
        self.replaced: frozenset[int] = _NOWHERE
        self.begun: tuple[Entry, ...] = ()

    # What the level of the call has to say.

    def current(self) -> Lineup:
        """The hooks that are registered for the call now."""
        raise NotImplementedError  # each level has its own

    def arguments(self) -> Sequence[Any] | None:
        """What the callbacks get, prepared; None for the call alone."""
        raise NotImplementedError  # each level has its own

    def arrived(self, places: list[int], thread: Thread) -> None:
        """Gradients of outputs have arrived: those at the begin, or one that comes later."""

    def settle(self) -> None:
        """The call's backward is over: drop what it holds."""

    # What every level does alike.

    def collect(self, mark: Mark, gradient: Tensor | None, thread: Thread) -> None:
        """A gradient has arrived."""
        role = mark.role
        if role is INPUT:
            if not self.ending:
                self.inputs = {mark.place: gradient}
        elif role is OUTPUT and not self.started:
            self.out[mark.place] = gradient
        elif role in (OUTPUT, OUTPUT_SEEN, OUTPUT_PART):
            if mark.part is not None and gradient is not None:
                gradient = mark.part.cut(gradient)
            self.waiting -= role is OUTPUT_SEEN
            if not self.started:
                self.out[mark.place] = gradient
            else:
                self.late = True
                # What arrives at a base is all there is, with what flowed on from the view in it.
                replaced = None if role is OUTPUT_PART else self.out.get(mark.place)
                self.out[mark.place] = gradient if replaced is None else replaced
                self.arrived([mark.place], thread)

    def passed_on(self, mark: Mark, gradient: Tensor | None) -> Tensor | None:
        """The gradient that flows on in place of the one that arrived."""
        if mark.role in (OUTPUT, OUTPUT_PASSED):
            gradient = self.out.get(mark.place, gradient)
        elif mark.part is not None:
            new = self.out.get(mark.place)
            if mark.place not in self.replaced or new is None or gradient is None:
                return gradient
            gradient = mark.part.paste(gradient, new)
        elif mark.role is INPUT_PASSED or mark.role is INPUT:
            gradient = self.new_inputs.pop(mark.place, gradient)
        else:
            if mark.role is INPUT_SEEN:  # the node may be an output's too, as of an Identity
                self.inputs = {**self.inputs, mark.place: gradient}
            return gradient
        # A leaf takes it for its `.grad` and adds to it in place; a hook may have kept it too.
        return copied(gradient) if mark.leaf and gradient is not None else gradient

    def begin(self, thread: Thread) -> None:
        """Call the hooks' begins."""
        self.started = True
        self.call.now = thread.clock.now
        self.version = demand.version
        lineup = self.lineup = self.current()
        try:
            if lineup.backward_pre or lineup.backward:
                # Also for an end alone: inputs that autograd saved are gone when nodes have run.
                arguments = self.arguments()
                if lineup.backward_pre:
                    fire(lineup.backward_pre, self.call, arguments, BACKWARD_PRE, thread)
            self.begun = lineup.paired_backward
            if lineup.gradients:
                self.arrived(list(self.out), thread)
        except BaseException as error:
            culprit, thread.culprit = thread.culprit, None
            if culprit in lineup.entries and not self.begun:
                begun = before(lineup.paired_backward, lineup, culprit)
                abort(begun, self.call, error, thread)
            raise

    def end(self, thread: Thread) -> None:
        """Call the hooks' ends: of hook objects just those whose begin ran."""
        self.ending = True
        self.call.now = thread.clock.now
        lineup = self.lineup if self.version == demand.version else self.current()
        pairs = lineup.backward
        if lineup is not self.lineup:
            lineup = with_displaced(lineup, self.begun)
            pairs = ends(lineup.backward, self.begun)
        try:
            if pairs:
                fire(pairs, self.call, self.arguments(), BACKWARD, thread)
        except BaseException as error:
            culprit, thread.culprit = thread.culprit, None
            if culprit in lineup.entries:
                abort(not_ended(self.begun, lineup, culprit), self.call, error, thread)
            raise
        finally:
            self.settle()

    def abort(self, error: BaseException, thread: Thread) -> None:
        """The run raised between begin and end."""
        thread.culprit = None
        self.call.now = thread.clock.now
        abort(self.begun, self.call, error, thread)
        self.settle()
