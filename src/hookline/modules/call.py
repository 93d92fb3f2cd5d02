"""One call of a module, as hooks see it."""

from __future__ import annotations

import inspect
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from hookline.core.calls import Call, Inputs, Key
from hookline.core.phases import Phase
from hookline.errors import HookTypeError, HookValueError
from hookline.modules.replace import GradInput, new_gradients, new_inputs, new_output
from hookline.torch_base.promises import is_other, note_change
from hookline.torch_base.tree import describe
from hookline.torch_base.wrappers import type_name

if TYPE_CHECKING:
    from hookline.core.entry import Entry
    from hookline.core.handle import HookHandle
    from hookline.core.registry import HookRegistry
    from hookline.modules.window import ModuleWindow
    from hookline.torch_base.outline import Outline

_is_compiling: Final = torch.compiler.is_dynamo_compiling  # what is traced notes nothing


class ModuleCall(Call):
    """One call of a module: what hooks get, the same object in all four phases.

    Hooks may keep attributes of their own on it. What a phase does not know is None.

    Attributes:
        paths: all names of the module in its root, up to a bound.
        args: the positional arguments (forward phases).
        kwargs: the keyword arguments (forward phases).
        out: the output (phase `forward`).
        grad_output: the gradients of the outputs: a 1-tuple for a tensor output, else the
            output's structure (backward phases). Where outputs come from different autograd
            nodes, some may still be None at `backward_pre`; at `backward` all are there.
        grad_input: the gradients of the inputs, a `GradInput` (phase `backward`, for hooks with
            `needs_grad_input`).
    """

    key: Key[nn.Module]
    called: nn.Module | None = None
    """The module, or a replica of it that `DataParallel` made, while its forward runs."""
    cls: type[nn.Module]
    paths: tuple[str, ...]
    shared_path: str | None = None
    outputs_outline: Outline | None = None
    inputs_outline: Outline | None = None
    window: ModuleWindow | None = None
    wrapped: weakref.ref[HookRegistry] | None = None
    """The hooks of the layer inside a wrapper, if it is that layer's call: only they see it."""
    region: weakref.ref[nn.Module] | None = None
    """The module that a region was made of, if it is the region's call: hooks on it run here."""
    shape: tuple[int, tuple[str, ...]] = (0, ())
    """The number of positional and the names of keyword arguments."""

    @property
    def module(self) -> nn.Module:
        """The module that was called; in the backward, of a replica, that which it was made of.

        Raises:
            ReferenceError: if it is gone.
        """
        module = self.called
        if module is None:
            module = self.found()
        if module is None:
            msg = f"the module of {self.describe()} is gone"
            raise ReferenceError(msg)
        return module

    def found(self) -> nn.Module | None:
        """The module that was called, if it is still there."""
        inner = self.region if self.wrapped is not None else None
        return self.key() if inner is None else inner()

    @property
    def identity(self) -> Key[nn.Module]:
        """The module that was called."""
        return self.key

    @property
    def counted(self) -> Key[nn.Module]:
        """The module that was called."""
        return self.key

    @property
    def keys(self) -> tuple[Key[nn.Module], ...]:
        """What the call may be known by: the module called, and that which a region was made of."""
        return (self.key,) if self.region is None else (self.key, self.region)

    @property
    def path(self) -> str:
        """The dotted name by which the module is being called; `""` is the root."""
        shared = self.shared_path
        return self.paths[0] if shared is None else shared

    @property
    def type(self) -> str:
        """The class name of the module."""
        return type_name(self.cls, self.key())

    @property
    def label(self) -> str:
        """The path; for the root, its name."""
        return self.path or self.root

    @property
    def arguments(self) -> dict[str, Any]:
        """The inputs by the names of `forward`'s parameters, however they were passed."""
        if self.args is None or self.kwargs is None:
            msg = (
                f"the inputs of {self.describe()} are known in the forward phases only; what the "
                "backward needs of them can be kept on the call: call.kept = ..."
            )
            raise HookValueError(msg)
        signature = inspect.signature(self.module.forward)
        return dict(signature.bind(*self.args, **self.kwargs).arguments)

    def replace(self, value: object) -> None:
        """Change what flows: how a hook object gives a value back.

        Args:
            value: at `forward_pre` the inputs (`Inputs`, a tuple of the positional ones, or the
                only one); at `forward` the output; at `backward_pre` the gradients of the
                outputs; at `backward` those of the inputs.

        Raises:
            HookTypeError: if it does not fit what it replaces.
            HookValueError: where nothing can be replaced: outside of an event, or at `backward`
                without `needs_grad_input`.
        """
        hook = f"replace() at {self.phase}"
        if self.phase is Phase.FORWARD_PRE:
            self.put_inputs(value, hook)
        elif self.phase is Phase.FORWARD:
            self.put_output(value, hook)
        elif self.phase is Phase.BACKWARD_PRE:
            self.replace_grad_output(value, hook)
        elif self.phase is Phase.BACKWARD and self.inputs_outline is not None:
            self.replace_grad_input(value, hook)
        else:
            raise HookValueError(self._nothing_to_replace())

    def put_inputs(self, value: object, hook: str) -> None:
        """Put what a hook gave, whose name in words is for errors, in the place of the inputs."""
        args, kwargs = new_inputs(self, value, hook)
        if not _is_compiling() and is_other((args, kwargs), (self.args, self.kwargs)):
            self.will_change(Phase.FORWARD_PRE, hook)
        self.args, self.kwargs = args, kwargs

    def put_output(self, value: object, hook: str) -> None:
        """Put what a hook gave, whose name in words is for errors, in the place of the output."""
        out = new_output(self, value, hook)
        if not _is_compiling() and is_other(out, self.out):
            self.will_change(Phase.FORWARD, hook)
        self.out = out

    def will_change(self, phase: Phase, hook: str = "") -> None:
        """Tell that a hook changes the inputs or, at `forward`, the output."""
        registry = self.wrapped if phase is Phase.FORWARD_PRE else None
        note_change(self, phase, partial(_register_on, self.key, registry), hook)

    def replace_grad_output(self, value: object, hook: str) -> None:
        """Put gradients in the place of those of the outputs."""
        window = self.window
        assert window is not None
        window.replace_out(new_gradients(self, window.out_outline, value, hook, window.out))

    def replace_grad_input(self, value: object, hook: str) -> None:
        """Put gradients in the place of those of the inputs."""
        outline, window = self.inputs_outline, self.window
        assert window is not None
        assert outline is not None
        if isinstance(value, Inputs):
            msg = f"{hook} of {self.describe()}: give gradients as a tuple, not as Inputs"
            raise HookTypeError(msg)
        if isinstance(value, list | tuple):
            kwargs = value.kwargs if isinstance(value, GradInput) else self.grad_input.kwargs
            value = (tuple(value), kwargs)
        window.replace_inputs(new_gradients(self, outline, value, hook, window.inputs))

    def _nothing_to_replace(self) -> str:
        if self.phase is Phase.BACKWARD:
            return (
                f"the gradients of the inputs of {self.describe()} are not being handed on; set "
                "needs_grad_input = True on the hook, which must be there in the forward already"
            )
        return (
            f"nothing of {self.describe()} can be replaced outside of its events; "
            "replace it in a callback of a hook"
        )

    def describe(self) -> str:
        """The call in words, for errors."""
        where = f"{self.path} ({self.type})" if self.path else self.type
        repeated = ", recomputing" if self.recomputing else ""
        return f"{where}, call {self.index}{repeated}"

    def describe_inputs(self) -> str:
        """The shapes of the inputs in words, for errors."""
        named = "".join(f", {name}={describe(v)}" for name, v in (self.kwargs or {}).items())
        return f"{describe(self.args)}{named}"

    def inside(self, registry: HookRegistry, start: int) -> ModuleCall:
        """The call of the layer that this call's module wraps, for the hooks of that layer."""
        call = ModuleCall()
        call.__dict__.update(self.__dict__)
        call.start, call.parent, call.wrapped = start, self, weakref.ref(registry)
        if self.region is not None:
            call.called = call.found()
        return call

    def __repr__(self) -> str:
        phase = f" at {self.phase}" if self.phase else ""
        return f"<ModuleCall {self.describe()} in pass {self.pass_number} of {self.root}{phase}>"


def _register_on(
    key: Key[nn.Module], inner: weakref.ref[HookRegistry] | None, entry: Entry
) -> HookHandle | None:
    """Register behind all hooks of a module; at `forward_pre`, of the layer inside a wrapper."""
    from hookline.modules.places import registry_of  # it stands on what is here

    module = key()
    registry = None if inner is None else inner()
    if registry is None and module is not None:
        registry = registry_of(module)
    return None if registry is None else registry.add(entry)
