"""Transforms of `torch.func`, and derivatives in forward mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from tests.matrix.case import Block, Case, net, rows, smooth, squares


def on(
    step: Callable[[nn.Module, dict[str, Tensor], Tensor], Any], model: nn.Module | None = None
) -> Case:
    """A case whose step is given a model, its weights and a batch."""
    model = smooth() if model is None else model
    weights = {name: value.detach() for name, value in model.named_parameters()}
    return Case(model, lambda: step(model, weights, rows(grad=False)))


def loss_of(model: nn.Module, x: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
    """The loss as a function of the weights."""
    return lambda weights: functional_call(model, weights, (x,)).pow(2).sum()


def transformed(transform: Callable[[Any], Any]) -> Callable[[], Case]:
    """A transform of the loss as a function of the weights."""
    return lambda: on(lambda model, weights, x: transform(loss_of(model, x))(weights))


def of_inputs(transform: Callable[[Any], Any]) -> Callable[[], Case]:
    """A transform of the model as a function of its input."""
    return lambda: on(lambda model, weights, x: transform(model)(x))


def samples(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """The gradient of each sample."""

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, weights, (row.unsqueeze(0),)).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(weights, x)


def ensemble(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """Three models at once, their weights stacked, run by a bare copy on the meta device."""
    models = [copy.deepcopy(model) for _ in range(3)]
    stacked, buffers = stack_module_state(models)
    base = copy.deepcopy(model).to("meta")

    def run(weights: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(base, (weights, buffers), (x,))

    out = vmap(run, in_dims=(0, 0, None))(stacked, buffers, x)
    squares(out).backward()
    return out, [value.grad for value in stacked.values()], functional_call(model, weights, (x,))


def pulled(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    out, pull = vjp(model, x)
    return out, pull(torch.ones_like(out)), pull(out)


def pushed(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    return jvp(model, (x,), (x.cos(),))


def linearized(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        out, push = linearize(lambda weight: x @ weight.T, weights["0.weight"])
    return out, push(weights["0.weight"]), model(x)


def dual(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(x, x.sin()))
        primal, tangent = forward_ad.unpack_dual(out)
        return primal.clone(), tangent.clone()


def forward_over_reverse(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """The product of Hessian and vector by duals of the weights inside `autograd.grad`."""
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(w, w.cos()) for name, w in weights.items()}
        leaf = x.clone().requires_grad_()
        loss = functional_call(model, duals, (leaf,)).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        primal, tangent = forward_ad.unpack_dual(gradient)
        return primal.clone(), tangent.clone()


def dual_that_needs_a_gradient(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(leaf, x.sin()))).tangent
        squares(tangent).backward()
    return leaf.grad


def vmap_with_backward(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """A module under vmap whose weights get gradients by an ordinary backward."""
    out = vmap(model)(x)
    squares(out).backward()
    return out


def vmap_random(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    return vmap(model, randomness="different")(x), vmap(model, randomness="same")(x)


def nested_vmap(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    return vmap(vmap(model), in_dims=1, out_dims=1)(x.expand(2, 3, 4))


def chunked(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    return vmap(model, chunk_size=2)(x)


def penalty(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """A gradient inside a loss, by `torch.func` within and an ordinary backward outside."""
    inner = grad(lambda x: model(x).pow(2).sum())(x)
    loss = inner.pow(2).sum()
    loss.backward()
    return loss


def functional(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """Other weights in place of the model's, with an ordinary backward."""
    other = {name: (value * 2).requires_grad_() for name, value in weights.items()}
    out = functional_call(model, other, (x,))
    squares(out).backward()
    return out, [value.grad for value in other.values()]


def tied(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Any:
    """A module used twice by functional calls, with weights of its own each time."""
    first = functional_call(model, weights, (x,))
    return first, functional_call(model[0], {"weight": weights["0.weight"].T}, (x,))


ITEMS = {
    "grad": transformed(grad),
    "grad_and_value": transformed(grad_and_value),
    "grad of grad": transformed(lambda f: grad(lambda w: squared(grad(f)(w)))),
    "jacrev of weights": transformed(jacrev),
    "jacfwd of weights": transformed(jacfwd),
    "jacfwd of grad": transformed(lambda f: jacfwd(grad(f))),
    "hessian of weights": transformed(hessian),
    "functionalize": transformed(functionalize),
    "vmap": of_inputs(vmap),
    "jacrev": of_inputs(jacrev),
    "jacfwd": of_inputs(jacfwd),
    "hessian": of_inputs(lambda model: hessian(lambda x: model(x).sum())),
    "vmap of jacrev": of_inputs(lambda model: vmap(jacrev(model))),
    "vmap of hessian": of_inputs(lambda model: vmap(hessian(lambda row: model(row).sum()))),
    "gradients of samples": lambda: on(samples),
    "ensemble": lambda: on(ensemble),
    "vjp": lambda: on(pulled),
    "jvp": lambda: on(pushed),
    "linearize": lambda: on(linearized),
    "dual numbers": lambda: on(dual),
    "dual numbers, reverse inside": lambda: on(forward_over_reverse),
    "dual numbers, reverse outside": lambda: on(dual_that_needs_a_gradient),
    "vmap and backward": lambda: on(vmap_with_backward),
    "vmap with random numbers": lambda: on(vmap_random, net()),
    "vmap of vmap": lambda: on(nested_vmap),
    "vmap in chunks": lambda: on(chunked),
    "vmap, in-place operations": lambda: on(vmap_with_backward, Block(dropout=0)),
    "penalty": lambda: on(penalty),
    "functional_call": lambda: on(functional),
    "functional_call twice": lambda: on(tied),
}


def squared(gradients: dict[str, Tensor]) -> Tensor:
    """The sum of the squares of all gradients."""
    return torch.stack([g.pow(2).sum() for g in gradients.values()]).sum()
