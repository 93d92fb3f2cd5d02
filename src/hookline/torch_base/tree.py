"""Values in structures: find the tensors, name them, put others in their place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor

from hookline.errors import HookTypeError, HookValueError
from hookline.torch_base.containers import OPAQUE, TENSOR, Rule, rule_of

T = TypeVar("T")

_PLAIN_TENSORS = frozenset({Tensor, torch.nn.Parameter})


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a value, in order; one that is there twice is listed twice."""
    cls = type(value)
    if issubclass(cls, Tensor):
        return [value]
    if (cls is tuple or cls is list) and _PLAIN_TENSORS.issuperset(map(type, value)):
        return list(value)
    found: list[Tensor] = []
    _collect(value, found, set())
    return found


def leaves(value: object, name: str = "output") -> list[tuple[str, Tensor]]:
    """The tensors in a value, each with the path that reads it: `output.hidden_states[2]`."""
    found: list[tuple[str, Tensor]] = []
    _collect_named(value, name, found, set())
    return found


def map_tensors(fn: Callable[[Tensor], object], value: T) -> T:
    """The value with `fn(tensor)` in place of each tensor."""
    tree = Tree.of(value)
    return tree.rebuild([fn(tensor) for tensor in tree.tensors])


def put_back(containers: Sequence[object], stood_for: dict[int, object]) -> None:
    """Undo `Tree.put` in containers, which may have been changed since.

    Args:
        containers: those that `Tree.changeable` gave.
        stood_for: by the id of what was put there or made, what it stands for.
    """
    for container in containers:
        _put_back(container, stood_for, set())


class Tree:
    """A value taken apart into its tensors and the structure around them.

    Attributes:
        value: the value as it was given.
        tensors: its tensors, in order.
    """

    __slots__ = ("_plan", "tensors", "value")

    def __init__(self, value: Any, found: list[Tensor], plan: _Plan) -> None:
        self.value = value
        self.tensors = found
        self._plan = plan

    @classmethod
    def of(cls, value: object) -> Tree:
        """Take a value apart."""
        found: list[Tensor] = []
        return cls(value, found, _plan(value, found, set()))

    def rebuild(self, new: Sequence[object]) -> Any:
        """The same structure with other values for its tensors; all else in it is kept.

        Containers in which nothing changes are kept too: for the same tensors, this is `value`
        itself.

        Args:
            new: one value for each of `tensors`, in order; None is allowed.

        Raises:
            HookValueError: there are more or fewer values than tensors.
            HookTypeError: a container does not accept the new values.
        """
        return _fill(self._plan, self.value, self._checked(new), _keep)

    def mirror(self, new: Sequence[object]) -> Any:
        """Like `rebuild`, with None for all that is no tensor: gradients, say, like an output."""
        return _fill(self._plan, self.value, self._checked(new), _drop)

    def refill(self, new: Sequence[object], other: Callable[[object], object]) -> Any:
        """Like `rebuild`, with `other(value)` for each leaf that is no tensor."""
        return _fill(self._plan, self.value, self._checked(new), other)

    def put(self, new: Sequence[object], made: list[tuple[object, object]]) -> Any:
        """Like `rebuild`, but containers that can be changed get the new values themselves.

        Args:
            new: one value for each of `tensors`, in order.
            made: gets those made for containers that cannot be changed, each with that container.
        """

        def write(rule: Rule, value: object, children: list[object]) -> object:
            if rule.write is not None:
                rule.write(value, children)
                return value
            made.append((_close(rule, value, children), value))
            return made[-1][0]

        return _fill(self._plan, self.value, self._checked(new), _keep, write)

    def changeable(self) -> list[object]:
        """The containers in the value that can be changed, each as the object that it is."""
        return list(_changeable(self._plan, self.value))

    def __repr__(self) -> str:
        return f"Tree({describe(self.value)})"

    def _checked(self, new: Sequence[object]) -> Iterator[object]:
        if len(new) != len(self.tensors):
            msg = (
                f"{len(new)} values were given for the {len(self.tensors)} tensors in "
                f"{describe(self.value)}; give one for each, in order (None where there is none)"
            )
            raise HookValueError(msg)
        return iter(new)


# Walking. `above` holds the ids of the containers around the current value: one that is met again
# inside itself is left alone, as a leaf.


def _collect(value: Any, found: list[Tensor], above: set[int]) -> None:
    rule = rule_of(type(value))
    if rule is TENSOR:
        found.append(value)
    elif rule is not OPAQUE and id(value) not in above:
        above.add(id(value))
        for child in rule.children(value):
            _collect(child, found, above)
        above.discard(id(value))


def _collect_named(value: Any, name: str, found: list[tuple[str, Tensor]], above: set[int]) -> None:
    rule = rule_of(type(value))
    if rule is TENSOR:
        found.append((name, value))
    elif rule is not OPAQUE and id(value) not in above:
        above.add(id(value))
        for suffix, child in rule.items(value):
            _collect_named(child, name + suffix, found, above)
        above.discard(id(value))


class _Node:
    """A container as it was found: later changes in it must not shift the tensors' order."""

    __slots__ = ("children", "plans", "rule")

    def __init__(self, rule: Rule, children: list[object], plans: list[_Plan]) -> None:
        self.rule = rule
        self.children = children
        self.plans = plans


_Plan = _Node | bool  # for a leaf: whether it is a tensor


def _plan(value: Any, found: list[Tensor], above: set[int]) -> _Plan:
    rule = rule_of(type(value))
    if rule is TENSOR:
        found.append(value)
        return True
    if rule is OPAQUE or id(value) in above:
        return False
    above.add(id(value))
    children = list(rule.children(value))
    plans = [_plan(child, found, above) for child in children]
    above.discard(id(value))
    return _Node(rule, children, plans)


def _changeable(plan: _Plan, value: object) -> Iterator[object]:
    if isinstance(plan, _Node):
        if plan.rule.write is not None:
            yield value
        for inner, child in zip(plan.plans, plan.children, strict=True):
            yield from _changeable(inner, child)


def _fill(
    plan: _Plan,
    value: object,
    new: Iterator[object],
    other: Callable[[object], object],
    close: Callable[[Rule, object, list[object]], object] | None = None,
) -> object:
    if not isinstance(plan, _Node):
        return next(new) if plan else other(value)
    pairs = zip(plan.plans, plan.children, strict=True)
    children = [_fill(inner, child, new, other, close) for inner, child in pairs]
    if all(map(is_, children, plan.children)):
        return value
    return (close or _close)(plan.rule, value, children)


def _close(rule: Rule, value: object, children: list[object]) -> object:
    try:
        return rule.close(value, children)
    except Exception as error:
        msg = (
            f"cannot put other values into {describe(value)}: {type(error).__name__}: {error}; "
            f"leave the tensors in it as they are, or replace the {type(value).__name__} as a whole"
        )
        raise HookTypeError(msg) from error


def _put_back(value: object, stood_for: dict[int, object], above: set[int]) -> object:
    if id(value) in stood_for:
        return stood_for[id(value)]
    rule = rule_of(type(value))
    if rule is TENSOR or rule is OPAQUE or id(value) in above:
        return value
    above.add(id(value))
    children = list(rule.children(value))
    old = [_put_back(child, stood_for, above) for child in children]
    above.discard(id(value))
    if rule.write is not None and not all(map(is_, old, children)):
        rule.write(value, old)
    return value


def _keep(value: object) -> object:
    return value


def _drop(_: object) -> None:
    return None


# Texts.

_OWN_REPR = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
)
_BRACKETS: dict[type, str] = {tuple: "()", list: "[]", dict: "{}"}
_MAX_DEPTH, _MAX_ITEMS, _MAX_STRING = 4, 8, 60


def describe(value: object, limit: int = 200) -> str:
    """A short text for messages: types and shapes, such as `(float32[3, 10], None, 5)`.

    It reads no tensor's data, calls no foreign `repr` of a value, and never fails.
    """
    text = _describe(value, _MAX_DEPTH)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _describe(value: Any, depth: int) -> str:
    return _try(lambda: _describe_any(value, depth)) or f"<{type(value).__name__}>"


def _describe_any(value: Any, depth: int) -> str:
    rule = rule_of(type(value))
    if rule is TENSOR:
        dtype = _try(lambda: str(value.dtype).removeprefix("torch."))
        shape = _try(lambda: str(list(value.shape)))
        return f"{dtype or type(value).__name__}{shape or '[?]'}"
    if rule is OPAQUE:
        return _describe_other(value)
    return _describe_container(value, rule, depth) if depth else "..."


def _describe_other(value: Any) -> str:
    cls = type(value)
    if cls is str or cls is bytes:
        value = value[:_MAX_STRING]
    return repr(value) if cls in _OWN_REPR else f"<{cls.__name__}>"


def _describe_container(value: object, rule: Rule, depth: int) -> str:
    cls: type = type(value)
    items = list(itertools.islice(rule.items(value), _MAX_ITEMS + 1))
    parts = [_label(suffix, cls) + _describe(child, depth - 1) for suffix, child in items]
    body = ", ".join(parts[:_MAX_ITEMS] + ["..."] * (len(parts) > _MAX_ITEMS))
    if cls is tuple and len(parts) == 1:
        body += ","
    opening, closing = _BRACKETS.get(cls, "()")
    return f"{'' if cls in _BRACKETS else cls.__name__}{opening}{body}{closing}"


def _label(suffix: str, cls: type) -> str:
    if suffix.startswith("."):
        return f"{suffix[1:]}="
    return f"{suffix[1:-1]}: " if issubclass(cls, dict) else ""


def _try(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - a value may refuse any question in any way
        return None
