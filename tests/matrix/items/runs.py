"""Mixed precision, and runs of autograd's engine: several, partial, of higher order, in threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F

from tests.matrix.case import Block, Case, net, rows, smooth, squares, trained

Step = Callable[[nn.Module, Tensor], Any]


def stepping(model: nn.Module, step: Step, *, grad: bool = True) -> Case:
    """A case whose step is given the model and a leaf."""
    x = rows(grad=grad)
    return Case(model, lambda: step(model, x), [x])


# ------------------------------------------------------------------------------ mixed precision


def autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        loss = squares(out)
    loss.backward()
    return out, loss


def autocast_and_back(model: nn.Module, x: Tensor) -> Any:
    """A part in full precision inside, and the backward under autocast too."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model[0](x)
        with torch.autocast("cpu", enabled=False):
            hidden = model[1](hidden.float())
        loss = squares(model[3](hidden))
        loss.backward()
    return loss


def scaler_steps(model: nn.Module, x: Tensor) -> Any:
    """Accumulated over two batches, unscaled and clipped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        for part in x.split(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = squares(model(part)) / 2
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return losses, scaler.get_scale()


def half(model: nn.Module, x: Tensor) -> Any:
    loss = squares(model.to(torch.bfloat16)(x.to(torch.bfloat16)))
    loss.backward()
    return loss


def accumulated(model: nn.Module, x: Tensor) -> Any:
    losses = [squares(model(part)) / 3 for part in x.split(1)]
    for loss in losses:
        loss.backward()
    return losses


# ------------------------------------------------------------------------------- runs in a row


def retained(model: nn.Module, x: Tensor) -> Any:
    loss = squares(model(x))
    for _ in range(3):
        loss.backward(retain_graph=True)
    return loss


def two_losses(model: nn.Module, x: Tensor) -> Any:
    """Two losses over one trunk, each with a backward of its own."""
    out = model(x)
    first, second = out.pow(2).sum(), out.exp().mean()
    first.backward(retain_graph=True)
    second.backward()
    return first, second


def from_several_roots(model: nn.Module, x: Tensor) -> Any:
    """One run from several outputs, a call twice in it."""
    once = model(x)
    twice = model(x * 2)
    torch.autograd.backward([once, twice], [torch.ones_like(once), twice.detach()])
    return once, twice


# --------------------------------------------------------------------------------- higher orders


def penalty(model: nn.Module, x: Tensor) -> Any:
    loss = squares(model(x))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + (gradient.norm(dim=1) - 1).pow(2).mean()).backward()
    return loss, gradient


def created_graph(model: nn.Module, x: Tensor) -> Any:
    """Second derivatives of the weights, from `backward(create_graph=True)`."""
    weights = list(model.parameters())
    first = torch.autograd.grad(squares(model(x)), weights, create_graph=True)
    return torch.autograd.grad(squares(first), [*weights, x], allow_unused=True)


def third_order(model: nn.Module, x: Tensor) -> Any:
    value, found = model(x).sum(), []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.pow(2).sum()
        found.append(gradient.detach())
    value.backward()
    return found


def hessian_product(model: nn.Module, x: Tensor) -> Any:
    function = torch.autograd.functional
    return function.vhp(lambda v: model(v).pow(2).sum(), x, torch.ones_like(x))


def meta_step(model: nn.Module, x: Tensor) -> Any:
    """A step on copies of the weights, which the outer gradient goes through (MAML)."""
    weights = dict(model.named_parameters())
    inner = squares(torch.func.functional_call(model, weights, (x,)))
    gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    pairs = zip(weights.items(), gradients, strict=True)
    moved = {name: weight - 0.1 * gradient for (name, weight), gradient in pairs}
    outer = squares(torch.func.functional_call(model, moved, (x,)))
    outer.backward()
    return inner, outer


# -------------------------------------------------------------------------------- partial runs


def wanted(name: str) -> Step:
    """Only the gradient of one parameter is asked for."""

    def step(model: nn.Module, x: Tensor) -> Any:
        return torch.autograd.grad(squares(model(x)), model.get_parameter(name))

    return step


def inputs(model: nn.Module, x: Tensor) -> Any:
    loss = squares(model(x))
    loss.backward(inputs=[model[0].weight, x])
    return loss


def between(model: nn.Module, x: Tensor) -> Any:
    """Up to a value in between, then on from there, as in pipelines."""
    hidden = model[0](x)
    cut = hidden.detach().requires_grad_()
    loss = squares(model[1:](cut))
    (gradient,) = torch.autograd.grad(loss, cut)
    hidden.backward(gradient)
    return loss, gradient


def unused(model: nn.Module, x: Tensor) -> Any:
    """A call whose output goes nowhere."""
    model(x)
    loss = squares(model[3](x))
    loss.backward()
    return loss


def frozen(model: nn.Module, x: Tensor) -> Any:
    model[1].requires_grad_(False)
    loss = squares(model(x))
    loss.backward()
    return loss


def detached(model: nn.Module, x: Tensor) -> Any:
    loss = squares(model[1:](model[0](x).detach()))
    loss.backward()
    return loss


def without_grad(model: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        first = model(x)
    with torch.inference_mode():
        second = model(x)
    loss = squares(model(x))
    loss.backward()
    return first, second.clone(), loss


def mixed_grad(model: nn.Module, x: Tensor) -> Any:
    """Gradients off for a part of the forward, on again for a part of that."""
    with torch.no_grad():
        hidden = model[0](x)
        with torch.enable_grad():
            hidden = model[1](hidden)
    loss = squares(model[3](hidden))
    loss.backward()
    return loss


# ----------------------------------------------------------------------- what others hang in there


def in_a_thread(model: nn.Module, x: Tensor) -> Any:
    """The backward is called in another thread than the forward."""
    loss = squares(model(x))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
    return loss


def single_threaded(model: nn.Module, x: Tensor) -> Any:
    with torch.autograd.set_multithreading_enabled(False):
        loss = squares(model(x))
        loss.backward()
    return loss


def anomaly(model: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
        loss = squares(model(x))
        loss.backward()
    return loss


def optimizer_in_backward(model: nn.Module, x: Tensor) -> Any:
    """Each weight is updated as soon as its gradient is there, which is dropped."""

    def update(weight: Tensor) -> None:
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None

    handles = [weight.register_post_accumulate_grad_hook(update) for weight in model.parameters()]
    loss = squares(model(x))
    loss.backward()
    for handle in handles:
        handle.remove()
    return loss


def tensor_hooks(model: nn.Module, x: Tensor) -> Any:
    """A user's hooks on tensors, nodes and leaves, one of which changes a gradient."""
    seen: list[Tensor] = []
    hidden = model[0](x)
    hidden.retain_grad()
    hidden.register_hook(lambda gradient: gradient * 2)
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    out = model[1:](hidden)
    node: Node = out.grad_fn
    node.register_hook(lambda outs, ins: seen.append(ins[0].clone()))
    squares(out).backward()
    return seen, hidden.grad


def joint_hook(model: nn.Module, x: Tensor) -> Any:
    """Torch's own hook on the gradients of several tensors at once."""
    seen: list[Any] = []
    first, second = model[0](x), model[3](x)
    handle = torch.autograd.graph.register_multi_grad_hook(
        [first, second], lambda gradients: seen.append([g.clone() for g in gradients])
    )
    squares([first, second]).backward()
    handle.remove()
    return seen


def saved_on_cpu(model: nn.Module, x: Tensor) -> Any:
    with save_on_cpu():
        loss = squares(model(x))
    loss.backward()
    return loss


def packed(model: nn.Module, x: Tensor) -> Any:
    """Saved tensors are kept in another form, and counted."""
    packs: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packs.append(tensor.numel())
        return tensor.double()

    with saved_tensors_hooks(pack, lambda tensor: tensor.float()):
        loss = squares(model(x))
    loss.backward()
    return loss, packs


class LooksAhead(nn.Module):
    """Runs a backward inside its own forward, and uses the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.head = smooth(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.energy(point).sum(), point, create_graph=True)
        return self.head(x + force)


class Reverses(torch.autograd.Function):
    """A custom function whose backward runs a forward and a backward of a module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module, ctx.x = module, x.detach()
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            out = ctx.module(x)
        torch.autograd.backward(out, gradients[0])
        return x.grad, None


class Reversible(nn.Module):
    """Computes a part again by hand, as reversible networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = smooth(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Reverses.apply(x, self.body))


class Auxiliary(nn.Module):
    """Gives several outputs in a dict, one of which is used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.one, self.two = Block(), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.block(x)
        return {"logits": self.one(hidden), "extra": [self.two(hidden)], "hidden": hidden}


def one_of_several(model: nn.Module, x: Tensor) -> Any:
    out = model(x)
    loss = F.cross_entropy(out["logits"], torch.tensor([0, 1, 1]))
    loss.backward()
    return loss


ITEMS = {
    "autocast": lambda: stepping(net(), autocast),
    "autocast, a part without": lambda: stepping(net(), autocast_and_back),
    "GradScaler, accumulation, clipping": lambda: stepping(net(), scaler_steps),
    "bfloat16": lambda: stepping(net(), half),
    "accumulation": lambda: stepping(net(), accumulated),
    "retain_graph": lambda: stepping(net(), retained),
    "two losses": lambda: stepping(net(), two_losses),
    "several roots": lambda: stepping(net(0), from_several_roots),
    "gradient penalty": lambda: stepping(smooth(), penalty),
    "create_graph": lambda: stepping(smooth(), created_graph),
    "third order": lambda: stepping(smooth(), third_order),
    "vhp": lambda: stepping(smooth(), hessian_product),
    "MAML": lambda: stepping(smooth(), meta_step),
    "grad of the first weight": lambda: stepping(net(), wanted("0.weight")),
    "grad of the last weight": lambda: stepping(net(), wanted("3.weight")),
    "grad of a weight inside": lambda: stepping(net(), wanted("1.linear.bias")),
    "inputs=": lambda: stepping(net(), inputs),
    "in two halves": lambda: stepping(net(), between),
    "unused output": lambda: stepping(net(), unused),
    "frozen part": lambda: stepping(net(), frozen),
    "detached": lambda: stepping(net(), detached),
    "no_grad and inference_mode": lambda: stepping(net(), without_grad),
    "enable_grad inside no_grad": lambda: stepping(net(), mixed_grad),
    "input needs no gradient": lambda: trained(net(), rows(grad=False)),
    "backward in a thread": lambda: stepping(net(), in_a_thread),
    "set_multithreading_enabled": lambda: stepping(net(), single_threaded),
    "detect_anomaly": lambda: stepping(net(), anomaly),
    "optimizer in the backward": lambda: stepping(net(), optimizer_in_backward),
    "hooks on tensors and nodes": lambda: stepping(net(), tensor_hooks),
    "register_multi_grad_hook": lambda: stepping(net(), joint_hook),
    "save_on_cpu": lambda: stepping(net(), saved_on_cpu),
    "saved_tensors_hooks": lambda: stepping(net(), packed),
    "backward inside a forward": lambda: trained(LooksAhead(), rows()),
    "recomputed by hand": lambda: trained(Reversible(), rows()),
    "one of several outputs": lambda: stepping(Auxiliary(), one_of_several),
}
