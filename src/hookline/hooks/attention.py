"""Attention weights made visible, where torch computes attention in one function."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

import torch
from torch import Tensor, nn

from hookline.core.patterns import FunctionPattern
from hookline.core.records import Silent
from hookline.core.thread import module_switch
from hookline.functions.call import Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.capture import Capture
from hookline.hooks.capturing import Capturing, HoldOptions, check_options
from hookline.hooks.watches import Watches
from hookline.torch_base.given import Given
from hookline.torch_base.readable import readable
from hookline.torch_base.select import Pattern, check_model, selection_in
from hookline.torch_base.selection import Choice, distinct

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall

_FUNCTION: Final = "scaled_dot_product_attention"
_SEEN: Final = (
    f"Weights are seen where a module calls {_FUNCTION} itself: with transformers, by "
    "attn_implementation='sdpa'; nn.MultiheadAttention, which calls it inside of another function, "
    "gives its own: need_weights=True"
)


class AttentionHook(Capturing, FunctionHook):
    """Captures the attention weights that `scaled_dot_product_attention` does not give.

    [attention][hookline.attention] is the short way, and says how they are computed.

    Args:
        **options: see `attention`.

    Attributes:
        captured: the weights so far, by the path of the module that calls the function.

    Raises:
        HookTypeError: an option is of the wrong type.
        HookValueError: an option has an unknown value.

    Example:
        >>> import torch
        >>> from torch.nn import functional as F
        >>> from hookline.function_hooks import AttentionHook
        >>> query = key = value = torch.zeros(1, 2, 4)
        >>> with AttentionHook() as hook:
        ...     _ = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        >>> hook.captured["scaled_dot_product_attention"].output
        tensor([[[1.0000, 0.0000],
                 [0.5000, 0.5000]]])
    """

    def __init__(self, **options: Unpack[HoldOptions]) -> None:
        super().__init__(what="output", **options)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Compute the weights once more."""
        if function.name != _FUNCTION or function.recomputing:
            return
        weights = _weights_in(function)
        if weights is not None:
            path = function.module_path
            place = self._place(function, path, function.name if path is None else None)
            self._take_output(function, place, weights)


class AttentionCapture(Capture):
    """The attention weights of a model, while they are being captured and afterwards.

    A mapping by module path, as [Captures][hookline.Captures]: `.output` is the weights of the
    only call, `.outputs` those of all. Made by [attention][hookline.attention]; a context manager.
    """

    everything = False

    def silent(self) -> list[Silent]:
        """The selected modules that never called the function, with likely causes.

        Where all modules were selected, most have no attention; these are no reason for a row.
        """
        return [] if self.everything and len(self) else self._never()

    def _never(self) -> list[Silent]:
        return [replace(row, advice=f"{row.advice}. {_SEEN}") for row in super().silent()]

    def _why(self, name: str) -> str:
        for row in self._never():
            if row.path == f"{name}:{_FUNCTION}":
                return f": {row.cause}; {row.advice}"
        return super()._why(name)


def attention(
    model: nn.Module, *patterns: Pattern, **options: Unpack[HoldOptions]
) -> AttentionCapture:
    """Capture the attention weights of a model that computes attention in one function.

    `torch.nn.functional.scaled_dot_product_attention` (what `transformers` uses by default) gives
    no weights. They are computed once more from its inputs: the softmax of the scaled products
    of queries and keys, masked as there, in float32 (float64 for float64 inputs), detached.
    Rows that are masked altogether are zero. The result of the model, gradients and random
    numbers stay as they are. Dropout is left out: the weights are those before it.

    Active at once, until `close()` or the end of `with`.

    Args:
        model: the model.
        patterns: the modules whose forward calls the function, as [select][hookline.select] takes
            them; all that do, by default.
        **options: see `HoldOptions`.

            * calls: hold `"all"` calls of each module, only the `"first"` or only the `"last"`.
            * reduce: a function of the weights whose result is held in their place.
            * dtype: what to convert them to.
            * device: where to move them.
            * limit: the most bytes to hold.
            * overflow: beyond that, raise an `"error"`, or drop the `"oldest"` calls.

    Returns:
        The weights (batch × heads × queries × keys), by module path; see
        [capture][hookline.capture].

    Raises:
        SelectionError: a pattern matches nothing.
        HookTypeError: an option is of the wrong type.
        HookValueError: an option has an unknown value.
        CaptureLimitError: from the forward, when the limit is reached.

    Example:
        >>> import torch, hookline
        >>> class Attend(torch.nn.Module):
        ...     def forward(self, x):
        ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), Attend())
        >>> with hookline.attention(model) as weights:
        ...     _ = model(torch.ones(1, 2, 4))
        >>> weights["1"].output
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])
    """
    check_options("attention", options, HoldOptions.__annotations__)
    hook = AttentionHook(**options)
    with module_switch.held():
        given = Given(check_model(model))
        selected = selection_in(model, given.root.seats, patterns).choices
        chosen = distinct(_address(choice) for choice in selected)
        hook.into(hook.store, None, given)
        watches = Watches(given, [(hook, chosen)], "attention")
    paths = tuple(choice.path.rpartition(":")[0] for choice in chosen)
    capture = AttentionCapture(hook.store, watches, paths, None)
    capture.everything = not patterns
    return capture


def _address(choice: Choice) -> Choice:
    if choice.function is not None:
        return choice
    return choice._replace(
        path=f"{choice.path}:{_FUNCTION}", function=FunctionPattern(_FUNCTION), exact=False
    )


def _weights_in(function: FunctionCall) -> Tensor | None:
    """The weights of a call, or None if its inputs have no numbers that can be read."""
    arguments = _arguments(*function.args, **function.kwargs)
    if readable(arguments["query"]) is None or readable(arguments["key"]) is None:
        return None
    device = arguments["query"].device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        return attention_weights(**arguments)


def _arguments(  # the signature of torch's function
    query: Tensor,
    key: Tensor,
    value: Tensor,  # noqa: ARG001 - as above
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - as above
    is_causal: bool = False,  # noqa: FBT001, FBT002 - as above
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002 - as above
) -> dict[str, Any]:
    return {
        "query": query,
        "key": key,
        "mask": attn_mask,
        "is_causal": is_causal,
        "scale": scale,
        "grouped": enable_gqa,
    }


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Tensor:
    """The weights that `scaled_dot_product_attention` multiplies the values by.

    Args:
        query: (…, heads, L, E).
        key: (…, heads, S, E).
        mask: which keys take part (bool), or what is added to the products.
        is_causal: a query sees no later keys.
        scale: of the products; one by the root of E by default.
        grouped: several heads of queries share one of keys.

    Returns:
        The weights (…, heads, L, S), in float32, or float64 where the inputs are.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    if grouped and query.ndim > 2:  # noqa: PLR2004 - there is a dimension of heads
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    products = query.to(wide) @ key.to(wide).transpose(-2, -1) * factor
    allowed = _allowed(mask, products, is_causal=is_causal)
    if allowed is not None:
        products = products.masked_fill(~allowed, -math.inf)
    elif mask is not None:
        products = products + mask.to(wide)
    nothing = products.isneginf().all(-1, keepdim=True)
    return products.softmax(-1).masked_fill(nothing, 0)


def _allowed(mask: Tensor | None, products: Tensor, *, is_causal: bool) -> Tensor | None:
    """Which keys take part, where that is a matter of yes and no."""
    queries, keys = products.shape[-2:]
    # Not imported here, since the whole compiler comes with it.
    bias: Any = sys.modules.get("torch.nn.attention.bias")
    if bias is not None and isinstance(mask, bias.CausalBias):
        lower = getattr(mask, "variant", None) is bias.CausalVariant.LOWER_RIGHT
        return products.new_ones(queries, keys, dtype=torch.bool).tril(
            keys - queries if lower else 0
        )
    if is_causal:
        return products.new_ones(queries, keys, dtype=torch.bool).tril()
    return mask if mask is not None and mask.dtype is torch.bool else None
