"""The backward of one module call in one run of autograd's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.core.phases import BACKWARD_PRE
from hookline.modules.call import ModuleCall
from hookline.modules.gate import apply_gradient_hooks
from hookline.modules.places import lineup_of
from hookline.modules.replace import GradInput
from hookline.torch_base.window import Window

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.core.entry import Lineup
    from hookline.core.thread import Thread
    from hookline.torch_base.outline import Outline


class ModuleWindow(Window):
    """Fires the backward events of a module call."""

    __slots__ = ()
    call: ModuleCall  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def out_outline(self) -> Outline:
        """The structure in which hooks get the gradients of the outputs."""
        outline = self.call.outputs_outline
        assert outline is not None
        return outline

    def current(self) -> Lineup:
        """The hooks that are registered for the call now."""
        return lineup_of(self.call, self.run.thread)

    def arguments(self) -> None:
        """Put the gradients on the call, which is what the callbacks get."""
        call = self.call
        if call.window is not self or self.late:
            call.window = self
            self._show_out()
        outline = call.inputs_outline
        if self.ending and outline is not None:
            grads = [self.inputs.get(place) for place in range(outline.count)]
            call.grad_input = GradInput.of(*outline.fill(grads))
        elif self.ending and self.lineup.needs_grad_input:
            # The hook came after the forward, too late to look at the inputs.
            count, names = call.shape
            call.grad_input = GradInput.of((None,) * count, dict.fromkeys(names))

    def arrived(self, places: list[int], thread: Thread) -> None:
        """Let the value hooks change the gradients that have arrived."""
        gradients = self.current().gradients
        if gradients:
            self.call.phase = BACKWARD_PRE
            try:
                for place in places:
                    gradient = self.out[place]
                    if gradient is not None:
                        self.out[place] = apply_gradient_hooks(
                            gradients, gradient, self.call, thread
                        )
            finally:
                self.call.phase = None
            self._show_out()

    def settle(self) -> None:
        """Drop the gradients: the call outlives the run."""
        call = self.call
        call.window = None
        call.grad_output = call.grad_input = None
        self.out.clear()
        self.inputs = {}

    def replace_out(self, gradients: list[Tensor | None]) -> None:
        """Let other gradients of the outputs flow on."""
        self.out.update(enumerate(gradients))
        self._show_out()

    def replace_inputs(self, gradients: list[Tensor | None]) -> None:
        """Let other gradients of the inputs flow on."""
        self.new_inputs = dict(enumerate(gradients))
        self.inputs = {**self.inputs, **self.new_inputs}
        outline = self.call.inputs_outline
        assert outline is not None
        self.call.grad_input = GradInput.of(*outline.fill(gradients))

    def _show_out(self) -> None:
        outline = self.call.outputs_outline
        if outline is not None:
            self.call.grad_output = outline.fill(list(map(self.out.get, range(outline.count))))


ModuleCall.window_type = ModuleWindow
