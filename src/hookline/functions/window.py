"""The backward of one function call in one run of autograd's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.core.entry import Lineup
from hookline.functions.call import FunctionCall
from hookline.functions.places import lineup_of
from hookline.torch_base.gradients import check_gradient
from hookline.torch_base.window import Window

if TYPE_CHECKING:
    from torch import Tensor


class FunctionWindow(Window):
    """Fires the backward events of a function call."""

    __slots__ = ()
    call: FunctionCall  # pyright: ignore[reportIncompatibleVariableOverride]

    def current(self) -> Lineup:
        """The thread's function hooks now, then the function's own."""
        return lineup_of(self.run.thread, self.call.node)

    def arguments(self) -> list[Any]:
        """What the callbacks get: the call, its inputs, the gradients of its outputs."""
        call = self.call
        arguments = call.arguments
        if arguments is None:
            call.window = self
            arguments = call.arguments = [call, call.in_data, self._out_grad()]
        elif self.late:
            arguments[2] = self._out_grad()
        return arguments

    def _out_grad(self) -> tuple[Tensor | None, ...]:
        return tuple(map(self.out.get, range(self.call.count)))

    def settle(self) -> None:
        """Drop the gradients: the call outlives the run."""
        self.call.window = self.call.arguments = None
        self.out.clear()

    def replace_out(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Let other gradients of the outputs flow on.

        Raises:
            HookValueError: if one has another shape, dtype or device.
        """
        for place, new in enumerate(gradients):
            old = self.out.get(place)
            if new is not None and old is not None:
                check_gradient(new, old, f"replace() at backward_pre of {self.call.describe()}")
            if new is not old:
                self.replaced |= {place}
        self.out.update(enumerate(gradients))
        if self.call.arguments is not None:
            self.call.arguments[2] = self._out_grad()


FunctionCall.window_type = FunctionWindow
