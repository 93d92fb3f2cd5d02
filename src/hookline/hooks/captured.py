"""What was captured: by name, then by call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from hookline.core.calls import InPass, Pass
from hookline.errors import CaptureError
from hookline.hooks.keep import Versions, bytes_of, given_back
from hookline.modules.replace import GradInput, bare_or_inputs
from hookline.torch_base.tree import Tree, describe, leaves

What: TypeAlias = Literal["input", "output", "grad", "grad_input"]
KINDS: tuple[What, ...] = ("input", "output", "grad", "grad_input")

_NAMES: dict[str, str] = {
    "input": "input",
    "output": "output",
    "grad": "gradient of the output",
    "grad_input": "gradient of the inputs",
}

_OF_INPUTS = ("input", "grad_input")


class About(NamedTuple):
    """Whose calls are captured.

    Attributes:
        name: the module's path, or the function's address without the index.
        type: the class name of the module; the name of the function.
        paths: all paths of the module, where it is shared.
    """

    name: str
    type: str
    paths: tuple[str, ...] = ()


class CapturedCall(InPass):
    """What was captured of one call of a module or function.

    Attributes:
        index: which call in the pass it was.
        running: the pass.
        values: what was captured, as it is kept; `get` gives it as it was.
        versions: for what is no copy, how often it had been written to.
        bare: whether the output was a tensor by itself.
    """

    __slots__ = ("__weakref__", "_about", "bare", "index", "running", "values", "versions")

    def __init__(self, about: About, running: Pass, index: int, *, bare: bool) -> None:
        self._about = about
        self.running = running
        self.index = index
        self.bare = bare
        self.values: dict[str, Any] = {}
        self.versions: dict[str, Versions] | None = None

    def put(self, what: What, kept: Any, versions: Versions | None) -> None:
        """Hold what was captured of one kind."""
        self.values[what] = kept
        if versions is not None:
            self.versions = {**(self.versions or {}), what: versions}

    @property
    def name(self) -> str:
        """The module's path, or the function's address without the index."""
        return self._about.name

    @property
    def type(self) -> str:
        """The class name of the module; the name of the function."""
        return self._about.type

    @property
    def output(self) -> Any:
        """The output, in its structure."""
        return self.get("output")

    @property
    def input(self) -> Any:
        """The input if there is just one, positional; else `Inputs`."""
        return self.get("input")

    @property
    def grad(self) -> Any:
        """The gradient of the output, in the output's structure; that of the latest backward."""
        return self.get("grad")

    @property
    def grad_input(self) -> Any:
        """The gradient of the input if there is just one, positional; else a `GradInput`."""
        return self.get("grad_input")

    def get(self, what: What) -> Any:
        """What was captured of one kind.

        Args:
            what: `"input"`, `"output"`, `"grad"` or `"grad_input"`.

        Raises:
            CaptureError: it was not asked for, did not arrive, or was overwritten.
        """
        return self.shown(what, self.raw(what))

    def raw(self, what: What) -> Any:
        """As `get`, but of inputs always the positional and the keyword arguments."""
        if what not in self.values:
            raise CaptureError(self._missing(what))
        where = f"{what} of {self.describe()}"
        return given_back(self.values[what], (self.versions or {}).get(what), where)

    def shown(self, what: What, raw: Any) -> Any:
        """What `get` gives for what `raw` gives."""
        if what not in _OF_INPUTS:
            return raw
        args, kwargs = raw
        if what == "input" or (len(args) == 1 and not kwargs):
            return bare_or_inputs(args, kwargs)
        return GradInput.of(args, kwargs)

    def leaves(self, what: What = "output") -> dict[str, Tensor]:
        """The captured tensors by the paths that read them, such as `output[1][0]`."""
        raw = self.raw(what)
        if what not in _OF_INPUTS:
            return dict(leaves(raw, what))
        args, kwargs = raw
        if len(args) == 1 and not kwargs:
            return dict(leaves(args[0], what))
        by_position = what if what == "grad_input" else f"{what}.args"
        return dict(leaves(args, by_position) + leaves(kwargs, f"{what}.kwargs"))

    @property
    def kinds(self) -> list[What]:
        """What there is of it: `"output"` and so on."""
        return [what for what in KINDS if what in self.values]

    @property
    def nbytes(self) -> int:
        """The bytes of what was captured."""
        return sum(map(bytes_of, self.values.values()))

    def describe(self) -> str:
        """The call in words, for errors."""
        return f"{self.name or self.root!r}, call {self.index} of pass {self.pass_number}"

    def _missing(self, what: str) -> str:
        if what not in _NAMES:
            return f"{what!r} is nothing that can be captured; choose of {', '.join(KINDS)}"
        if what.startswith("grad"):
            return (
                f"no {_NAMES[what]} of {self.describe()} was captured: either it was not asked for "
                f"(what={what!r}), or no gradient arrived before the capture ended (run backward "
                "inside the `with` block; the output must need a gradient and be used)"
            )
        return (
            f"the {_NAMES[what]} of {self.describe()} was not captured; ask for it: "
            f"what=({what!r}, ...)"
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{what} {describe(value)}" for what, value in self.values.items())
        return f"<CapturedCall {self.describe()}: {shown}>"


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
