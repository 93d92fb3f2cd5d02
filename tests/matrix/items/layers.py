"""Modules that change: lazy, quantised, fused, parametrized, pruned, copied, wrapped."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval, parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, update_bn

from tests.matrix.case import Case, net, rows, squares, trained

Change = Callable[[nn.Module], Any]


def then_trained(model: nn.Module, change: Change, x: Tensor | None = None) -> Case:
    """The change is made while hooks are on; then comes a step of training."""
    x = rows() if x is None else x

    def step() -> Any:
        changed = change(model)
        found = model if not isinstance(changed, nn.Module) else changed
        loss = squares(found(x))
        loss.backward()
        return loss, [p.grad for p in found.parameters()]

    return Case(model, step)


def before(model: nn.Module, change: Change) -> Case:
    """The change was made before."""
    change(model)
    return trained(model, rows())


def digits() -> Tensor:
    images, _ = load_digits(return_X_y=True)
    return torch.tensor(images[:8], dtype=torch.float32).view(-1, 1, 8, 8) / 16


# ------------------------------------------------------------------------------------------ lazy


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(inplace=True), nn.LazyLinear(2))


def lazy_conv() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(inplace=True), nn.Flatten(),
        nn.LazyLinear(3),
    )  # fmt: skip


def twice(model: nn.Module, x: Tensor) -> Case:
    """The first call makes the weights and changes the class; the second trains."""

    def step() -> Any:
        first = model(x)
        loss = squares(model(x))
        loss.backward()
        return first, loss, [type(m).__name__ for m in model.modules()]

    return Case(model, step)


# ------------------------------------------------------------------------------- parametrizations


class Symmetric(nn.Module):
    """A parametrization of a user's own."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def weight_norm(model: nn.Module) -> None:
    parametrizations.weight_norm(model[0])


def spectral_norm(model: nn.Module) -> None:
    parametrizations.spectral_norm(model[0])


def orthogonal(model: nn.Module) -> None:
    parametrizations.orthogonal(model[0])


def symmetric(model: nn.Module) -> None:
    parametrize.register_parametrization(model[0], "weight", Symmetric())


def undone(model: nn.Module) -> None:
    symmetric(model)
    parametrize.remove_parametrizations(model[0], "weight")


def cached(model: nn.Module) -> Case:
    """Parametrized weights are computed once for two calls."""
    symmetric(model)

    def step() -> Any:
        with parametrize.cached():
            loss = squares(model(model(rows()).repeat(1, 2)))
        loss.backward()
        return loss

    return Case(model, step)


def old_style(model: nn.Module) -> None:
    """Weight norm by a forward pre-hook of torch's own."""
    with warnings.catch_warnings(action="ignore"):
        nn.utils.weight_norm(model[0])


def old_spectral(model: nn.Module) -> None:
    """Spectral norm by a forward pre-hook of torch's own."""
    with warnings.catch_warnings(action="ignore"):
        nn.utils.spectral_norm(model[0])


def pruned(model: nn.Module) -> None:
    """Masks, applied by forward pre-hooks of torch's own."""
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_structured(model[0], "weight", amount=0.25, dim=0)


def pruned_for_good(model: nn.Module) -> None:
    pruned(model)
    prune.remove(model[0], "weight")


# --------------------------------------------------------------------------- quantised and fused


def observed_only(model: nn.Module, x: Tensor) -> Case:
    """Evaluation without gradients."""

    def step() -> Any:
        with torch.no_grad():
            return model(x)

    return Case(model.eval(), step)


def dynamically_quantised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM}, torch.qint8)


def fused(model: nn.Module) -> nn.Module:
    """The first three are replaced in the model by one, and by identities."""
    with warnings.catch_warnings(action="ignore"):
        fuse = torch.ao.quantization.fuse_modules
        return fuse(model.eval(), [["0", "1", "2"]], inplace=True)


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


def fused_by_hand(model: nn.Module) -> nn.Module:
    model = model.eval()
    return nn.Sequential(fuse_conv_bn_eval(model[0], model[1]), *model[2:])


def statically_quantised() -> Case:
    """Prepared with observers, which are called by torch's own hooks; calibrated; converted."""
    with warnings.catch_warnings(action="ignore"):
        model = torch.ao.quantization.QuantWrapper(net(0)[0])
        model.eval().qconfig = torch.ao.quantization.default_qconfig
        torch.ao.quantization.prepare(model, inplace=True)

    def step() -> Any:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            first = model(rows(grad=False))
            torch.ao.quantization.convert(model, inplace=True)
            return first, model(rows(grad=False))

    return Case(model, step)


def quantisation_aware() -> Case:
    """Training with fake quantisation."""
    with warnings.catch_warnings(action="ignore"):
        model = torch.ao.quantization.QuantWrapper(nn.Sequential(nn.Linear(4, 2)))
        model.train().qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        torch.ao.quantization.prepare_qat(model, inplace=True)
    return trained(model, rows())


# ------------------------------------------------------------------------------- copies, changes


def copied(make: Callable[[nn.Module], nn.Module], change: Change = id) -> Case:
    """A copy made while hooks are on, run beside the model."""
    model = net()
    change(model)

    def step() -> Any:
        copied = make(model)
        loss = squares([copied(rows()), model(rows())])
        loss.backward()
        return loss, [p.grad for p in copied.parameters()], list(copied.state_dict())

    return Case(model, step)


def saved(model: nn.Module) -> nn.Module:
    """Written and read whole."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged() -> Case:
    """A model of averaged weights, with its own batch norm statistics."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    average = AveragedModel(model)

    def step() -> Any:
        loss = squares(model(rows()))
        loss.backward()
        average.update_parameters(model)
        update_bn([rows(grad=False)], average)
        return loss, average(rows())

    return Case(model, step)


def grown(model: nn.Module) -> None:
    """A module is put in, another one taken out."""
    model.append(nn.Tanh())
    model[2] = nn.GELU()


def forward_exchanged(model: nn.Module) -> None:
    """`forward` of an instance is another function, as accelerate has it."""
    plain = model[0].forward
    model[0].forward = lambda x: plain(x) * 2


def class_exchanged(model: nn.Module) -> None:
    """The class of an instance is changed, as parametrize and FSDP do."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    model[0].__class__ = Doubled


class Residual(nn.Module):
    """Gives its input on when told so, and changes it in place otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else x.add_(1)


ITEMS = {
    "lazy": lambda: twice(lazy(), rows()),
    "lazy convolutions": lambda: twice(lazy_conv(), digits()),
    "weight norm": lambda: before(net(), weight_norm),
    "weight norm, late": lambda: then_trained(net(), weight_norm),
    "spectral norm": lambda: before(net(), spectral_norm),
    "spectral norm, late": lambda: then_trained(net(), spectral_norm),
    "orthogonal": lambda: before(net(), orthogonal),
    "parametrized": lambda: before(net(), symmetric),
    "parametrized, late": lambda: then_trained(net(), symmetric),
    "parametrized, undone": lambda: then_trained(net(), undone),
    "parametrized, cached": lambda: cached(net()),
    "old weight norm": lambda: before(net(), old_style),
    "old spectral norm": lambda: before(net(), old_spectral),
    "pruned": lambda: before(net(), pruned),
    "pruned, late": lambda: then_trained(net(), pruned),
    "pruned for good": lambda: then_trained(net(), pruned_for_good),
    "dynamically quantised": lambda: observed_only(dynamically_quantised(net()), rows(grad=False)),
    "dynamically quantised LSTM": lambda: observed_only(
        dynamically_quantised(nn.Sequential(nn.LSTM(4, 3))), rows(grad=False).view(3, 1, 4)
    ),
    "statically quantised": statically_quantised,
    "quantisation-aware": quantisation_aware,
    "fused": lambda: observed_only(fused(conv()), digits()),
    "fused, late": lambda: then_trained(conv(), fused, digits()),
    "fused by hand, late": lambda: then_trained(conv(), fused_by_hand, digits()),
    "deepcopy": lambda: copied(copy.deepcopy),
    "deepcopy, parametrized": lambda: copied(copy.deepcopy, symmetric),
    "deepcopy, pruned": lambda: copied(copy.deepcopy, pruned_for_good),
    "copy": lambda: copied(copy.copy),
    "pickle": lambda: copied(lambda model: pickle.loads(pickle.dumps(model))),
    "torch.save": lambda: copied(saved),
    "averaged": averaged,
    "modules exchanged": lambda: then_trained(net(), grown),
    "forward exchanged": lambda: then_trained(net(), forward_exchanged),
    "class exchanged": lambda: then_trained(net(), class_exchanged),
    "to(), half and back": lambda: then_trained(net(), lambda m: m.to(torch.bfloat16).float()),
    "input given on": lambda: trained(nn.Sequential(Residual(), nn.Linear(4, 2)), rows().detach()),
}
