"""What was selected of a model: modules with their paths, and functions with their addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, overload

from torch import nn

from hookline.core.names import shortened
from hookline.core.patterns import FunctionPattern
from hookline.errors import HookValueError, SelectionError
from hookline.torch_base.wrappers import class_names, innermost

Predicate: TypeAlias = Callable[[str, nn.Module], object]


class Choice(NamedTuple):
    """One thing that was selected: a module, or functions that it calls.

    Attributes:
        path: the module's dotted name, or the address of the functions, such as `attn:softmax`.
        module: the module.
        called: the module whose call is seen: what `torch.compile` made of it, else itself.
        function: which of the functions that it calls; None for the module itself.
        exact: whether it was asked for by itself, not by what it has in common with others.
    """

    path: str
    module: nn.Module
    called: nn.Module
    function: FunctionPattern | None = None
    exact: bool = False


class Selection(Sequence[tuple[str, nn.Module]]):
    """Modules of one model, each with its path; `select` gives it.

    A sequence of `(path, module)`. Functions that were selected by address stand there with their
    address and the module that calls them. `a | b` is all of `a`, then what `b` has beside that;
    `a - b` is `a` without what is in `b`, where a module takes the functions that it calls along.

    Attributes:
        model: the model.
        choices: what was selected, with all that is known of it.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> hookline.select(model, torch.nn.ReLU) | hookline.select(model, "0")
        <Selection of 2 in Sequential: '1', '0'>
        >>> hookline.select(model, "**") - hookline.select(model, "")
        <Selection of 2 in Sequential: '0', '1'>
    """

    def __init__(self, model: nn.Module, choices: Iterable[Choice]) -> None:
        self.model: Final = model
        self.choices: Final = tuple(choices)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths, and the addresses of functions."""
        return tuple(choice.path for choice in self.choices)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules."""
        return tuple(choice.module for choice in self.choices)

    def where(self, predicate: Predicate) -> Selection:
        """Those for which a predicate holds; there may be none.

        Args:
            predicate: gets the path and the module.

        Example:
            >>> import torch, hookline
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
            >>> hookline.select(model, torch.nn.Linear).where(lambda path, m: m.out_features == 1)
            <Selection of 1 in Sequential: '1'>
        """
        return Selection(self.model, [c for c in self.choices if predicate(c.path, c.module)])

    def of_type(self, *classes: type) -> Selection:
        """Those that are instances of one of the classes; there may be none."""
        return Selection(self.model, [c for c in self.choices if isinstance(c.module, classes)])

    def assert_count(self, count: int) -> Selection:
        """Make sure of the number, so that a pattern never silently means other modules.

        Args:
            count: how many there must be.

        Returns:
            The selection itself.

        Raises:
            SelectionError: there are more, or fewer.
        """
        if len(self) != count:
            msg = f"{count} expected, {len(self)} selected: {listed(self.paths) or 'none'}"
            raise SelectionError(msg)
        return self

    def __or__(self, other: Selection) -> Selection:
        if not isinstance(other, Selection):
            return NotImplemented
        self._check_same_model(other)
        return Selection(self.model, distinct((*self.choices, *other.choices)))

    def __sub__(self, other: Selection) -> Selection:
        if not isinstance(other, Selection):
            return NotImplemented
        self._check_same_model(other)
        gone = {(id(c.module), c.function) for c in other.choices}
        return Selection(
            self.model,
            [
                c
                for c in self.choices
                if gone.isdisjoint(((id(c.module), c.function), (id(c.module), None)))
            ],
        )

    def _check_same_model(self, other: Selection) -> None:
        if innermost(other.model) is not innermost(self.model):
            msg = f"these selections are of two models: {self!r} and {other!r}"
            raise HookValueError(msg)

    def __len__(self) -> int:
        return len(self.choices)

    @overload
    def __getitem__(self, place: int) -> tuple[str, nn.Module]: ...
    @overload
    def __getitem__(self, place: slice) -> Selection: ...
    def __getitem__(self, place: int | slice) -> tuple[str, nn.Module] | Selection:
        if isinstance(place, slice):
            return Selection(self.model, self.choices[place])
        choice = self.choices[place]
        return choice.path, choice.module

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return item in self.paths
        if isinstance(item, nn.Module):
            return any(item is module for module in self.modules)
        return super().__contains__(item)

    def __repr__(self) -> str:
        name = class_names[type(innermost(self.model))]
        return f"<Selection of {len(self)} in {name}: {listed(self.paths) or 'none'}>"


def distinct(choices: Iterable[Choice]) -> list[Choice]:
    """Each module and each function once, where it stands first; exact, if one of them is."""
    found: dict[tuple[int, FunctionPattern | None], Choice] = {}
    for choice in choices:
        key = (id(choice.module), choice.function)
        first = found.setdefault(key, choice)
        if choice.exact and not first.exact:
            found[key] = first._replace(exact=True)
    return list(found.values())


def listed(names: Iterable[str]) -> str:
    """Names in a text, the first of them where they are many.

    Example:
        >>> listed(["fc", "act"])
        "'fc', 'act'"
    """
    return shortened(map(repr, names))
