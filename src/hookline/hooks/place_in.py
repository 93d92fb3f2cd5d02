"""Where something is in the model that was given, whatever larger model it is called in."""

from __future__ import annotations

from typing import Final

from hookline.core import calls
from hookline.torch_base.paths import Root


class PlaceIn:
    """Tells the paths in a model of what is called in the roots that contain the model.

    Args:
        root: the model as a root.
    """

    def __init__(self, root: Root) -> None:
        self.root: Final[calls.Root] = root
        self._key: Final = root.key

    def of(self, root: calls.Root, path: str) -> tuple[calls.Root, str]:
        """The model's root and the path in it, of a path in a root; as it was, if outside."""
        for top in root.seats.get(self._key, ()):
            if not top:
                return self.root, path
            if path.startswith(top) and path[len(top) : len(top) + 1] in ("", "."):
                return self.root, path[len(top) + 1 :]
        return root, path

    def paths(self, root: calls.Root, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the paths in a root that lead through the model, as paths in the model."""
        places = (self.of(root, path) for path in paths)
        return tuple(dict.fromkeys(path for top, path in places if top is self.root))
