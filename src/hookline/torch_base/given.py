"""A model that somebody gave, and the names in it, whatever larger model it is called in."""

from __future__ import annotations

from typing import Final, Self

from torch import nn

from hookline.core import calls
from hookline.core.calls import Key
from hookline.torch_base.paths import Root, roots
from hookline.torch_base.wrappers import innermost


class Given(Root):
    """A model that was given; it becomes a root.

    It is a root of its own for what is asked of it: which of the known roots a module belongs to
    does not change by asking.

    Args:
        model: the model, or a wrapper of it.

    Attributes:
        root: the root to which calls belong where the model is not called inside a larger one.
    """

    __slots__ = ("_given", "root")

    def __init__(self, model: nn.Module) -> None:
        self.root: Final = roots.declare(model)
        self._given: Final[Key[nn.Module]] = Key(model)
        super().__init__(innermost(model), self.root.name)
        self.wrap(model)

    @property
    def model(self) -> nn.Module | None:
        """The model as it was given, perhaps wrapped; None once it is gone."""
        return self._given()

    def current(self) -> Self:
        """This, walked again if a change of structure was seen since."""
        if self.version != roots.version:
            self.walk(roots.version)
        return self

    def place(self, root: calls.Root, path: str) -> tuple[calls.Root, str]:
        """The model's root and the path in it, of a path in a root; as it was, if outside."""
        for top in root.seats.get(self.key, ()):
            if not top:
                return self.root, path
            if path.startswith(top) and path[len(top) : len(top) + 1] in ("", "."):
                return self.root, path[len(top) + 1 :]
        return root, path

    def paths(self, root: calls.Root, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the paths in a root that lead through the model, as paths in the model."""
        places = (self.place(root, path) for path in paths)
        return tuple(dict.fromkeys(path for top, path in places if top is self.root))
