"""Which models a program has: their modules, how often they ran, and which of them never did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from torch import nn

from hookline.core.records import Silent
from hookline.core.thread import local
from hookline.modules.silence import Reasons
from hookline.record.rows import ModuleRow, PassRow
from hookline.torch_base.paths import Root, roots
from hookline.torch_base.private import parameters_of
from hookline.torch_base.stack import note_what_ran
from hookline.torch_base.wrappers import class_names, inside


class Census:
    """Keeps what is known of each root that ran since it began, also when that is gone.

    Args:
        hooks: the names of the hooks that are on.
    """

    def __init__(self, hooks: Iterable[str]) -> None:
        self._hooks: Final = tuple(hooks)
        self._before: dict[tuple[str, str], int] = {}
        self._modules: dict[str, tuple[int, list[ModuleRow]]] = {}
        self._passes: dict[tuple[str, str], PassRow] = {}

    def begin(self) -> None:
        """Count from now on."""
        known = roots.known()
        self._before = {(r.name, mode): n for r in known for mode, n in r.passes.items()}

    def passes(self) -> dict[str, int]:
        """How many passes of each root there were, of those that are still there."""
        found = {root.name: sum(self._since(root).values()) for root in roots.known()}
        return {name: passes for name, passes in found.items() if passes}

    def rows(self, *, over: bool) -> Iterator[ModuleRow | PassRow | Silent]:
        """A row for each module and for each mode of a root that ran.

        Args:
            over: whether to tell also which modules never ran, and why.
        """
        if over:
            for running in local.thread.passes:
                note_what_ran(running)
        for root in roots.known():
            yield from self._look_at(root, over=over)
        for _, modules in self._modules.values():
            yield from modules
        yield from self._passes.values()

    def _look_at(self, root: Root, *, over: bool) -> Iterator[Silent]:
        counts = self._since(root)
        if not counts:
            return
        last = sum(root.passes.values()) - 1
        for mode, count in counts.items():
            self._passes[root.name, mode] = PassRow(root.name, mode, count, last)
        known = self._modules.get(root.name)
        if known is None or known[0] != root.version:
            self._modules[root.name] = root.version, list(_modules_of(root))
        if over:
            yield from self._silent(root)

    def _since(self, root: Root) -> dict[str, int]:
        """The passes since the begin, by mode."""
        # Other threads may add a mode at any time.
        counts = {m: n - self._before.get((root.name, m), 0) for m, n in list(root.passes.items())}
        return {mode: n for mode, n in counts.items() if n}

    def _silent(self, root: Root) -> Iterator[Silent]:
        model = root.module
        reasons = Reasons(model, root.seats, root.ran)
        for key, paths in root.seats.items():
            module = key()
            if module is not None and key not in root.ran and inside(module) is None:
                reason = reasons.of(paths[0], module)
                name = class_names[type(module)]
                yield Silent(paths[0], name, *reason, self._hooks, root.name)


def _modules_of(root: Root) -> Iterator[ModuleRow]:
    seats = [(key(), paths[0]) for key, paths in root.seats.items()]
    modules = [(module, path) for module, path in seats if module is not None]
    for place, (module, path) in enumerate(m for m in modules if inside(m[0]) is None):
        own = sum(_size(parameter) for parameter in parameters_of(module).values())
        yield ModuleRow(root.name, path, class_names[type(module)], place, own)


def _size(parameter: nn.Parameter | None) -> int:
    uninitialized = isinstance(parameter, nn.parameter.UninitializedParameter)
    return 0 if parameter is None or uninitialized else parameter.numel()
