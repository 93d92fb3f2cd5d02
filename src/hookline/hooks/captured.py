"""What was captured of one module or function: its calls, and ways to take from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hookline.errors import CaptureError
from hookline.hooks.captured_call import About, CapturedCall, What
from hookline.torch_base.tree import Tree, describe


class Captured:
    """What was captured of one module or function: a sequence of its calls.

    `.output` and the like give the value of the only call; where there were several they raise,
    and `.outputs`, `.first`, `.last`, `.concat()` say which is meant.

    Attributes:
        about: its name, type and paths.
        root: the name of the root that contains it.
        held: the calls, oldest first.
        dropped: how many calls were dropped to stay within the limit.
    """

    __slots__ = ("about", "dropped", "held", "root")

    def __init__(self, about: About, root: str, held: deque[CapturedCall]) -> None:
        self.about = about
        self.root = root
        self.held = held
        self.dropped = 0

    @property
    def name(self) -> str:
        """The module's path, or the function's address without the index."""
        return self.about.name

    @property
    def type(self) -> str:
        """The class name of the module; the name of the function."""
        return self.about.type

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths of the module, where it is shared."""
        return self.about.paths

    def __getitem__(self, place: int) -> CapturedCall:
        return self.held[place]

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[CapturedCall]:
        return iter(list(self.held))

    # One call.

    @property
    def first(self) -> CapturedCall:
        """The first call that is held."""
        return self._some()[0]

    @property
    def last(self) -> CapturedCall:
        """The last call."""
        return self._some()[-1]

    @property
    def output(self) -> Any:
        """The output of the only call."""
        return self._only("output")

    @property
    def input(self) -> Any:
        """The input of the only call: bare if it is just one, positional; else `Inputs`."""
        return self._only("input")

    @property
    def grad(self) -> Any:
        """The gradient of the output of the only call."""
        return self._only("grad")

    @property
    def grad_input(self) -> Any:
        """The gradient of the input of the only call."""
        return self._only("grad_input")

    def leaves(self, what: What = "output") -> dict[str, Tensor]:
        """The captured tensors of the only call by their paths, such as `output[1][0]`."""
        return self._only_call(what).leaves(what)

    # All calls.

    @property
    def outputs(self) -> list[Any]:
        """The outputs of all calls."""
        return [call.output for call in self]

    @property
    def inputs(self) -> list[Any]:
        """The inputs of all calls."""
        return [call.input for call in self]

    @property
    def grads(self) -> list[Any]:
        """The gradients of the outputs of all calls; None where none arrived."""
        return [call.grad if "grad" in call.values else None for call in self]

    @property
    def grad_inputs(self) -> list[Any]:
        """The gradients of the inputs of all calls; None where none arrived."""
        return [call.grad_input if "grad_input" in call.values else None for call in self]

    def concat(self, dim: int = 0, what: What = "output") -> Any:
        """The values of all calls joined along a dimension, tensor by tensor in structures.

        Args:
            dim: the dimension.
            what: `"output"`, `"input"`, `"grad"` or `"grad_input"`.

        Raises:
            CaptureError: there is no call, or their structures or shapes do not fit.
        """
        calls = self._some()
        trees = [Tree.of(call.raw(what)) for call in calls]
        if len({len(tree.tensors) for tree in trees}) > 1:
            msg = f"the calls of {self.name!r} have different structures; take them one by one"
            raise CaptureError(msg)
        parts = zip(*(tree.tensors for tree in trees), strict=True)
        try:
            joined = trees[0].rebuild([torch.cat(same, dim) for same in parts])
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(describe(tree.value) for tree in trees)
            msg = f"the calls of {self.name!r} cannot be joined in dimension {dim}: {shapes}"
            raise CaptureError(msg) from error
        return calls[0].shown(what, joined)

    @property
    def passes(self) -> list[int]:
        """The numbers of the passes that the calls belong to."""
        return sorted({call.pass_number for call in self})

    def in_pass(self, number: int) -> Captured:
        """The calls of one pass only."""
        return self.where(pass_number=number)

    def where(self, **attributes: object) -> Captured:
        """The calls with certain attributes, such as `index=1` or `mode="eval"`."""
        wanted = attributes.items()
        calls = deque(c for c in self if all(getattr(c, name) == v for name, v in wanted))
        return Captured(self.about, self.root, calls)

    def _some(self) -> deque[CapturedCall]:
        if not self.held:
            why = " any more: they were dropped to stay within the limit" if self.dropped else ""
            msg = f"no call of {self.name or self.root!r} is held{why}"
            raise CaptureError(msg)
        return self.held

    def _only(self, what: What) -> Any:
        return self._only_call(what).get(what)

    def _only_call(self, what: What) -> CapturedCall:
        calls = self._some()
        if len(calls) > 1:
            msg = (
                f"{self.name or self.root!r} was called {len(calls)} times, so .{what} is not "
                f"clear; take .{what}s (a list), .first.{what}, .last.{what}, "
                f".concat(dim=0, what={what!r}), or in_pass(number) of passes {self.passes}"
            )
            raise CaptureError(msg)
        return calls[0]

    def __repr__(self) -> str:
        calls = f"{len(self)} call{'' if len(self) == 1 else 's'}"
        shown = ""
        if self.held:
            values = self.held[-1].values.items()
            shown = ": " + ", ".join(f"{what} {describe(value)}" for what, value in values)
        return f"<Captured {self.name or self.root!r} ({self.type}), {calls}{shown}>"
