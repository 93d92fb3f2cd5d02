"""One call of a function, as hooks see it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from torch import Tensor

from hookline.core.calls import Call, Inputs
from hookline.core.phases import Phase
from hookline.errors import HookTypeError, HookValueError
from hookline.torch_base.promises import is_other, note_change
from hookline.torch_base.tree import Tree, describe, tensors

if TYPE_CHECKING:
    from hookline.core.entry import Entry
    from hookline.core.handle import HookHandle
    from hookline.core.registry import HookRegistry
    from hookline.functions.node import FunctionNode
    from hookline.functions.window import FunctionWindow


Tensors: TypeAlias = tuple[Tensor | None, ...]
"""The inputs of a function or the gradients of its outputs; None for what is not there."""


class FunctionCall(Call):
    """One call of a function: what hooks get, the same object in all four phases.

    Hooks may keep attributes of their own on it. It holds no tensor beyond the event that needs
    it, unless a hook asked for that with `retain_inputs`.

    Attributes:
        name: the readable name of the function, such as `linear`, `add` or `getitem`.
        type: what it is called in tables of types: the name.
        outputs: the tensors it returned, or wrote into (during `forward_postprocess` only).
        node: the `FunctionNode` through which it was called, if it was.
    """

    name: str
    own_path: str | None = None
    """The path of the module that called it, where that is not `parent`."""
    outputs: tuple[Tensor, ...] | None = None
    node: FunctionNode[..., Any] | None = None
    count: int = 0
    """The number of outputs."""
    hidden: int = 0
    """Up to this number, nodes after the call were made by what a hook put in its place."""
    window: FunctionWindow | None = None
    arguments: list[Any] | None = None
    """What the callbacks of the event that runs get; later hooks see what earlier ones replaced."""
    inputs: tuple[Callable[[], Tensor | None], ...] = ()
    """What gives the input tensors, as long as they are there."""

    @property
    def type(self) -> str:
        """What kind of call it is: its name."""
        return self.name

    @property
    def identity(self) -> tuple[object, str]:
        """The module that called the function, and its name."""
        caller: Any = self.parent
        return None if caller is None else caller.key, self.name

    @property
    def counted(self) -> tuple[str | None, str] | str:
        """The module's path and the name; outside of modules, the name."""
        path = self.module_path
        return self.name if path is None else (path, self.name)

    @property
    def module_path(self) -> str | None:
        """The path of the module whose forward called it; None outside any."""
        return self.own_path if self.parent is None else getattr(self.parent, "path", None)

    @property
    def label(self) -> str:
        """Its address: `layers.3.self_attn:softmax[0]`; without a module, `softmax[0]`."""
        call = f"{self.name}[{self.index}]"
        return call if self.module_path is None else f"{self.module_path}:{call}"

    @property
    def result(self) -> Tensor | tuple[Tensor, ...]:
        """The tensor that it returned or wrote into, or a tuple of several; as `outputs`."""
        outputs = self.outputs or ()
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def in_data(self) -> Tensors:
        """The input tensors that are still there, in order; None for those that are not."""
        return tuple(map(operator.call, self.inputs))

    def replace(self, value: object) -> None:
        """Change what flows.

        Args:
            value: at `forward_pre` the inputs: `Inputs`, or as many tensors as `in_data` has; at
                `forward` the output; at `backward_pre` the gradients of the outputs, as many as
                `out_grad` has. A bare tensor stands for the only one.

        Raises:
            HookTypeError: if it does not fit what it replaces.
            HookValueError: where nothing can be replaced, or if a gradient has another shape,
                dtype or device.
        """
        if self.phase is Phase.FORWARD_PRE:
            before = self.args, self.kwargs
            self._replace_inputs(value)
            self._note_if(is_other((self.args, self.kwargs), before), self.phase)
        elif self.phase is Phase.FORWARD:
            if self.out is None:
                msg = (
                    f"{self.describe()} returns nothing that could be replaced; write into "
                    "function.outputs, or replace the inputs at forward_pre"
                )
                raise HookValueError(msg)
            self._note_if(is_other(value, self.out), self.phase)
            self.out = value
            self.outputs = tuple(tensors(value))
        elif self.phase is Phase.BACKWARD_PRE:
            assert self.window is not None
            self.window.replace_out(self._as_many(value, self.count, "gradients of outputs"))
        else:
            msg = (
                f"nothing of {self.describe()} can be replaced here; inputs can at forward_pre, "
                "the output at forward, gradients of outputs at backward_pre"
            )
            raise HookValueError(msg)

    def _note_if(self, changes: object, phase: Phase) -> None:
        if changes:
            node = None if self.node is None else ref(self.node.registry)
            note_change(self, phase, partial(_register_on, node))

    def _replace_inputs(self, value: object) -> None:
        if isinstance(value, Inputs):
            self.args, self.kwargs = value.args, value.kwargs
        else:
            tree = Tree.of((self.args, self.kwargs))
            new = self._as_many(value, len(tree.tensors), "inputs")
            self.args, self.kwargs = tree.rebuild(new)
        assert self.arguments is not None
        self.arguments[1] = tuple(tensors((self.args, self.kwargs)))

    def _as_many(self, value: object, count: int, what: str) -> tuple[Any, ...]:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if len(values) != count or not all(isinstance(v, Tensor | None) for v in values):
            msg = (
                f"{self.describe()} has {count} {what}; {describe(value)} cannot replace them; "
                f"give {count} in order, None where there is none"
            )
            raise HookTypeError(msg)
        return values

    def describe(self) -> str:
        """The call in words, for errors."""
        repeated = ", recomputing" if self.recomputing else ""
        return f"function {self.label}{repeated}"

    def describe_inputs(self) -> str:
        """The shapes of the inputs in words, for errors."""
        return describe((self.args, self.kwargs))

    def __repr__(self) -> str:
        phase = f" at {self.phase}" if self.phase else ""
        return f"<FunctionCall {self.label}{phase}>"


def _register_on(node: ref[HookRegistry] | None, entry: Entry) -> HookHandle | None:
    """Register behind all hooks for functions, and those of a node."""
    from hookline.functions.places import everywhere

    registry = everywhere if node is None else node()
    return None if registry is None else registry.add(entry)
