"""Runs of the engine: inside of the forward, several for one graph, parts of a graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hookline import FunctionNode
from tests.functions.scenario import Case, leaf, scenario

# ----------------------------------------------------------------------- inside of the forward


@scenario(
    "grad in forward",
    "tanh pow sum pow sum add",
    inner="sum pow tanh",
    # What is called after the inner run, then the nodes that this run made, then the rest.
    backward="add sum pow tanh_backward mul mul pow sum pow tanh",
)
def gradient_penalty() -> Case:
    x = leaf(3)

    def forward():
        y = (torch.tanh(x) ** 2).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return (gradient**2).sum() + y

    return Case(forward, [x])


@scenario("grad in forward", "mul exp (mul) mul", inner="exp mul", backward="mul exp mul")
def without_a_graph() -> Case:
    x, one = leaf(3), torch.ones(3)

    def forward():
        y = (x * 2).exp()
        (gradient,) = torch.autograd.grad(y, x, one, retain_graph=True)
        return y * (gradient * 0.1)

    return Case(forward, [x])


@scenario("grad in forward", "mul mul", inner="mul", backward="mul")
def backward_of_another_graph() -> Case:
    x, y, one = leaf(3), leaf(3), torch.ones(3)

    def forward():
        (y * 2).backward(one)
        return x * 3

    return Case(forward, [x, y])


@scenario("grad in forward", "mul penalty mul")
def inside_of_a_function() -> Case:
    x, one = leaf(3), torch.ones(3)

    def penalty(value):
        y = torch.tanh(value) ** 2
        (gradient,) = torch.autograd.grad(y, value, one, create_graph=True)
        return y + gradient**2

    node = FunctionNode(penalty)
    return Case(lambda: node(x * 2) * 3, [x])


# ----------------------------------------------------------------------------- several passes


def twice(outputs, gradients):
    torch.autograd.backward(outputs, gradients, retain_graph=True)
    torch.autograd.backward(outputs, gradients)


@scenario("several passes", "mul linear relu", backward="relu linear mul relu linear mul")
def of_a_retained_graph() -> Case:
    x, w = leaf(2, 3), leaf(2, 3)
    return Case(lambda: F.relu(F.linear(x * 2, w)), [x, w], twice)


@scenario("several passes", "mul lstm", backward="lstm mul lstm mul")
def of_many_nodes() -> Case:
    layer, x = nn.LSTM(3, 4), leaf(5, 2, 3)
    state = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    return Case(lambda: layer(x * 2, state)[0], [x, *layer.parameters()], twice)


@scenario("several passes", "mul (t) mul_ mul", backward="mul mul_ mul mul mul_ mul")
def of_a_view_written_into() -> Case:
    x = leaf(2, 3)

    def forward():
        y = x * 2
        y.t().mul_(3)
        return y * 4

    return Case(forward, [x], twice)


@scenario("several passes", "mul sin mul", backward="mul mul sin mul")
def one_output_after_the_other() -> Case:
    x = leaf(3)

    def forward():
        y = x * 2
        return y.sin(), y * 3

    def backward(outputs, gradients):
        torch.autograd.backward(outputs[1], gradients[1], retain_graph=True)
        torch.autograd.backward(outputs[0], gradients[0])

    return Case(forward, [x], backward, referenced=False)


# Nodes that a backward makes are functions that nobody recorded, named after themselves.
@scenario("several passes", "sin exp", inner="exp sin", backward="mul cos mul exp sin")
def double_backward() -> Case:
    x, one = leaf(3), torch.ones(3)
    return Case(lambda: torch.autograd.grad(x.sin().exp(), x, one, create_graph=True), [x])


# -------------------------------------------------------------------------- parts of a graph


@scenario("partial", "mul sin mul exp", backward="exp mul")
def with_respect_to_a_value_in_between() -> Case:
    x = leaf(3)
    kept = []

    def forward():
        y = torch.sin(x * 2)
        kept.append(y)
        return (y * 3).exp()

    def backward(outputs, gradients):
        torch.autograd.grad(outputs, kept.pop(), gradients)

    return Case(forward, [x], backward)


@scenario("partial", "linear relu linear", backward="linear")
def inputs_of_a_backward() -> Case:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), leaf(2, 3)

    def backward(outputs, gradients):
        torch.autograd.backward(outputs, gradients, inputs=[model[2].weight])

    return Case(lambda: model(x), [x, *model.parameters()], backward)


@scenario("partial", "mul multi_head_attention_forward", backward="multi_head_attention_forward")
def one_weight_of_an_attention() -> Case:
    x, w_in, w_out = leaf(5, 2, 4), leaf(12, 4), leaf(4, 4)
    zeros = torch.zeros(12), torch.zeros(4)

    def forward():
        y = x * 2
        return F.multi_head_attention_forward(
            y, y, y, 4, 2, w_in, zeros[0], None, None, False, 0.0, w_out, zeros[1]
        )

    def backward(outputs, gradients):
        torch.autograd.grad(outputs, [w_out], gradients, allow_unused=True)

    return Case(forward, [x, w_in, w_out], backward)


@scenario("partial", "mul mul add sin", backward="sin add mul")
def one_branch() -> Case:
    x, y = leaf(3), leaf(3)

    def backward(outputs, gradients):
        torch.autograd.backward(outputs, gradients, inputs=[y])

    return Case(lambda: torch.sin(x * 2 + y * 3), [x, y], backward)


@scenario("partial", "block mul", backward="mul block")
def the_inside_of_a_function() -> Case:
    x, w, v = leaf(2, 3), leaf(3, 3), leaf(3, 3)
    block = FunctionNode(lambda value: F.linear(torch.tanh(F.linear(value, w)), v), "block")

    def backward(outputs, gradients):
        torch.autograd.backward(outputs, gradients, inputs=[v])

    return Case(lambda: block(x) * 2, [x, w, v], backward)


@scenario("partial", "mul unbind mul", backward="mul unbind mul")
def an_edge_of_the_graph() -> Case:
    x = leaf(2, 3)

    def backward(outputs, gradients):
        torch.autograd.backward(outputs[0], gradients[0])

    def forward():
        one, other = (x * 2).unbind()
        return one * other

    return Case(forward, [x], backward)
