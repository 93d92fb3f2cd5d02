"""Calls whose values need not be finite, because the user says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch import Tensor, nn

from hookline.core.patterns import FunctionPattern, PathPattern, split_address
from hookline.errors import HookTypeError
from hookline.functions.call import FunctionCall

Allowance: TypeAlias = (
    str | re.Pattern[str] | type[nn.Module] | Callable[[Any, str, Tensor | None], bool]
)
_Rule: TypeAlias = Callable[[Any, str, Tensor | None], bool]


def allowance(given: Allowance | Iterable[Allowance]) -> _Rule:
    """One rule out of many: whether the tensor of a call (call, leaf, tensor) may be as it is.

    Args:
        given: patterns or a sequence of them. A text is the path of modules, the address of
            functions (`**.attn:log`) or the name of a function; a regular expression is matched
            against a call's label in full; a class means modules of it; anything else is called
            with the call, the leaf's path and the tensor (None if it is gone).

    Raises:
        HookTypeError: it is something else.
        SelectionError: a text is no pattern.
    """
    if isinstance(given, str | re.Pattern | type) or callable(given):
        given = (given,)
    if not isinstance(given, Iterable):
        raise HookTypeError(_not_understood(given))
    rules = [_rule(each) for each in given]
    return lambda call, leaf, tensor: any(rule(call, leaf, tensor) for rule in rules)


def _not_understood(given: object) -> str:
    return (
        "allow= takes paths, addresses, regular expressions, module classes and functions of "
        f"(call, leaf, tensor), not {given!r}"
    )


def _rule(given: Any) -> _Rule:
    if isinstance(given, str):
        return _of_call(_text_rule(given))
    if isinstance(given, re.Pattern):
        return _of_call(lambda call: given.fullmatch(call.label) is not None)
    if isinstance(given, type) and issubclass(given, nn.Module):
        return _of_call(
            lambda call: not isinstance(call, FunctionCall) and isinstance(call.module, given)
        )
    if callable(given) and not isinstance(given, type):
        return lambda call, leaf, tensor: bool(given(call, leaf, tensor))
    raise HookTypeError(_not_understood(given))


def _of_call(rule: Callable[[Any], bool]) -> _Rule:
    """A rule that asks for the call only."""
    return lambda call, *_: rule(call)


def _text_rule(text: str) -> Callable[[Any], bool]:
    address = split_address(text)
    if address is not None:
        path, function = PathPattern.of(address[0]), address[1]
        return lambda call: (
            isinstance(call, FunctionCall)
            and path.matches(call.module_path or "")
            and function.matches(call.name, call.index)
        )
    path, name = PathPattern.of(text), FunctionPattern(text)

    def rule(call: Any) -> bool:
        if not isinstance(call, FunctionCall):
            return path.matches(call.path)
        inside = call.module_path is not None and path.matches(call.module_path)
        return inside or name.names(call.name)

    return rule
