"""Choosing modules of a model, and functions that they call, by patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

from torch import nn

from hookline.core.calls import Key
from hookline.core.names import hook_name
from hookline.core.patterns import FunctionPattern, PathPattern, did_you_mean, near, split_address
from hookline.errors import HookTypeError, HookValueError, SelectionError
from hookline.torch_base.paths import paths_in, way_to
from hookline.torch_base.private import children_of
from hookline.torch_base.selection import Choice, Predicate, Selection, distinct, listed
from hookline.torch_base.wrappers import class_names, innermost, inside, is_compiled

Pattern: TypeAlias = str | re.Pattern[str] | type | nn.Module | Selection | Predicate
"""What selects modules, and functions that they call; see `select`."""

Where: TypeAlias = Pattern | Iterable[Pattern] | None
"""One pattern or several; None means all modules."""

Seats: TypeAlias = Mapping[Key[nn.Module], tuple[str, ...]]


def select(model: nn.Module, *patterns: Pattern) -> Selection:
    """Choose modules of a model, and functions that they call, by patterns.

    | pattern | selects |
    |---|---|
    | `"encoder.layers.0"` | the module of that path; `""` is the model itself |
    | `"encoder.layers.*.self_attn"` | a glob; `*`, `?` and `[0-3]` stay within one segment |
    | `"encoder.**"` | `**` is any number of segments, none too: `encoder` and all inside |
    | `re.compile("attn$")` | paths in which it is found (`re.search`); `^` and `$` anchor it |
    | `nn.Linear` | instances of a class |
    | `lambda path, module: ...` | modules for which it is true |
    | `model.encoder` | that module; a `Selection` of this model likewise |
    | `"layers.*.attn:softmax"` | the functions `softmax` that such modules call |
    | `"layers.0:*dropout[1]"` | a glob of their names; `[1]` is the second call of a pass only |

    A module with several paths matches by any of them and is selected once, under the first that
    matched. Wrappers (`DistributedDataParallel`, `DataParallel`, FSDP, `torch.compile`, checkpoint
    wrappers) are no modules of their own: paths are those of the model inside.

    Args:
        model: the model, or a wrapper of it.
        patterns: of all modules that match one; all modules, if there is no pattern.

    Returns:
        What was selected: in the order of the patterns, and for one pattern in the model's order.

    Raises:
        SelectionError: a pattern matches nothing, or cannot be read.
        HookTypeError: the model is no module, or there is no such kind of pattern.
        HookValueError: a `Selection` of another model.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.TransformerEncoderLayer(8, 2)
        >>> hookline.select(model, torch.nn.LayerNorm, "linear?")
        <Selection of 4 in TransformerEncoderLayer: 'norm1', 'norm2', 'linear1', 'linear2'>
    """
    return selection_in(model, paths_in(check_model(model)), patterns)


def check_model(model: object) -> nn.Module:
    """Refuse what is no module.

    Raises:
        HookTypeError: it is none.
    """
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        msg = f"modules are selected in a torch.nn.Module, not in {what}"
        raise HookTypeError(msg)
    return model


def selection_in(model: nn.Module, seats: Seats, patterns: Iterable[object]) -> Selection:
    """What `select` gives, for a model that was walked already.

    Args:
        model: the model.
        seats: the paths of its modules, as `paths_in` gives them.
        patterns: the patterns.
    """
    tree = _Tree(model, seats)
    patterns = list(patterns)
    if not patterns:
        return Selection(model, tree.everything())
    return Selection(model, distinct(c for pattern in patterns for c in tree.find(pattern)))


def patterns_of(where: Where) -> list[Pattern]:
    """The patterns in what was given as `where`; none for all modules.

    Raises:
        SelectionError: an empty list, which would mean nothing.
    """
    if where is None:
        return []
    single = isinstance(where, str | re.Pattern | type | nn.Module | Selection)
    if single or not isinstance(where, Iterable):
        return [where]
    patterns = list(where)
    if not patterns:
        msg = "where=[] selects nothing; leave it out to watch all modules"
        raise SelectionError(msg)
    return patterns


def _one_by_one(patterns: Iterable[object]) -> str:
    each = ", ".join(map(repr, patterns)) or "'0', '1'"
    return (
        f"a pattern is one thing, not a {type(patterns).__name__}; give several as arguments of "
        f"their own: capture(model, {each}), select(model, {each}); to patch, each as a key of its "
        "own; where= takes them as one list"
    )


class _Tree:
    """A model that is searched: its modules with their paths, without wrappers."""

    def __init__(self, model: nn.Module, seats: Seats) -> None:
        self._model = innermost(model)
        self._name = class_names[type(self._model)]
        self._rows: list[tuple[nn.Module, tuple[str, ...]]] = []
        self._wrappers: list[nn.Module] = []
        self._compiled: dict[nn.Module, nn.Module] = {}
        for key, paths in seats.items():
            module = key()
            if module is None:
                continue
            if inside(module) is None:
                self._rows.append((module, paths))
            else:
                self._wrappers.append(module)
                if is_compiled(type(module)):
                    self._compiled.setdefault(innermost(module), module)

    def everything(self) -> list[Choice]:
        """All modules."""
        called = self._compiled
        return [Choice(paths[0], m, called.get(m, m)) for m, paths in self._rows]

    def find(self, pattern: object) -> Iterable[Choice]:
        """What a pattern selects."""
        match pattern:
            case str():
                return self._by_text(pattern)
            case re.Pattern():
                return self._by_regex(pattern)
            case nn.Module():
                return self._by_identity(pattern)
            case Selection():
                return self._of(pattern)
            case type():
                return self._by_class(pattern)
            case list() | tuple() | set() | frozenset():
                raise HookTypeError(_one_by_one(pattern))
            case _ if callable(pattern):
                return self._by_predicate(pattern)
            case _:
                msg = (
                    "a pattern is a path, a glob, an address, a compiled regular expression, a "
                    f"class, a module, or a callable (path, module) -> bool, not {pattern!r}"
                )
                raise HookTypeError(msg)

    def _by_text(self, text: str) -> Iterable[Choice]:
        # What is there under just this name is meant, whatever characters the name has.
        path, function, named = text, None, self._at(text)
        if named is None and (address := split_address(text)) is not None:
            path, function = address
            named = self._at(path)
        if named is not None:
            return [self._choice(path, named, function, exact=True)]
        pattern = PathPattern.of(path)
        found = self._matching(lambda path, _: pattern.matches(path), function)
        if not found:
            names = [name for _, paths in self._rows for name in paths]
            verb = "is named" if pattern.is_exact else "matches"
            hint = did_you_mean(near(path, names)) or f"; at its top are {self._top()}"
            self._fail(f"no module of {self._name} {verb} {path!r}{hint}")
        return found

    def _at(self, path: str) -> nn.Module | None:
        """The module of a path, also of one that the walk did not list."""
        if path in self._at_paths:
            return self._at_paths[path]
        way = way_to(self._model, path)
        return None if way is None else way[-1]

    @cached_property
    def _at_paths(self) -> dict[str, nn.Module]:
        return {path: module for module, paths in self._rows for path in paths}

    def _by_regex(self, pattern: re.Pattern[Any]) -> Iterable[Choice]:
        if not isinstance(pattern.pattern, str):
            msg = f"paths are text, and {pattern!r} is for bytes"
            raise HookTypeError(msg)
        found = self._matching(lambda path, _: pattern.search(path))
        if not found:
            paths = listed(paths[0] for _, paths in self._rows)
            self._fail(f"{pattern.pattern!r} is found in no path of {self._name}: {paths}")
        return found

    def _by_class(self, cls: type) -> Iterable[Choice]:
        found = [self._choice(paths[0], m) for m, paths in self._rows if isinstance(m, cls)]
        if any(isinstance(wrapper, cls) for wrapper in self._wrappers) and not found:
            self._fail(f"a {cls.__name__} is a wrapper; select the module inside of it")
        if not found:
            classes = listed(dict.fromkeys(class_names[type(m)] for m, _ in self._rows))
            self._fail(f"no module of {self._name} is a {cls.__name__}; there are {classes}")
        return found

    def _by_predicate(self, predicate: Predicate) -> Iterable[Choice]:
        found = self._matching(predicate)
        if not found:
            self._fail(f"{hook_name(predicate)} is true for no module of {self._name}")
        return found

    def _by_identity(self, module: nn.Module) -> Iterable[Choice]:
        wanted = innermost(module)
        path = next((paths[0] for m, paths in self._rows if m is wanted), None)
        if path is None:
            self._fail(f"this {class_names[type(wanted)]} is not in this {self._name}")
        return [self._choice(path, wanted, exact=True)]

    def _of(self, selection: Selection) -> Iterable[Choice]:
        if innermost(selection.model) is not self._model:
            msg = f"{selection!r} is of another model than this {self._name}"
            raise HookValueError(msg)
        if not selection:
            self._fail(f"nothing is in {selection!r}")
        return selection.choices

    def _matching(
        self, matches: Predicate, function: FunctionPattern | None = None
    ) -> list[Choice]:
        """The modules with a path that matches, each under the first that does."""
        found: list[Choice] = []
        for module, paths in self._rows:
            path = next((path for path in paths if matches(path, module)), None)
            if path is not None:
                found.append(self._choice(path, module, function))
        return found

    def _choice(
        self,
        path: str,
        module: nn.Module,
        function: FunctionPattern | None = None,
        *,
        exact: bool = False,
    ) -> Choice:
        name = path if function is None else f"{path}:{function}"
        return Choice(name, module, self._compiled.get(module, module), function, exact)

    def _top(self) -> str:
        return listed(children_of(self._model).keys()) or "no modules"

    def _fail(self, msg: str) -> NoReturn:
        raise SelectionError(msg)
