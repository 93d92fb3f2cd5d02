"""Functions with several outputs, which one autograd node makes or several."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.functions.scenario import Case, leaf, scenario

# ------------------------------------------------------------------- several outputs, one node


@scenario("several outputs", "split mul")
def split_with_an_unused_part() -> Case:
    x = leaf(6, 2)

    def forward():
        first, _, last = x.split(2)
        return first * last

    return Case(forward, [x])


@scenario("several outputs", "chunk unbind add getitem cat")
def chunk_and_unbind() -> Case:
    x = leaf(4, 3)

    def forward():
        one, other = x.chunk(2)
        first, second = other.unbind(0)
        return torch.cat([one, (first + second)[None]])

    return Case(forward, [x])


@scenario("several outputs", "max sort topk var_mean add add")
def values_with_indices() -> Case:
    x = leaf(3, 4)

    def forward():
        biggest, ordered = x.max(1).values, x.sort(1).values
        top, (variance, mean) = x.topk(2).values, torch.var_mean(x, 1)
        return biggest, ordered, top, variance + mean + biggest

    return Case(forward, [x])


@scenario("several outputs", "max_pool2d_with_indices adaptive_max_pool2d_with_indices")
def pooling_with_indices() -> Case:
    x = leaf(1, 2, 6, 6)

    def forward():
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        assert not indices.requires_grad
        return F.adaptive_max_pool2d(y, 2, return_indices=True)[0]

    return Case(forward, [x])


@scenario("several outputs", "embedding embedding_bag")
def embeddings() -> Case:
    w, v = leaf(5, 3), leaf(5, 3)
    index = torch.tensor([[0, 4], [1, 1]])
    return Case(lambda: (F.embedding(index, w), F.embedding_bag(index, v)), [w, v])


@scenario("several outputs", "aminmax linalg_eigh abs")
def named_tuples() -> Case:
    x = leaf(3, 3)

    def forward():
        low, high = torch.aminmax(x)
        values, vectors = torch.linalg.eigh(x)
        return low, high, values, vectors.abs()

    return Case(forward, [x])


# --------------------------------------------------------------- several outputs, several nodes


@scenario("several nodes", "multi_head_attention_forward add")
def multi_head_attention_with_weights() -> Case:
    x, w_in, w_out = leaf(5, 2, 4), leaf(12, 4), leaf(4, 4)
    zeros = torch.zeros(12), torch.zeros(4)

    def forward():
        out, weights = F.multi_head_attention_forward(
            x, x, x, 4, 2, w_in, zeros[0], None, None, False, 0.0, w_out, zeros[1]
        )
        return out, weights + 1

    return Case(forward, [x, w_in, w_out])


@scenario("several nodes", "(zeros) (zeros) lstm")
def lstm() -> Case:
    layer, x = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True), leaf(2, 5, 3)

    def forward():
        out, (hidden, cell) = layer(x)
        return out, hidden, cell

    return Case(forward, [x, *layer.parameters()])


@scenario("several nodes", "(zeros) (zeros) lstm")
def lstm_of_which_one_output_is_used() -> Case:
    layer, x = torch.nn.LSTM(3, 4), leaf(5, 2, 3)
    return Case(lambda: layer(x)[0], [x, *layer.parameters()])


@scenario("several nodes", "(zeros) gru")
def gru() -> Case:
    layer, x = torch.nn.GRU(3, 4, bidirectional=True), leaf(5, 2, 3)
    return Case(lambda: layer(x), [x, *layer.parameters()])


@scenario("several nodes", "tensor_split mul mul")
def tensor_split() -> Case:
    x = leaf(7)

    def forward():
        one, _, three = x.tensor_split(3)
        return one * 2, three * 3

    return Case(forward, [x])


@scenario("several nodes", "meshgrid broadcast_tensors add mul")
def meshgrid_and_broadcast() -> Case:
    x, y, z = leaf(3), leaf(4), leaf(4)

    def forward():
        one, other = torch.meshgrid(x, y, indexing="ij")
        first, second = torch.broadcast_tensors(z, other)
        return one + first, second * one

    return Case(forward, [x, y, z])


@scenario("several nodes", "_foreach_add _foreach_mul stack")
def foreach() -> Case:
    x, y = leaf(3), leaf(3)

    def forward():
        return torch.stack(torch._foreach_mul(torch._foreach_add([x, y], 1), 2))

    return Case(forward, [x, y])
