"""Roots of modules, and the names of modules in them.

A *root* is the topmost module that contains the one called. It is known because somebody said so
(`declare`), because modules were seen being built inside each other (torch's public registration
hook, on while the engine is), or, failing both, because its call was the outermost one. One walk
gives every module in a root its paths; structure that changes later is walked again.

Wrappers (`DistributedDataParallel`, what `torch.compile` gives, ...) have no name of their own: a
wrapper has the path of the module inside, and around a root the root stays that module.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final
from weakref import ref

from torch import nn

from hookline.core import calls
from hookline.core.calls import Key
from hookline.core.switch import lock
from hookline.torch_base.private import children_of
from hookline.torch_base.replicas import key_of, originals
from hookline.torch_base.wrappers import class_names, innermost, inside

MAX_PATHS: Final = 16
"""Paths listed for one shared module: nested sharing makes their number exponential."""


class Root:
    """A root module: its name, and the paths of the modules in it.

    Attributes:
        key: a weak reference to the module.
        name: the class name; `Linear#2` for a second root of that class.
        seats: each contained module's paths as in `named_modules()`; `""` is the root itself and
            the wrappers around it.
        numbers: of the passes; drawn by all threads.
        version: the structure's version at the last walk.
    """

    __slots__ = (
        "__weakref__",
        "_wrappers",
        "key",
        "name",
        "numbers",
        "seats",
        "version",
    )

    def __init__(self, module: nn.Module, name: str) -> None:
        self.key: Final[Key[nn.Module]] = ref(module)
        self._wrappers: set[Key[nn.Module]] = set()
        self.name = name
        self.numbers = count()
        self.version = -1
        self.seats: dict[Key[nn.Module], tuple[str, ...]] = {}

    @property
    def module(self) -> nn.Module | None:
        """The root module, or None once it is gone."""
        return self.key()

    def holds(self, key: Key[nn.Module], version: int) -> bool:
        """Whether a module is known to be in the root, by a walk that is not stale."""
        return self.version == version and self.module is not None and key in self.seats

    def wrap(self, model: nn.Module) -> None:
        """Remember what is around the root; `model` is the outermost wrapper, or the root."""
        while (wrapped := inside(model)) is not None:
            self._wrappers.add(ref(model))
            model = wrapped

    def walk(self, version: int) -> None:
        """Find the modules in the root and their paths."""
        module = self.module
        self.seats = {} if module is None else paths_in(module)
        around = ((key, key()) for key in self._wrappers)
        self._wrappers = {k for k, w in around if w is not None and innermost(w) is module}
        self.seats.update(dict.fromkeys(self._wrappers, ("",)))
        self.version = version

    def __reduce__(self) -> tuple[Any, ...]:
        return calls.NamedRoot, (self.name,)

    def __repr__(self) -> str:
        return f"<Root {self.name}: {len(self.seats)} modules>"


def paths_in(root: nn.Module) -> dict[Key[nn.Module], tuple[str, ...]]:
    """The paths of every module in a model, by one walk linear in its size."""
    found: dict[Key[nn.Module], tuple[str, ...]] = {}
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        key = ref(module)
        paths = found.get(key, ())
        if len(paths) < MAX_PATHS:
            found[key] = (*paths, path)
            if children_of(module):
                waiting.extend(reversed(_children(path, module)))
    return found


def _children(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    wrapped = inside(module)
    if wrapped is not None:
        return [(path, wrapped)]
    prefix = f"{path}." if path else ""
    children = children_of(module).items()
    return [(prefix + name, child) for name, child in children if child is not None]


def way_to(model: nn.Module, path: str) -> list[nn.Module] | None:
    """The modules on the way to a path, from the model on, wrappers too; None if it has no such.

    Finds also paths of shared modules that `paths_in` does not list.
    """
    way = _layers(model)
    for name in path.split(".") if path else ():
        child = children_of(way[-1]).get(name)
        if child is None:
            return None
        way.extend(_layers(child))
    return way


def _layers(module: nn.Module) -> list[nn.Module]:
    layers = [module]
    while (wrapped := inside(layers[-1])) is not None:
        layers.append(wrapped)
    return layers


class Roots:
    """All roots that are known, and which module belongs to which."""

    def __init__(self) -> None:
        self._member: dict[Key[nn.Module], Root] = {}
        self._parents: dict[Key[nn.Module], Key[nn.Module]] = {}
        self._names: dict[str, Root] = {}
        self.version = 0
        """Counts the changes of structure that were seen."""

    def learn(self, parent: nn.Module, _name: str, child: nn.Module | None) -> None:
        """Remember that a module was put into another (torch's registration hook)."""
        if child is not None and ref(parent) not in originals:
            with lock:
                self._parents[ref(child)] = ref(parent)
                self.version += 1

    def declare(self, model: nn.Module) -> Root:
        """Make a model the root of all that it contains; of a wrapper, the module inside."""
        with lock:
            top = innermost(model)
            known = self._member.get(ref(top))
            if known is None or known.module is not top:
                known = Root(top, self._free_name(class_names[type(top)]))
                self._names[known.name] = known
            known.wrap(model)
            self._settle(known)
            return known

    def root_of(self, module: nn.Module) -> Root:
        """The root that contains a module; itself, if nothing is known to contain it."""
        key = key_of(module)
        known = self._member.get(key)
        if known is not None and known.holds(key, self.version):
            return known
        original = key()
        with lock:
            return self.declare(self._topmost(module if original is None else original, known))

    def known(self) -> list[Root]:
        """The roots that are there, in the order in which they were found."""
        with lock:
            return [root for root in self._names.values() if root.module is not None]

    def refreshed(self, root: Root) -> Root:
        """The root after another walk, for a module that was put in unseen."""
        with lock:
            self._settle(root)
        return root

    def _topmost(self, module: nn.Module, known: Root | None) -> nn.Module:
        top = module
        if known is not None and known.module is not None and known.module is not module:
            # A walk may show that the module was taken out of the root meanwhile.
            self._settle(known)
            top = known.module if ref(module) in known.seats else module
        seen = {id(top)}
        while (above := self._parent(top)) is not None and id(above) not in seen:
            seen.add(id(above))
            top = above
        return top

    def _parent(self, module: nn.Module) -> nn.Module | None:
        key = self._parents.get(ref(module))
        parent = None if key is None else key()
        if parent is None or not any(child is module for child in children_of(parent).values()):
            return None
        return parent

    def _settle(self, root: Root) -> None:
        root.walk(self.version)
        self._member.update(dict.fromkeys(root.seats, root))

    def _free_name(self, name: str) -> str:
        self._forget_dead()
        number, free = 1, name
        while free in self._names:
            number += 1
            free = f"{name}#{number}"
        return free

    def _forget_dead(self) -> None:
        self._names = {n: r for n, r in self._names.items() if r.module is not None}
        self._member = {k: r for k, r in self._member.items() if k() is not None}
        # Asked by identity: a module may have a length, and be false or refuse to tell.
        parents = self._parents.items()
        self._parents = {k: p for k, p in parents if k() is not None and p() is not None}

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()


roots: Final = Roots()


def executing_path(root: calls.Root, module: nn.Module, stack: list[Any]) -> str:
    """The path by which a shared module is being called: that through the modules that run."""
    prefixes: tuple[str, ...] = ("",)
    for frame in stack:
        key = key_of(frame) if isinstance(frame, nn.Module) else frame.key
        paths = root.seats.get(key, ())
        prefixes = tuple(p for p in paths if _below(p, prefixes)) or prefixes
    paths = root.seats[key_of(module)]
    return next((p for p in paths if _below(p, prefixes)), paths[0])


def _below(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(not prefix or path == prefix or path.startswith(prefix + ".") for prefix in prefixes)
