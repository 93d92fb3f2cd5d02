"""What was captured of one call of a module or function."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from torch import Tensor

from hookline.core.calls import InPass, Pass
from hookline.errors import CaptureError
from hookline.hooks.keep import Versions, bytes_of, given_back
from hookline.modules.replace import GradInput, bare_or_inputs
from hookline.torch_base.tree import describe, leaves, map_tensors

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

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        state = {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}
        # No graph can be copied, and nobody else writes into the copies.
        values = {what: map_tensors(_without_graph, value) for what, value in self.values.items()}
        return None, {**state, "values": values, "versions": None}

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


def _without_graph(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor
