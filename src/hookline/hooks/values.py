"""A tensor's values in a few words."""

from __future__ import annotations

import torch
from torch import Tensor

from hookline.torch_base.readable import in_a_trace, is_sharded, local_part, stored_values
from hookline.torch_base.tree import describe


def value_text(tensor: Tensor | None) -> str:
    """Shape, dtype, device and statistics: `float32[2, 3] cpu min=-1 mean=0 max=1 std=1`.

    NaN and Inf are counted, and left out of the statistics. Tensors whose values cannot be read
    (meta, fake, inside a transform or a trace) show shape, dtype and device only. Of a sharded one,
    the values are those in this process: all would have to be asked for in every process.
    """
    if tensor is None:
        return "None"
    where = f"{describe(tensor)} {tensor.device}"
    if is_sharded(tensor):
        where += " sharded"
    try:
        return where + _statistics(tensor)
    except (RuntimeError, NotImplementedError, TypeError):  # values that can't be read, as above
        return where


def _statistics(tensor: Tensor) -> str:
    if in_a_trace(tensor) or not tensor.numel():
        return ""
    with torch.no_grad():
        values = local_part(tensor.detach())
        if values.layout != torch.strided:
            values = stored_values(values)
        values = (values.abs() if values.is_complex() else values).double().flatten()
        nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
        finite = values[values.isfinite()]
        text = ""
        if finite.numel():
            low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
            spread = float(finite.std(correction=0))
            text = f" min={low:.4g} mean={mean:.4g} max={high:.4g} std={spread:.4g}"
    return text + (f" nan={nan}" if nan else "") + (f" inf={inf}" if inf else "")
