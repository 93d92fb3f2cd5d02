"""Functions of the user's own: `autograd.Function`, `FunctionNode`, operators of a library."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hookline import FunctionNode
from tests.functions.reached import BOUND_IS_SEEN
from tests.functions.scenario import Case, leaf, scenario


class Swish(Function):
    """Old style, with functions inside of its forward and its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Halves(Function):
    """New style, with two outputs, an input that is no tensor, and one without a gradient."""

    @staticmethod
    def forward(x, at, shift):
        return x[:at] * 2, x[at:] + shift

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    @once_differentiable
    def backward(ctx, one, other):
        return torch.cat([one * 2, other]), None, None


class DoubledInPlace(Function):
    """Writes into its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


bound_early = Swish.apply


@torch.library.custom_op("hookline_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """An operator of a library, with a gradient of its own."""
    return x * by


def _scaled_setup(ctx, inputs, output):
    ctx.by = inputs[1]


def _scaled_backward(ctx, grad):
    return grad * ctx.by, None


scaled.register_autograd(_scaled_backward, setup_context=_scaled_setup)


@scenario("custom", "mul Swish mul")
def apply_of_a_class() -> Case:
    x = leaf(3)
    return Case(lambda: Swish.apply(x * 2) * 3, [x])


@scenario(
    "custom",
    "mul Swish Swish mul" if BOUND_IS_SEEN else "mul sigmoid mul sigmoid mul mul",
    backward="mul Swish Swish mul",
)
def apply_that_was_bound_before_the_scope() -> Case:
    x = leaf(3)
    return Case(lambda: bound_early(bound_early(x * 2)) * 3, [x])


@scenario("custom", "Halves mul cat")
def several_outputs() -> Case:
    x, shift = leaf(5), torch.ones(1)

    def forward():
        one, other = Halves.apply(x, 2, shift)
        return torch.cat([one * one, other])

    return Case(forward, [x])


@scenario("custom", "Halves mul")
def one_output_unused() -> Case:
    x, shift = leaf(5), torch.ones(1)
    return Case(lambda: Halves.apply(x, 2, shift)[1] * 2, [x])


@scenario("custom", "mul DoubledInPlace add")
def in_place() -> Case:
    x = leaf(3)
    return Case(lambda: DoubledInPlace.apply(x * 2) + 1, [x])


@scenario("custom", "(Swish)")
def in_no_grad() -> Case:
    x = leaf(3)

    def forward():
        with torch.no_grad():
            return Swish.apply(x)

    return Case(forward, [])


@scenario("custom", "mul Swish mul")
def through_a_function_node() -> Case:
    x, swish = leaf(3), FunctionNode(Swish.apply)
    return Case(lambda: swish(x * 2) * 3, [x])


@scenario("custom", "mul relu mul")
def a_torch_function_through_a_function_node() -> Case:
    x, relu = leaf(3), FunctionNode(torch.relu)
    return Case(lambda: relu(x * 2) * 3, [x])


@scenario("custom", "mul feed_forward mul")
def a_python_function_through_a_function_node() -> Case:
    x, w = leaf(2, 3), leaf(3, 3)

    def feed_forward(value, weight):
        hidden = F.gelu(F.linear(value, weight))
        return value + F.linear(hidden, weight) * 2

    node = FunctionNode(feed_forward)
    return Case(lambda: node(x * 2, weight=w) * 3, [x, w])


@scenario("custom", "both add mul")
def a_python_function_with_two_outputs_from_two_nodes() -> Case:
    x, y = leaf(3), leaf(3)
    both = FunctionNode(lambda a, b: {"sum": (a + b) * 2, "product": torch.tanh(a * b)}, "both")

    def forward():
        out = both(x, y)
        return out["sum"] + 1, out["product"] * 2

    return Case(forward, [x, y])


@scenario("custom", "mul beside add")
def an_input_returned_beside_another_output() -> Case:
    x = leaf(3)
    beside = FunctionNode(lambda value: (value, value * 2), "beside")

    def forward():
        one, other = beside(x * 3)
        return one + other

    return Case(forward, [x])


@scenario("custom", "mul (beside) add")
def an_input_returned_beside_an_output_that_is_not_used() -> Case:
    x = leaf(3)
    beside = FunctionNode(lambda value: (value, value * 2), "beside")
    return Case(lambda: beside(x * 3)[0] + 1, [x])


@scenario("custom", "mul both add")
def one_tensor_returned_twice() -> Case:
    x = leaf(3)
    both = FunctionNode(lambda value: [value.sin()] * 2, "both")

    def forward():
        one, other = both(x * 3)
        return one + other

    return Case(forward, [x])


@scenario("custom", "mul one two two add")
def nodes_inside_of_nodes() -> Case:
    x = leaf(3)
    two = FunctionNode(torch.tanh, "two")
    one = FunctionNode(lambda value: two(value) * two(value + 1), "one")
    return Case(lambda: two(one(x * 2)) + two(x), [x])


@scenario("custom", "mul scaled mul")
def an_operator_of_a_library() -> Case:
    x = leaf(3)
    return Case(lambda: scaled(x * 2, 0.5) * 3, [x])


@scenario("custom", "mul add relu addmm sum")
def overloads_of_aten() -> Case:
    x, w = leaf(3, 3), leaf(3, 3)
    ops = torch.ops.aten

    def forward():
        y = ops.relu.default(ops.add.Tensor(ops.mul.Tensor(x, w), w, alpha=2))
        return ops.sum(ops.addmm(w, y, w))

    return Case(forward, [x, w])
