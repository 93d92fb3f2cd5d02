"""How many FLOPs an operator makes: torch's own formulas, and those that it lacks.

A multiplication and the addition that goes with it count as two, as in torch: a product of an m×k
by a k×n matrix makes 2·m·n·k. What is done element by element (biases, activations, norms) is
not counted, nor does a mask save anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import flop_counter

from hookline.torch_base.private import HigherOrderOperator

_aten: Final = torch.ops.aten


class NotCounted(Exception):  # noqa: N818 - no error, a way out
    """The operator does matrix work, and nobody knows how much; the message says why."""


def flops_of(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """The FLOPs of an operator that has run.

    Args:
        operator: the operator, an overload such as `aten.mm.default`.
        args: its positional arguments.
        kwargs: its keyword arguments.
        out: what it returned.

    Returns:
        The number; 0 for one that does no matrix work.

    Raises:
        NotCounted: it may do matrix work, and there is no formula for it.
    """
    packet = _packet_of(operator)
    # Torch's table has what the program registered (`register_flop_formula`), too.
    formula = _OWN.get(packet) or flop_counter.flop_registry.get(packet)
    if formula is None:
        if _works_with_matrices(packet):
            msg = "no formula"
            raise NotCounted(msg)
        return 0
    if not all(_is_dense(value) for value in (*args, *kwargs.values())):
        msg = "not dense"
        raise NotCounted(msg)
    try:
        return int(formula(*args, **kwargs, out_val=out))
    except Exception as error:
        msg = f"the formula raised {type(error).__name__}: {error}"
        raise NotCounted(msg) from error


def name_of(operator: Any) -> str:
    """The operator as torch writes it, without its overload: `aten.mm`."""
    return str(_packet_of(operator))


def _packet_of(operator: Any) -> Any:
    return operator if isinstance(operator, HigherOrderOperator) else operator.overloadpacket


def _is_dense(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return True
    return value.layout not in _SPARSE and not value.is_nested


_SPARSE: Final = frozenset(
    {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)


# Formulas that torch lacks, with the arguments of their operators. Those of torch take `out_val`.

_Formula = Callable[..., int]


def _matrix_vector(matrix: Tensor, *_: Any, **__: Any) -> int:
    """`mv`: an m×n matrix by a vector, 2·m·n."""
    return 2 * matrix.numel()


def _added_matrix_vector(_: Tensor, matrix: Tensor, *__: Any, **___: Any) -> int:
    """`addmv`: as `mv`."""
    return 2 * matrix.numel()


def _inner(vector: Tensor, *_: Any, **__: Any) -> int:
    """`dot`, `vdot`: n products and their sum, 2·n."""
    return 2 * vector.numel()


def _added_product(_: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> int:
    """`addbmm`, `_addmm_activation`: (b×)m×k by (b×)k×n, 2·b·m·k·n."""
    return 2 * a.numel() * b.shape[-1]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Attention over b·h heads of s queries and t keys: the scores and the weighted values.

    The scores are s×d by d×t, the outputs s×t by t×e: 2·b·h·s·t·(d + e), as torch counts the
    same operator on other devices. Heads of keys that several of queries share are used by each.
    """
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    _: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any
) -> int:
    """The backward of attention, as torch counts it: five products of that size.

    The scores again (s·d·t) with the gradients of queries and keys from those of the scores
    (2·s·d·t), and the gradients of the weights and values (2·s·e·t): 2·b·h·s·t·(3·d + 2·e).
    """
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])


def _recurrent(inputs: Tensor, weights: Iterable[Any]) -> int:
    """Every weight matrix times one vector, for each time step of each sequence.

    For an LSTM layer of n inputs and h states these are 4h×n and 4h×h, so T steps of B sequences
    make 2·T·B·4·h·(n + h); a GRU has 3 in the place of 4, a plain RNN 1, a projection a matrix
    of its own. Steps are counted by the inputs, so padding that was packed away is not counted.
    """
    steps = inputs.numel() // inputs.shape[-1]
    matrices = (w for w in weights if isinstance(w, Tensor) and w.dim() == 2)  # noqa: PLR2004
    return 2 * steps * sum(w.numel() for w in matrices)


def _layer(inputs: Tensor, *weights: Any, **_: Any) -> int:
    """`mkldnn_rnn_layer`: the input and recurrent weights of one layer in one direction."""
    return _recurrent(inputs, weights[:2])


def _layer_backward(inputs: Tensor, *weights: Any, **_: Any) -> int:
    """Each product of the forward has two gradients of its size, of the weight and the vector."""
    return 2 * _recurrent(inputs, weights[:2])


def _layers(inputs: Tensor, weights: Iterable[Tensor], *_: Any, **__: Any) -> int:
    """`_cudnn_rnn`, `miopen_rnn`: all weights of all layers and directions."""
    return _recurrent(inputs, weights)


def _layers_backward(inputs: Tensor, weights: Iterable[Tensor], *rest: Any, **_: Any) -> int:
    """The gradients of the vectors, and of the weights where the mask, the last, asks for them."""
    return _recurrent(inputs, weights) * (1 + bool(rest[-1][3]))


_OWN: Final[dict[Any, _Formula]] = {
    _aten.mv: _matrix_vector,
    _aten.addmv: _added_matrix_vector,
    _aten.dot: _inner,
    _aten.vdot: _inner,
    _aten.addbmm: _added_product,
    _aten._addmm_activation: _added_product,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,  # noqa: SLF001
    _aten.mkldnn_rnn_layer: _layer,
    _aten.mkldnn_rnn_layer_backward: _layer_backward,
    _aten._cudnn_rnn: _layers,  # noqa: SLF001
    _aten._cudnn_rnn_backward: _layers_backward,  # noqa: SLF001
    _aten.miopen_rnn: _layers,
    _aten.miopen_rnn_backward: _layers_backward,
}


# Operators without a formula: torch's by their names; of others nothing is known.

_TORCHS: Final = re.compile(
    r"aten|prims?|\w*prims|_?inductor|_?c10d\w*|_?dtensor|fsdp|symm_mem|streams|profiler|export|"
    r"_?quanti\w+|sparse|mkl|mkldnn\w*|onednn|onnx|prepacked|static_runtime|_native|debug_mode_ops"
)
_MATRIX: Final = re.compile(
    r"(?:^|_)(?:[a-z]*mm|matmul\w*|[a-z]*mv|v?dot|linear|q?linear|convolution|q?conv\dd?|conv|"
    r"attention|linalg|cholesky|svd|qr|solve|inverse|cdist|pdist|euclidean|trilinear|"
    r"rnn|lstm|gru|fft|orgqr|ormqr|geqrf|lu|spsolve|transformer)(?:_|$)"
)
_NO_WORK: Final = re.compile(
    r"^_thnn_|vector_norm|cross|check_errors|diagonal|unpack|prepack|slice_inverse|plan_cache|"
    r"(?:flatten|reorder|convert|pack|quantize)\w*_weight|fftfreq|fftshift"
)


@cache
def _works_with_matrices(packet: Any) -> bool:
    if isinstance(packet, HigherOrderOperator):
        return True
    space, _, name = str(packet).partition(".")
    if not _TORCHS.fullmatch(space):
        return True
    return bool(_MATRIX.search(name)) and not _NO_WORK.search(name)
