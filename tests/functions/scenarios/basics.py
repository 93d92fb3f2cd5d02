"""Plain functions: operators, methods, functions with one autograd node or many."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.functions.scenario import Case, leaf, scenario

# ------------------------------------------------------------------------------------ basics


@scenario("basics", "linear relu sum")
def function_calls() -> Case:
    x, w, b = leaf(4, 3), leaf(2, 3), leaf(2)
    return Case(lambda: F.relu(F.linear(x, w, b)).sum(), [x, w, b])


@scenario("basics", "add sub mul div neg pow matmul sum")
def operators() -> Case:
    x, y, w = leaf(2, 3), leaf(2, 3), leaf(3, 4)
    return Case(lambda: torch.sum((-((x + y - 1) * y / 3)) ** 2 @ w), [x, y, w])


@scenario("basics", "rsub rpow rdiv add mul abs")
def reflected_operators() -> Case:
    x = leaf(3)
    return Case(lambda: abs(2 * (1 + 2 / 3 ** (1 - x))), [x])


@scenario("basics", "matmul matmul sum")
def broadcast_matmul() -> Case:
    x, y, z = leaf(2, 1, 3, 4), leaf(5, 4, 2), leaf(2)
    return Case(lambda: torch.matmul(x @ y, z).sum(), [x, y, z])


@scenario("basics", "mul sin cos add mul add")
def a_diamond() -> Case:
    x = leaf(3)

    def forward():
        y = x * 2
        one, other = y.sin(), y.cos()
        return one + other + y * one

    return Case(forward, [x])


@scenario("basics", "mul matmul")
def the_same_tensor_twice() -> Case:
    x = leaf(3, 3)
    return Case(lambda: (x * x) @ x, [x])


@scenario("basics", "cat cat stack linear")
def tensors_in_lists_and_by_keyword() -> Case:
    x, y, w = leaf(2, 3), leaf(2, 3), leaf(4, 3)

    def forward():
        both = torch.stack(tensors=(torch.cat([x, y]), torch.cat([y, x])))
        return F.linear(both, weight=w)

    return Case(forward, [x, y, w])


@scenario("basics", "exp log tanh sigmoid")
def methods_and_functions() -> Case:
    x = leaf(3)
    return Case(lambda: torch.sigmoid(torch.tanh(torch.exp(x).log())), [x])


@scenario("basics", "mul mul add")
def through_a_python_function() -> Case:
    x = leaf(3)

    def square_and_triple(value):
        return value * value, value * 3

    return Case(lambda: torch.add(*square_and_triple(x)), [x])


@scenario("basics", "mul mul mul")
def several_outputs_of_the_run() -> Case:
    x = leaf(3)

    def forward():
        y = x * 2
        return y, y * 3, x * 4

    return Case(forward, [x])


# -------------------------------------------------------------------------------- many nodes


@scenario("many nodes", "linear cross_entropy")
def cross_entropy() -> Case:
    x, w, target = leaf(4, 3), leaf(5, 3), torch.tensor([0, 4, 2, 1])
    return Case(lambda: F.cross_entropy(F.linear(x, w), target, label_smoothing=0.1), [x, w])


@scenario("many nodes", "mse_loss smooth_l1_loss add binary_cross_entropy add kl_div add")
def losses() -> Case:
    x, y = leaf(3, 4), leaf(3, 4)
    p, target = torch.rand(3, 4).requires_grad_(), torch.rand(3, 4)

    def forward():
        first = F.mse_loss(x, y) + F.smooth_l1_loss(x, y)
        first = first + F.binary_cross_entropy(p, target)
        return first + F.kl_div(p, target, reduction="batchmean")

    return Case(forward, [x, y, p])


@scenario("many nodes", "layer_norm group_norm instance_norm local_response_norm")
def norms() -> Case:
    x, w, b = leaf(2, 4, 5), leaf(5), leaf(5)

    def forward():
        y = F.group_norm(F.layer_norm(x, (5,), w, b), 2)
        return F.local_response_norm(F.instance_norm(y), 2)

    return Case(forward, [x, w, b])


@scenario("many nodes", "scaled_dot_product_attention")
def attention() -> Case:
    q, k, v = leaf(2, 2, 5, 4), leaf(2, 2, 6, 4), leaf(2, 2, 6, 4)
    mask = torch.rand(5, 6) > 0.3
    return Case(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), [q, k, v])


@scenario("many nodes", "multi_head_attention_forward")
def multi_head_attention_without_weights() -> Case:
    x, w_in, w_out = leaf(5, 2, 4), leaf(12, 4), leaf(4, 4)
    zeros = torch.zeros(12), torch.zeros(4)

    def forward():
        out, weights = F.multi_head_attention_forward(
            *(x, x, x, 4, 2, w_in, zeros[0], None, None, False, 0.0, w_out, zeros[1]),
            need_weights=False,
        )
        assert weights is None
        return out

    return Case(forward, [x, w_in, w_out])


@scenario("many nodes", "log_softmax ctc_loss")
def ctc() -> Case:
    x = leaf(6, 2, 5)
    lengths = torch.tensor([6, 5]), torch.tensor([3, 2])
    targets = torch.tensor([[1, 2, 3], [4, 1, 0]])
    return Case(lambda: F.ctc_loss(F.log_softmax(x, 2), targets, *lengths), [x])


@scenario("many nodes", "cosine_similarity pairwise_distance cdist triplet_margin_loss")
def distances() -> Case:
    x, y, z = leaf(3, 4), leaf(3, 4), leaf(3, 4)

    def forward():
        first = F.cosine_similarity(x, y), F.pairwise_distance(x, y)
        return *first, torch.cdist(x, y), F.triplet_margin_loss(x, y, z)

    return Case(forward, [x, y, z])


@scenario("many nodes", "einsum where gather scatter index_select (getitem) take_along_dim")
def indexing() -> Case:
    x, y = leaf(3, 4), leaf(4, 3)
    index = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    mask, rows = torch.eye(3, dtype=torch.bool), torch.tensor([2, 0])

    def forward():
        product = torch.einsum("ij,jk->ik", x, y)
        chosen = torch.where(mask, product, 0.5).gather(1, index)
        spread = chosen.scatter(1, index, product)
        return torch.take_along_dim(spread.index_select(0, rows), index[:2], 1)

    return Case(forward, [x, y])


@scenario("many nodes", "linalg_svd linalg_solve norm inverse det")
def linear_algebra() -> Case:
    x, y = torch.eye(3).add(0.1 * torch.randn(3, 3)).requires_grad_(), leaf(3, 2)

    def forward():
        u, s, v = torch.linalg.svd(x)
        assert u.requires_grad
        assert v.requires_grad
        return s, torch.linalg.solve(x, y), torch.norm(y), x.inverse(), x.det()

    return Case(forward, [x, y])


@scenario("many nodes", "fft_rfft mul fft_irfft")
def fourier() -> Case:
    x, w = leaf(8), leaf(5, dtype=torch.complex64)
    return Case(lambda: torch.fft.irfft(torch.fft.rfft(x) * w, n=8), [x, w])


@scenario("many nodes", "cumsum prod std logsumexp softmax var median")
def reductions() -> Case:
    x = leaf(3, 4)

    def forward():
        y = x.cumsum(0)
        return y.prod(1), y.std(), y.logsumexp(0), y.softmax(1).var(), y.median()

    return Case(forward, [x])


@scenario("many nodes", "conv2d conv_transpose2d interpolate pad grid_sample")
def images() -> Case:
    x, w, v = leaf(1, 2, 4, 4), leaf(3, 2, 3, 3), leaf(3, 2, 3, 3)
    grid = torch.rand(1, 4, 4, 2)

    def forward():
        y = F.conv_transpose2d(F.conv2d(x, w, padding=1), v)
        y = F.pad(F.interpolate(y, scale_factor=1.5, mode="bilinear"), (1, 1, 1, 1), mode="reflect")
        return F.grid_sample(y, grid, align_corners=False)

    return Case(forward, [x, w, v])


@scenario("many nodes", "gelu silu softplus glu elu hardtanh")
def activations() -> Case:
    x = leaf(4, 6)

    def forward():
        y = F.glu(F.softplus(F.silu(F.gelu(x, approximate="tanh"))))
        return F.hardtanh(F.elu(y), -0.5, 0.5)

    return Case(forward, [x])
