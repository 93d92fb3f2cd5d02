"""Which models a program has: their modules, how often they ran, and which of them never did."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, Final

from torch import nn

from hookline.core.calls import Pass
from hookline.core.names import around
from hookline.core.records import Silent
from hookline.modules.silence import LEFT_OUT, NEVER, Reasons
from hookline.record.rows import ModuleRow, PassRow
from hookline.record.wanted import Wanted
from hookline.torch_base.paths import Root
from hookline.torch_base.private import parameters_of
from hookline.torch_base.stack import listeners
from hookline.torch_base.wrappers import class_names, inside


class Census:
    """Keeps what is known of each root that ran while it was open, also when that is gone.

    A program's models are often gone before its end, so each is looked at while it runs: before
    its passes 0, 1, 2, 4, 8, ..., and where its structure has changed. Models of one name, each
    gone before the next came, count as one.

    Args:
        hooks: the names of the hooks that are on.
        wanted: which roots and modules it is about.
        on_fault: called where a look raised; the exception is being handled.
    """

    def __init__(self, hooks: Iterable[str], wanted: Wanted, on_fault: Callable[[], None]) -> None:
        self._hooks: Final = tuple(hooks)
        self._wanted: Final = wanted
        self._on_fault: Final = on_fault
        self._known: Final[dict[str, _Known]] = {}
        self._running: Final[dict[int, Pass]] = {}
        self._lock: Final = threading.Lock()

    def begin(self) -> None:
        """Count from now on."""
        listeners.append(self._hear)

    def end(self) -> None:
        """Count no more."""
        if self._hear in listeners:
            listeners.remove(self._hear)

    def passes(self) -> dict[str, int]:
        """How many passes of each root there were."""
        with self._lock:
            return {name: known.passes.total() for name, known in self._known.items()}

    def rows(self, *, over: bool) -> list[ModuleRow | PassRow | Silent]:
        """A row for each module and for each mode of a root that ran.

        Args:
            over: whether to tell also which modules never ran, and why.
        """
        with self._lock:
            if over:
                self._look_again()
            found: list[Any] = []
            for name, known in self._known.items():
                found += known.silent() if over else ()
                found += sorted(known.modules.values(), key=lambda row: row.place)
                found += (PassRow(name, mode, n, known.last) for mode, n in known.passes.items())
        return found

    def _hear(self, opened: Pass) -> None:
        """A pass begins."""
        root = opened.root
        assert isinstance(root, Root)
        try:
            with self._lock:
                earlier = self._running.get(get_ident())
                if earlier is not None:
                    self._note_what_ran(earlier)
                self._running[get_ident()] = opened
                if not self._wanted.root(root):
                    return
                known = self._known.setdefault(root.name, _Known(self._hooks))
                if known.count(root, opened):
                    known.look(self._wanted)
        except Exception:  # noqa: BLE001 - whatever our fault is
            self._on_fault()

    def _look_again(self) -> None:
        for running in self._running.values():
            self._note_what_ran(running)
        for known in self._known.values():
            known.look(self._wanted)

    def _note_what_ran(self, running: Pass) -> None:
        known = self._known.get(running.root.name)
        if known is not None and known.root is running.root:
            known.ran.update(running.starts, (running.opener,))


class _Known:
    """What is known of the roots of one name."""

    def __init__(self, hooks: tuple[str, ...]) -> None:
        self.passes: Final[Counter[str]] = Counter()
        self.last = 0
        self.root: Root | None = None
        self.ran: set[object] = set()
        self.modules: dict[str, ModuleRow] = {}
        self._hooks: Final = hooks
        self._seats: Any = None
        self._version = -1
        self._never: dict[str, Silent] = {}
        self._ran_at: set[str] = set()

    def count(self, root: Root, opened: Pass) -> bool:
        """Count a pass; whether the root should be looked at."""
        if self.root is not root:
            self._ran_at = self._where_ran()
            self.root, self.ran = root, set()
        self.passes[opened.mode] += 1
        self.last = number = opened.number
        if number & (number - 1) == 0:
            return True
        if root.version == self._version:
            return False
        self._version = root.version
        return root.seats != self._seats

    def look(self, wanted: Wanted) -> None:
        """Keep what can be seen of the model only while it is there."""
        root = self.root
        if root is None or (model := root.module) is None:
            return
        self._seats, self._version = root.seats, root.version
        self.modules |= {row.path: row for row in _modules_of(root)}
        reasons = Reasons(self._as_called(root, model), root.seats, self.ran)
        never = self._modules_that_never_ran(root, wanted)
        self._never |= {
            path: Silent(
                path, class_names[type(module)], *reasons.of(path, module), self._hooks, root.name
            )
            for path, module in never
        }

    def silent(self) -> Iterator[Silent]:
        """A row for each module that never ran."""
        ran_at = self._where_ran()
        for path, row in self._never.items():
            if path not in ran_at:
                yield self._told_late(row, ran_at)

    def _as_called(self, root: Root, model: nn.Module) -> nn.Module:
        """The wrapper by which it was called, such as what `torch.compile` gave, or the model."""
        around = (key() for key, paths in root.seats.items() if paths == ("",) and key in self.ran)
        return next((m for m in around if m is not None and inside(m) is not None), model)

    def _modules_that_never_ran(
        self, root: Root, wanted: Wanted
    ) -> Iterator[tuple[str, nn.Module]]:
        for key, paths in root.seats.items():
            module = key()
            if module is None or key in self.ran or inside(module) is not None:
                continue
            if wanted.seat(root, key):
                yield paths[0], module

    def _told_late(self, row: Silent, ran_at: set[str]) -> Silent:
        """The row as it is now: of a model that is gone, others may have run since the look."""
        if (row.cause, row.advice) == NEVER and any(path in ran_at for path in around(row.path)):
            return Silent(row.path, row.type, *LEFT_OUT, row.hooks, row.root)
        return row

    def _where_ran(self) -> set[str]:
        seats: Any = {} if self.root is None else self.root.seats
        return self._ran_at | {path for key in self.ran for path in seats.get(key, ())}


def _modules_of(root: Root) -> Iterator[ModuleRow]:
    seats = [(key(), paths[0]) for key, paths in root.seats.items()]
    modules = [(module, path) for module, path in seats if module is not None]
    for place, (module, path) in enumerate(m for m in modules if inside(m[0]) is None):
        own = sum(_size(parameter) for parameter in parameters_of(module).values())
        yield ModuleRow(root.name, path, class_names[type(module)], place, own)


def _size(parameter: nn.Parameter | None) -> int:
    uninitialized = isinstance(parameter, nn.parameter.UninitializedParameter)
    return 0 if parameter is None or uninitialized else parameter.numel()
