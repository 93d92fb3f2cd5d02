"""What counts as a function, and the readable name of each, in both directions."""

from __future__ import annotations

import re
import types
from enum import Enum, auto
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from hookline.torch_base.private import all_schemas, forward_class, operator_schemas

ALIASES: Final = {
    "__and__": "bitwise_and",
    "__eq__": "eq",
    "__floordiv__": "floor_divide",
    "__getitem__": "getitem",
    "__iand__": "bitwise_and_",
    "__ilshift__": "bitwise_left_shift_",
    "__invert__": "bitwise_not",
    "__ior__": "bitwise_or_",
    "__ipow__": "pow_",
    "__irshift__": "bitwise_right_shift_",
    "__ixor__": "bitwise_xor_",
    "__lshift__": "bitwise_left_shift",
    "__ne__": "ne",
    "__or__": "bitwise_or",
    "__rand__": "bitwise_and",
    "__rdiv__": "rdiv",
    "__reversed__": "flip",
    "__rfloordiv__": "floor_divide",
    "__rlshift__": "bitwise_left_shift",
    "__rmatmul__": "matmul",
    "__rmod__": "remainder",
    "__ror__": "bitwise_or",
    "__rpow__": "rpow",
    "__rrshift__": "bitwise_right_shift",
    "__rshift__": "bitwise_right_shift",
    "__rsub__": "rsub",
    "__rxor__": "bitwise_xor",
    "__setitem__": "setitem",
    "__xor__": "bitwise_xor",
}
"""Readable names where torch's are those of Python's operators."""

_PROPERTIES: Final = frozenset({"T", "H", "mT", "mH", "real", "imag"})
"""The properties that compute a tensor; reading any other is no function."""

# Python functions and methods of torch that take part in the override protocol but neither make
# nor write a tensor, or only print, store, compare or describe one. C functions are told by schema.
_NO_FUNCTION: Final = frozenset(
    # One string, since a list of names reads better as text.
    """
    __array__ __array_wrap__ __bool__ __complex__ __contains__ __deepcopy__ __delattr__ __dir__
    __dlpack__ __dlpack_device__ __float__ __format__ __getstate__ __hash__ __index__ __int__
    __iter__ __len__ __long__ __nonzero__ __reduce__ __reduce_ex__ __repr__ __setstate__ _is_view
    _is_zerotensor _make_subclass _make_wrapper_subclass _record_function_enter
    _record_function_enter_new _record_function_exit _set_grad_enabled _set_view_replay_enabled
    _typed_storage array_wrap as_subclass backward broadcast_shapes can_cast const_data_ptr data_ptr
    dim dim_order element_size get_default_dtype get_device grad has_names is_contiguous is_shared
    item len module_load names ndimension nelement numel numpy record_stream refine_names
    register_hook register_post_accumulate_grad_hook requires_grad_ result_type retain_grad
    set_printoptions share_memory_ size storage storage_offset storage_type stride tolist type
    typed_storage untyped_storage
    """.split()  # noqa: SIM905
)
_QUESTIONS: Final = ("is_", "_is_", "_has_")


class Kind(Enum):
    """What a function is to the hooks."""

    PASSED = auto()
    """No function: it is called as it is."""
    FUNCTION = auto()
    """A function with forward events."""


PASSED: Final = Kind.PASSED
"""The member as a plain name, for the hot path; see `hookline.core.phases`."""


class Class(NamedTuple):
    """How a callable of torch is treated, and its name."""

    kind: Kind
    name: str


def classify(func: Any) -> Class:
    """Tell what a callable of torch is.

    It is a function if by its schema it returns or writes a tensor; Python functions have none
    and count, but for those known to do neither.
    """
    if isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - `torch.ops.aten.add.Tensor`
        return _classify_overloads([func])
    if isinstance(func, torch._ops.OpOverloadPacket):  # noqa: SLF001 - `torch.ops.aten.add`
        return _classify_overloads([getattr(func, name) for name in func.overloads()])
    name: str = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__", "__delete__"):
        return _classify_property(func, name)
    readable = ALIASES.get(name, name)
    if name in _NO_FUNCTION or name.startswith(_QUESTIONS):
        return Class(Kind.PASSED, readable)
    # An operator such as `aten::__getitem__` is that of TorchScript's lists and texts.
    without = isinstance(func, types.FunctionType) or name.startswith("__")
    schemas = () if without else operator_schemas(f"aten::{name}")
    return Class(_by_schemas(schemas) if schemas else Kind.FUNCTION, readable)


def _classify_overloads(overloads: list[Any]) -> Class:
    schemas = [overload._schema for overload in overloads]  # noqa: SLF001
    return Class(_by_schemas(schemas), _short(schemas[0].name))


def _classify_property(func: Any, name: str) -> Class:
    owner = getattr(getattr(func, "__self__", None), "__name__", name)
    computes = name == "__get__" and owner in _PROPERTIES
    return Class(Kind.FUNCTION if computes else Kind.PASSED, owner)


def _by_schemas(schemas: Any) -> Kind:
    touches = any(
        any("Tensor" in str(value.type) for value in schema.returns)
        or any(arg.alias_info is not None and arg.alias_info.is_write for arg in schema.arguments)
        for schema in schemas
    )
    return Kind.FUNCTION if touches else Kind.PASSED


def _short(name: str) -> str:
    name = name.rpartition("::")[2]
    return ALIASES.get(name, name)


def writes(name: str) -> bool:
    """Whether a function writes into its first tensor: by its name, as torch's conventions go."""
    return name == "setitem" or (name.endswith("_") and not name.endswith("__"))


# Functions that nobody recorded are named after their autograd node.

# `MulBackward0`, `SelectBackwardAutogradNestedTensor0`, `ForeachMulBackward1Scalar`.
_NODE: Final = re.compile(r"(?P<stem>.+)Backward\w*")


def name_of_node(node: Any) -> str:
    """The function that made an autograd node: `mul` for `MulBackward0`.

    A custom `autograd.Function` goes by its class name. Upper and lower case and underscores are
    not told apart, since node names have them in another way.
    """
    custom = forward_class(node)
    if custom is not None:
        return custom.__name__
    plain = node.name().rpartition("::")[2]
    match = _NODE.fullmatch(plain)
    stem = match["stem"] if match else plain
    name = _operators().get(_letters(stem), stem)
    return ALIASES.get(name, name)


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _operators() -> dict[str, str]:
    names = {s.name.removeprefix("aten::") for s in all_schemas() if s.name.startswith("aten::")}
    # Of several names with the same letters the plainest is kept: it comes last.
    return {_letters(n): n for n in sorted(names, key=lambda n: n.count("_"), reverse=True)}
