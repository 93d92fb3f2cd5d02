"""Where something is in the model that was given, whatever larger model it is called in."""

from __future__ import annotations

from typing import Final
from weakref import ref

from torch import nn

from hookline.core.calls import Root
from hookline.torch_base.paths import roots
from hookline.torch_base.wrappers import innermost


class PlaceIn:
    """Tells the paths in a model of what is called in the roots that contain the model.

    Args:
        model: the model, or a wrapper of it; it becomes a root.
    """

    def __init__(self, model: nn.Module) -> None:
        self.root: Final[Root] = roots.declare(model)
        self._key: Final = ref(innermost(model))

    def of(self, root: Root, path: str) -> tuple[Root, str]:
        """The model's root and the path in it, of a path in a root; as it was, if outside."""
        inside = self.paths(root, (path,))
        return (self.root, inside[0]) if inside else (root, path)

    def paths(self, root: Root, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the paths in a root that lead through the model, as paths in the model."""
        model = root.seats.get(self._key, ())
        return tuple(
            dict.fromkeys(
                _below(path, top) for path in paths for top in model if _is_below(path, top)
            )
        )


def _is_below(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}.")


def _below(path: str, top: str) -> str:
    return path[len(top) + 1 :] if top else path
