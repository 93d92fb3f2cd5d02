"""What torch imports while hooks are on must not keep hookline's functions for torch's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from hookline.torch_base.patch import Patch


class LateImport(MetaPathFinder):
    """Waits for the import of a module, and puts back the originals of what it took for torch's.

    The compiler, which is imported when it is first needed, keeps `nn.Module.__call__` to know
    later whether somebody has patched it. Were it ours that it keeps, it would pass ours over.

    Args:
        name: the module.
        patch: what stands in the place of the function.
    """

    def __init__(self, name: str, patch: Patch) -> None:
        self._name: Final = name
        self._patch: Final = patch

    # A new list each time: another thread may be going through the old one.

    def install(self) -> None:
        """Wait from now on, if the module is not there yet."""
        if self._name not in sys.modules:
            sys.meta_path = [self, *sys.meta_path]

    def uninstall(self) -> None:
        """Wait no more."""
        if self in (sys.meta_path or ()):  # at the end of the interpreter it is None
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python asks for a module: its spec, if it is the one."""
        if fullname != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        self.uninstall()
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._patch)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, patch: Patch) -> None:
        self._loader: Final = loader
        self._patch: Final = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for name, value in list(vars(module).items()):
            original = self._patch.original_of(value)
            if original is not value:
                setattr(module, name, original)
