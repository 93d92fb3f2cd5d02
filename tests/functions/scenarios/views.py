"""Functions that return a view or their input, that have no gradient, that change the dtype."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.functions.scenario import Case, leaf, scenario

# ------------------------------------------------------------------------ views and identity


@scenario("views", "view t permute reshape expand squeeze select mul")
def methods() -> Case:
    x = leaf(2, 3)

    def forward():
        y = x.view(3, 2).t().permute(1, 0).reshape(1, 6)
        return y.expand(4, 6).squeeze(0).select(0, 1) * 2

    return Case(forward, [x])


@scenario("views", "mul T mT H (real) imag add")
def properties() -> Case:
    x, z = leaf(2, 3), leaf(3, 2, dtype=torch.complex64)

    def forward():
        y = (x * 1).T.mT.H
        assert y.real is y
        return y + z.imag

    return Case(forward, [x])


@scenario("views", "getitem getitem add getitem getitem add")
def indices() -> Case:
    x, chosen = leaf(3, 4), torch.tensor([2, 1])

    def forward():
        return x[0, 1] + x[..., 1:2], x[None, [0, 2]] + x[chosen]

    return Case(forward, [x])


@scenario("views", "mul unbind add add")
def rows_by_iteration() -> Case:
    x = leaf(3, 2)

    def forward():
        one, two, three = x * 2
        return one + two + three

    return Case(forward, [x])


@scenario("views", "mul (contiguous) (to) (dropout) mul")
def functions_that_return_their_input() -> Case:
    x = leaf(3)

    def forward():
        y = x * 2
        z = F.dropout(y.contiguous().to(torch.float32), 0.5, training=False)
        assert z is y
        return z * 3

    return Case(forward, [x])


@scenario("views", "(contiguous) (float) mul")
def functions_that_return_a_leaf() -> Case:
    x = leaf(3)
    return Case(lambda: x.contiguous().float() * 2, [x])


@scenario("views", "mul (detach) mul clone")
def detached() -> Case:
    x = leaf(3)

    def forward():
        y = x * 2
        return (y * y.detach()).clone()

    return Case(forward, [x])


@scenario("views", "double to type_as half")
def types() -> Case:
    x, like = leaf(3), torch.ones(1)
    return Case(lambda: x.double().to(torch.bfloat16).type_as(like).half(), [x])


# ------------------------------------------------------------------------------- no gradient


@scenario("no gradient", "(mul) (add)")
def in_no_grad() -> Case:
    x = leaf(3)

    def forward():
        with torch.no_grad():
            return x * 2 + 1

    return Case(forward, [x])


@scenario("no gradient", "(mul) (relu)")
def of_no_input() -> Case:
    x = torch.randn(3)
    return Case(lambda: torch.relu(x * 2), [])


@scenario("no gradient", "(argmax) (gt) (isfinite) (eq) mul")
def of_integers_and_truths() -> Case:
    x = leaf(3)

    def forward():
        x.argmax()
        return x * ((x > 0) == torch.isfinite(x))

    return Case(forward, [x])


@scenario("no gradient", "(ones) (randn) (arange) (tensor) (zeros_like) (add)")
def factories() -> Case:
    def forward():
        torch.ones(2)
        torch.randn(2)
        return torch.arange(2) + torch.zeros_like(torch.tensor([1, 2]))

    return Case(forward, [])


@scenario("no gradient", "(mul) (add)")
def in_inference_mode() -> Case:
    x = leaf(3)

    def forward():
        with torch.inference_mode():
            return x * 2 + 1

    return Case(forward, [])


@scenario("no gradient", "mul (mul) mul")
def of_a_frozen_input() -> Case:
    x, frozen = leaf(3), torch.randn(3)
    return Case(lambda: x * 2 * (frozen * 2), [x])


# ---------------------------------------------------------------------------------- autocast


@scenario("autocast", "linear relu linear sum")
def reduced_precision() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = leaf(2, 3)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).sum()

    return Case(forward, [x, *model.parameters()])


@scenario("autocast", "linear linear add")
def a_weight_cast_once_for_two_calls() -> Case:
    x, w = leaf(2, 3), leaf(3, 3)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w) + F.linear(x, w)

    return Case(forward, [x, w])
