"""In-place functions: on tensors and views, by item assignment, into `out=`, on lists."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.functions.scenario import Case, leaf, scenario


@scenario("in-place", "mul add_ mul_ sigmoid_")
def on_a_tensor_of_the_graph() -> Case:
    x = leaf(3)
    return Case(lambda: (x * 2).add_(1).mul_(3).sigmoid_(), [x])


@scenario("in-place", "mul add_ mul_ sub_ div_")
def augmented_assignments() -> Case:
    x, y = leaf(3), leaf(3)

    def forward():
        z = x * 1
        z += y
        z *= 2
        z -= x
        z /= 3
        return z

    return Case(forward, [x, y])


@scenario("in-place", "linear relu linear")
def relu_of_a_layer() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = leaf(2, 3)
    return Case(lambda: model(x), [x, *model.parameters()])


@scenario("in-place", "mul relu sum")
def relu_on_a_tensor() -> Case:
    x = leaf(4)
    return Case(lambda: F.relu(x * 2, inplace=True).sum(), [x])


@scenario("in-place", "mul (copy_) copy_ add mul zero_ add")
def copied_and_zeroed() -> Case:
    x, y = leaf(3), leaf(3)
    buffer, ones = torch.zeros(3), torch.ones(3)

    def forward():
        z = x * 2
        buffer.copy_(ones)
        z.copy_(y)
        w = z + x
        gone = x * 3
        gone.zero_()
        return w + gone

    return Case(forward, [x, y])


@scenario("in-place", "mul masked_fill_ index_put_ index_add_ scatter_ clamp_")
def by_mask_and_index() -> Case:
    x, y = leaf(4), leaf(2)
    index, mask = torch.tensor([0, 2]), torch.tensor([True, False, False, False])

    def forward():
        z = (x * 2).masked_fill_(mask, 0.5).index_put_((index,), y)
        return z.index_add_(0, index, y).scatter_(0, index, 1.0).clamp_(min=-1)

    return Case(forward, [x, y])


@scenario("in-place", "mul (getitem) mul_ sum")
def on_a_row() -> Case:
    x = leaf(3, 2)

    def forward():
        y = x * 2
        y[1].mul_(3)
        return y.sum()

    return Case(forward, [x])


@scenario("in-place", "mul add_ (t) mul_ mul")
def on_a_transposed_view() -> Case:
    x, factor = leaf(2, 3), torch.arange(6.0).view(3, 2)

    def forward():
        y = x * 2
        y.add_(1)
        y.t().mul_(factor)
        return y * x

    return Case(forward, [x])


@scenario("in-place", "mul (getitem) mul_ mul")
def on_a_view_that_is_used_on() -> Case:
    x = leaf(3, 2)

    def forward():
        row = (x * 2)[1]
        row.mul_(3)
        return row * 2

    return Case(forward, [x])


@scenario("in-place", "mul (getitem) mul_ mul add")
def on_a_view_that_is_used_with_its_base() -> Case:
    x = leaf(3, 2)

    def forward():
        y = x * 2
        row = y[1]
        row.mul_(3)
        return y + row * 5

    return Case(forward, [x])


@scenario("in-place", "mul (t) (getitem) mul_ (getitem) add_ sum")
def on_two_views_of_one_base() -> Case:
    x = leaf(3, 4)

    def forward():
        y = x * 2
        y.t()[1:3].mul_(3)
        y[:, 0].add_(1)
        return y.sum()

    return Case(forward, [x])


@scenario("in-place", "mul setitem setitem sum")
def setitem_in_the_graph() -> Case:
    x, v = leaf(3, 2), leaf(2)

    def forward():
        y = x * 2
        y[0] = v
        y[1:, 0] = 5.0
        return y.sum()

    return Case(forward, [x, v])


@scenario("in-place", "(zeros) setitem setitem sum")
def setitem_in_a_fresh_buffer() -> Case:
    x, y = leaf(2), leaf(2)

    def forward():
        buffer = torch.zeros(3, 2)
        buffer[0] = x
        buffer[2] = y
        return buffer.sum()

    return Case(forward, [x, y])


@scenario("in-place", "mul setitem sum")
def setitem_by_mask() -> Case:
    x, v = leaf(4), leaf(2)
    mask = torch.tensor([True, False, True, False])

    def forward():
        y = x * 2
        y[mask] = v
        return y.sum()

    return Case(forward, [x, v])


@scenario("in-place", "mul (getitem) setitem sum")
def setitem_in_a_view() -> Case:
    x, v = leaf(3, 4), leaf(2)

    def forward():
        y = x * 2
        part = y[1:]
        part[:, 1] = v
        return y.sum()

    return Case(forward, [x, v])


@scenario("in-place", "mul (getitem) relu sum")
def relu_on_a_view() -> Case:
    x = leaf(3, 4)

    def forward():
        y = x * 2
        F.relu(y[1], inplace=True)
        return y.sum()

    return Case(forward, [x])


@scenario("in-place", "(add_) mul")
def on_a_leaf_without_gradients() -> Case:
    x = leaf(3)

    def forward():
        with torch.no_grad():
            x.add_(1)
        return x * 2

    return Case(forward, [x])


@scenario("in-place", "(add) (matmul) mul")
def into_an_out_argument() -> Case:
    x, y, room = leaf(2, 2), torch.ones(2, 2), torch.empty(2, 2)

    def forward():
        torch.add(y, y, out=room)
        torch.matmul(y, y, out=room)
        return x * room

    return Case(forward, [x])


@scenario("in-place", "mul mul _foreach_mul_ _foreach_add_ add")
def foreach() -> Case:
    x, y = leaf(3), leaf(3)

    def forward():
        both = [x * 1, y * 1]
        torch._foreach_mul_(both, 2.0)
        torch._foreach_add_(both, both)
        return both[0] + both[1]

    return Case(forward, [x, y])


@scenario("in-place", "(_foreach_add_) (_foreach_zero_)")
def foreach_without_gradients() -> Case:
    x, y = torch.randn(3), torch.randn(3)

    def forward():
        torch._foreach_add_([x, y], 1.0)
        torch._foreach_zero_([y])
        return x, y

    return Case(forward, [])


@scenario("in-place", "mul t_ unsqueeze_ add")
def views_in_place() -> Case:
    x = leaf(2, 3)
    return Case(lambda: (x * 2).t_().unsqueeze_(0) + 1, [x])


@scenario("in-place", "linear dropout mul")
def dropout() -> Case:
    x, w = leaf(2, 3), leaf(4, 3)
    return Case(lambda: F.dropout(F.linear(x, w), 0.5, training=True, inplace=True) * 2, [x, w])
