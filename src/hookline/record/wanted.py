"""Which calls a run is about: all, or those that patterns select in whatever models come up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from torch import nn

from hookline.core.calls import Key
from hookline.errors import SelectionError
from hookline.functions.chosen import Chosen
from hookline.modules.silence import function_not_called
from hookline.torch_base.given import Given
from hookline.torch_base.paths import Root
from hookline.torch_base.select import selection_in
from hookline.torch_base.selection import Choice

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall


class Wanted:
    """Tells whether a call is wanted; the same in all phases of a call.

    Args:
        patterns: as `select` takes them; none for everything.
        models: only what is in these, also where they are called inside others; none for all.
        functions: whether calls of functions are asked about at all.
    """

    def __init__(
        self,
        patterns: Sequence[object] = (),
        models: Iterable[nn.Module] = (),
        *,
        functions: bool = True,
    ) -> None:
        self._functions: Final = functions
        self._patterns: Final = patterns
        self._given: Final = {given.root: given for given in map(Given, models)}
        self._parts: Final[WeakKeyDictionary[Root, _Part]] = WeakKeyDictionary()
        self._matched: Final[set[int]] = set()
        self._hints: Final[dict[int, tuple[int, str]]] = {}

    @property
    def everything(self) -> bool:
        """Whether every call is wanted."""
        return not self._patterns and not self._given

    def root(self, root: Root) -> bool:
        """Whether anything in a root is wanted, as far as the models say."""
        models = self._models_of(root)
        return root in models or any(not root.seats.keys().isdisjoint(m.seats) for m in models)

    def seat(self, root: Root, key: Key[nn.Module]) -> bool:
        """Whether calls of a module in a root are wanted."""
        models = self._models_of(root)
        if self._patterns:
            return any(key in self._part(model).keys for model in models)
        return root in models or any(key in model.seats for model in models)

    def module(self, call: ModuleCall) -> bool:
        """Whether a call of a module is wanted."""
        root: Any = call.running.root
        return any(self.seat(root, key) for key in call.keys)

    def function(self, call: FunctionCall) -> bool:
        """Whether a call of a function is wanted; outside any module none is, if not all are."""
        parent: Any = call.parent
        if parent is None:
            return False
        root: Any = parent.running.root
        if not self._patterns:
            return self.module(parent)
        # Each is asked, since patterns that match are noted on the way.
        taken = [self._takes(self._part(model), call) for model in self._models_of(root)]
        return any(taken)

    def unmatched(self) -> list[str]:
        """For each pattern that matched nothing anywhere, what is known of that."""
        patterns = enumerate(self._patterns)
        return [self._hint(n, pattern) for n, pattern in patterns if n not in self._matched]

    def _hint(self, place: int, pattern: object) -> str:
        chosen = [c for part in self._parts.values() for n, c in part.chosen if n == place]
        targets = [(each, target) for each in chosen for target in each.targets]
        if targets and not self._functions:
            return f"{pattern!r} means functions, and only modules are measured: see --level"
        if targets:
            called = {name for each, target in targets for name in each.called_by(target.key)}
            wanted: Any = targets[0][1].function
            why = function_not_called(wanted, sorted(called))[1]
            return f"{pattern!r} matched no function: {why}"
        return self._hints.get(place, (0, f"{pattern!r}: no model was seen"))[1]

    def _models_of(self, root: Root) -> Sequence[Root]:
        """Where what is called in a root is looked up: there, or in the models that were given."""
        if not self._given or root in self._given:
            return (root,)
        return tuple(given.current() for given in self._given.values())

    def _takes(self, part: _Part, call: FunctionCall) -> bool:
        taken = [place for place, chosen in part.chosen if chosen.takes(call)]
        self._matched.update(taken)
        return bool(taken)

    def _part(self, root: Root) -> _Part:
        part = self._parts.get(root)
        if part is None or part.version != root.version:
            part = self._parts[root] = _Part(root, self._choices(root))
        return part

    def _choices(self, root: Root) -> list[tuple[int, Sequence[Choice]]]:
        found: list[tuple[int, Sequence[Choice]]] = []
        model = root.module
        for place, pattern in enumerate(self._patterns if model is not None else ()):
            assert model is not None
            try:
                choices = selection_in(model, root.seats, [pattern]).choices
                found.append((place, choices))
                # Of functions, that is known when one is called.
                if any(choice.function is None for choice in choices):
                    self._matched.add(place)
            except SelectionError as error:
                # Of the largest model the names are most telling.
                self._hints[place] = max(
                    self._hints.get(place, (0, "")), (len(root.seats), str(error))
                )
        return found


class _Part:
    """What is wanted of one root."""

    def __init__(self, root: Root, chosen: Sequence[tuple[int, Sequence[Choice]]]) -> None:
        self.version: Final = root.version
        choices = [choice for _, choices in chosen for choice in choices]
        self.keys: Final = frozenset(Key(c.called) for c in choices if c.function is None)
        self.chosen: Final = [(place, Chosen(choices)) for place, choices in chosen]
