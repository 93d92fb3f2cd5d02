"""The patch hooks for modules and for functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from hookline.core.calls import Inputs
from hookline.core.phases import Phase
from hookline.functions.call import Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.front import Front
from hookline.hooks.leafpath import leaves_of
from hookline.hooks.patching import Patching, gradients_of, inputs_of
from hookline.modules.hook import ModuleHook
from hookline.torch_base.tree import Tree

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall


class ModulePatchHook(Patching, ModuleHook):
    """Changes what flows through modules; [patch][hookline.patch] is the short way.

    Edits are made in the given order, each on what the one before it left. A forward that
    activation checkpointing repeats is changed as it was the first time.

    Args:
        *edits: edits of [hookline.edits][], functions of a tensor, or what to replace by.
        first: change outputs before the forward hooks that others put on the module with torch's
            `register_forward_hook` see them.

    Attributes:
        edits: the edits, in order.

    Raises:
        HookTypeError: something is no edit.

    Example:
        >>> import torch, hookline
        >>> from hookline.edits import scale
        >>> from hookline.module_hooks import PatchHook
        >>> layer = torch.nn.ReLU()
        >>> _ = hookline.add_hook(layer, PatchHook(scale(10.0)))
        >>> layer(torch.ones(2))
        tensor([10., 10.])
        >>> hookline.delete_hook(layer, "PatchHook")
    """

    name = "PatchHook"
    changes = True

    def __init__(self, *edits: object, first: bool = False) -> None:
        self._first = first
        super().__init__(*edits)
        self._front: Final = Front(self._edited_output)

    def deleted(self, target: nn.Module | None) -> None:
        """Leave nothing on the module."""
        self._front.clear_module(target)

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Change the inputs."""
        self._begin(call, call.key)
        new = self._edited(call, "input", lambda: inputs_of(call))
        if new is not None:
            call.replace(Inputs(*Tree.of((call.args, call.kwargs)).rebuild(new)))
        if self._first and self._edits(call, "output"):
            call.will_change(Phase.FORWARD)
            self._front.place(call)

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Change the output."""
        if self._first:
            self._front.clear(call)
        elif self._patches_output:
            new = self._edited_output(call, call.out)
            if new is not call.out:
                call.replace(new)
        self._check_gradients(call, call.out)

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Change the gradients of the outputs."""
        new = self._edited_gradients(call, gradients_of(call.grad_output))
        if new:
            call.replace(Tree.of(call.grad_output).rebuild(new))

    def backward_postprocess(self, call: ModuleCall) -> None:
        """Make sure that all gradients were there to be changed."""
        self._check_late(call, gradients_of(call.grad_output))

    def aborted(self, call: ModuleCall, exception: BaseException) -> None:
        """Leave nothing on the module of a call that raised."""
        self._front.clear(call)


class FunctionPatchHook(Patching, FunctionHook):
    """Changes what flows through functions; with [patch][hookline.patch], by address.

    What [hookline.module_hooks.PatchHook][] says holds here too. Inputs are the input tensors in
    order: `input[0]`, `input[1]`. What a function writes in place is no output that could be
    replaced, unless its result is used.

    Args:
        *edits: edits of [hookline.edits][], functions of a tensor, or what to replace by.

    Attributes:
        edits: the edits, in order.

    Raises:
        HookTypeError: something is no edit.

    Example:
        >>> import torch
        >>> from hookline.edits import add
        >>> from hookline.function_hooks import PatchHook
        >>> with PatchHook(add(1.0)):
        ...     torch.cos(torch.zeros(2))  # the zeros are made by a function too
        tensor([1.5403, 1.5403])
    """

    name = "PatchHook"
    changes = True

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Change the inputs."""
        self._begin(function, (function.root, function.module_path, function.name))
        new = self._edited(function, "input", lambda: leaves_of(in_data, "input", ("input",)))
        if new is not None:
            function.replace(new)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Change the output."""
        if self._patches_output:
            new = self._edited_output(function, function.out)
            if new is not function.out:
                function.replace(new)
        self._check_gradients(function, function.outputs if _many(function) else function.out)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Change the gradients of the outputs."""
        new = self._edited_gradients(function, gradients_of(out_grad))
        if new:
            function.replace(Tree.of(out_grad).rebuild(new))

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Make sure that all gradients were there to be changed."""
        self._check_late(function, gradients_of(out_grad))


def _many(function: FunctionCall) -> bool:
    return len(function.outputs or ()) > 1
