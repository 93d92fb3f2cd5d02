"""Kinds of containers: how each is opened, and closed again with other values in it.

`torch.utils._pytree` matches exact types only, and what is registered there stays registered for
the whole process. So it is asked about the types it knows, and the rules for dataclasses and for
subclasses of containers stand here. [tree][hookline.torch_base.tree] walks with them.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of container is opened and closed.

    Attributes:
        children: the values in a container.
        suffixes: for each of them, what a path appends to read it: `[0]`, `.logits`.
        close: makes a container of the same type, with other children, from a container.
        yields: whether a registration in `torch.utils._pytree` is used in its place.
        write: puts other children into a container itself; None where it cannot be changed.
    """

    children: Callable[[Any], Iterable[object]]
    suffixes: Callable[[Any], Iterable[str]]
    close: Callable[[Any, list[object]], object]
    yields: bool = False
    write: Callable[[Any, list[object]], None] | None = None

    def items(self, value: object) -> Iterator[tuple[str, object]]:
        """The children, each with its suffix."""
        return zip(self.suffixes(value), self.children(value), strict=False)


def _nothing(_: object) -> tuple[()]:
    return ()


def _unchanged(value: object, _: list[object]) -> object:
    return value


# The two kinds of leaves; compare with `is`.
TENSOR = Rule(_nothing, _nothing, _unchanged)
OPAQUE = Rule(_nothing, _nothing, _unchanged)


def rule_of(cls: type) -> Rule:
    """The rule for values of exactly this type."""
    rule = _own_rule(cls)
    if rule is not None and not rule.yields:
        return rule
    node = _pytree.SUPPORTED_NODES.get(cls)
    return _registered(node) if node else rule or OPAQUE


@lru_cache(maxsize=1024)  # bounded, since it keeps the classes alive
def _own_rule(cls: type) -> Rule | None:
    if issubclass(cls, Tensor):
        return TENSOR
    if issubclass(cls, torch.nn.Module | torch.Size):
        return OPAQUE
    for base, make in _MAKERS.items():
        if issubclass(cls, base):
            return make(cls)
    return _dataclass_rule(cls) if is_dataclass(cls) else None


@lru_cache(maxsize=1024)
def _registered(node: _pytree.NodeDef) -> Rule:
    def children(value: object) -> Iterable[object]:
        return node.flatten_fn(value)[0]

    def suffixes(value: object) -> Iterable[str]:
        if node.flatten_with_keys_fn is None:
            return _indices(value)
        return [str(key) for key, _ in node.flatten_with_keys_fn(value)[0]]

    def close(value: object, new: list[object]) -> object:
        return node.unflatten_fn(new, node.flatten_fn(value)[1])

    write = partial(_write_items, deque) if node.type is deque else None
    return Rule(children, suffixes, close, write=write)


def _tuple_rule(cls: type) -> Rule:
    if _pytree.is_structseq_class(cls):
        return Rule(tuple.__iter__, _attributes("__match_args__"), _close_structseq)
    if _pytree.is_namedtuple_class(cls):
        return Rule(tuple.__iter__, _attributes("_fields"), _close_tuple)
    return Rule(tuple.__iter__, _indices, _close_tuple, yields=cls is not tuple)


def _list_rule(cls: type) -> Rule:
    write = partial(_write_items, list)
    return Rule(list.__iter__, _indices, _close_list, cls is not list, write)


def _dict_rule(base: type[Any], cls: type) -> Rule:
    close, write = partial(_close_dict, base), partial(_write_dict, base)
    if is_dataclass(cls):
        # A ModelOutput: its registered constructor would drop the fields that become None.
        return Rule(base.values, partial(_keys, base, by_name=True), close, write=write)
    return Rule(base.values, partial(_keys, base), close, cls is not base, write)


def _user_rule(_: type) -> Rule:
    return Rule(
        lambda value: [value.data],
        lambda _: [""],
        _close_user,
        yields=True,
        write=_write_user,
    )


def _dataclass_rule(cls: type) -> Rule:
    names = tuple(field.name for field in fields(cls))

    def present(value: object) -> list[str]:
        return [name for name in names if hasattr(value, name)]

    def write(value: object, new: list[object]) -> None:
        for name, child in zip(present(value), new, strict=True):
            if getattr(value, name) is not child:
                object.__setattr__(value, name, child)

    frozen = cls.__dataclass_params__.frozen
    return Rule(
        lambda value: [getattr(value, name) for name in present(value)],
        lambda value: [f".{name}" for name in present(value)],
        lambda value, new: _close_dataclass(value, dict(zip(present(value), new, strict=True))),
        yields=True,
        write=None if frozen else write,
    )


# The first that fits is taken.
_MAKERS: dict[type, Callable[[type], Rule]] = {
    tuple: _tuple_rule,
    list: _list_rule,
    OrderedDict: partial(_dict_rule, OrderedDict),
    defaultdict: partial(_dict_rule, defaultdict),
    dict: partial(_dict_rule, dict),
    UserDict: _user_rule,
    UserList: _user_rule,
}


# Suffixes of paths.


def _indices(_: object) -> Iterator[str]:
    return (f"[{index}]" for index in itertools.count())


def _attributes(listing: str) -> Callable[[object], list[str]]:
    return lambda value: [f".{name}" for name in getattr(type(value), listing)]


def _keys(base: type[Any], value: object, *, by_name: bool = False) -> Iterator[str]:
    for key in base.keys(value):
        named = by_name and isinstance(key, str) and key.isidentifier()
        yield f".{key}" if named else f"[{_key(key)}]"


def _key(key: object) -> str:
    try:
        return f"<{type(key).__name__}>" if isinstance(key, Tensor) else repr(key)
    except Exception:  # noqa: BLE001 - a key's own repr may raise anything; a path is needed still
        return f"<{type(key).__name__}>"


# Closing calls no constructor and no method of the class: they may refuse the new values, want
# other arguments, or do more than once what should be done once.


def _close_structseq(value: Any, new: list[object]) -> object:
    return type(value)(new)  # types of this kind are made by C code, and nobody can override them


def _close_tuple(value: tuple[object, ...], new: list[object]) -> object:
    return _with_state_of(value, tuple.__new__(type(value), new))


def _close_list(value: list[object], new: list[object]) -> object:
    made = _with_state_of(value, list.__new__(type(value)))
    list.extend(made, new)
    return made


def _close_user(value: Any, new: list[object]) -> object:
    made = _with_state_of(value, object.__new__(type(value)))
    made.__dict__["data"] = new[0]
    return made


def _close_dataclass(value: object, new: dict[str, object]) -> object:
    made = _with_state_of(value, object.__new__(type(value)))
    for name, child in new.items():
        object.__setattr__(made, name, child)
    return made


def _close_dict(base: Any, value: Any, new: list[object]) -> object:
    made = base.__new__(type(value))
    if base is defaultdict:
        made.default_factory = value.default_factory
    for key, child in zip(base.keys(value), new, strict=True):
        base.__setitem__(made, key, child)
    return _with_attributes_of(base, value, made)


def _with_attributes_of(base: type[Any], value: Any, made: Any) -> object:
    """Give a new dict the attributes of the old, where those that repeat its items follow them."""
    if getattr(value, "__dict__", None) is value:  # as in `self.__dict__ = self`
        object.__setattr__(made, "__dict__", made)
        return made
    _with_state_of(value, made)
    attributes = getattr(made, "__dict__", {})
    for key, old in base.items(value):
        if key in attributes and attributes[key] is old:
            attributes[key] = base.__getitem__(made, key)
    return made


def _with_state_of(value: object, made: Any) -> Any:
    state: Any = object.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, item in (attributes or {}).items():
        # What a cached property keeps was computed from the old values.
        if not isinstance(getattr(type(value), name, None), cached_property):
            made.__dict__[name] = item
    for name, item in (slots or {}).items():
        object.__setattr__(made, name, item)
    return made


# Writing, too, calls no method of the class, and touches only what changes.


def _write_items(base: type[Any], value: Any, new: list[object]) -> None:
    for index, (old, child) in enumerate(zip(list(base.__iter__(value)), new, strict=True)):
        if old is not child:
            base.__setitem__(value, index, child)


def _write_dict(base: type[Any], value: Any, new: list[object]) -> None:
    attributes = getattr(value, "__dict__", {})
    for (key, old), child in zip(list(base.items(value)), new, strict=True):
        if old is not child:
            repeated = key in attributes and attributes[key] is old
            base.__setitem__(value, key, child)
            if repeated:
                attributes[key] = child


def _write_user(value: Any, new: list[object]) -> None:
    if value.data is not new[0]:
        value.__dict__["data"] = new[0]
