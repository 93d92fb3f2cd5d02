"""What hooks can be put on, and what is refused with a reason."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import hookline
from hookline.errors import HooklineError, HookTypeError, HookValueError
from hookline.modules.targets import check_callable_module, check_hook


class Stack(nn.ModuleList):
    """A container that can be called, since it has a forward."""

    def forward(self, x):
        for module in self:
            x = module(x)
        return x


def _with_forward_on_the_instance(forward):
    module = nn.Module()
    module.forward = forward
    return module


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(nn.Linear(2, 2), id="layer"),
        pytest.param(nn.Sequential(nn.ReLU()), id="sequential"),
        pytest.param(nn.Sequential(), id="empty sequential"),
        pytest.param(Stack([nn.ReLU()]), id="list with forward"),
        pytest.param(_with_forward_on_the_instance(lambda x: x), id="forward on the instance"),
        pytest.param(
            _with_forward_on_the_instance(functools.partial(torch.add, 1)), id="partial as forward"
        ),
        pytest.param(torch.compile(nn.ReLU(), backend="eager"), id="compiled"),
        pytest.param(torch.fx.symbolic_trace(nn.Sequential(nn.ReLU())), id="fx"),
    ],
)
def test_modules_that_can_be_called_are_accepted(module):
    """Whatever has a forward of its own, wherever it comes from."""
    check_callable_module(module)


@pytest.mark.parametrize("given", [None, "model.layer", torch.ones(2), lambda x: x])
def test_what_is_no_module_is_refused_by_its_type(given):
    """The error says what was given."""
    with pytest.raises(HookTypeError, match=f"not on {type(given).__name__}"):
        check_callable_module(given)


def test_a_class_is_refused_with_a_hint_to_make_an_object():
    """Hooks on a class would be hooks on nothing."""
    with pytest.raises(HookTypeError, match=r"Linear is a class; give a module, such as Linear\("):
        check_callable_module(nn.Linear)


@pytest.mark.parametrize(
    "make",
    [torch.jit.script, functools.partial(torch.jit.trace, example_inputs=torch.ones(1, 2))],
    ids=["script", "trace"],
)
def test_torchscript_is_refused_with_the_way_out(make):
    """Its modules run where no hook can be called; so do those inside it."""
    scripted = make(nn.Sequential(nn.Linear(2, 2)))

    for module in (scripted, next(scripted.children())):
        with pytest.raises(HookTypeError, match="TorchScript"):
            check_callable_module(module)


@pytest.mark.parametrize(
    ("container", "named"),
    [
        (nn.ModuleList([nn.ReLU(), nn.ReLU()]), r"\(0, 1\)"),
        (nn.ModuleDict({"encoder": nn.ReLU()}), r"\(encoder\)"),
        (nn.ParameterList([nn.Parameter(torch.ones(1))]), "there is no module in it either"),
        (nn.Module(), "it only holds parameters, as the modules of a program that torch.export"),
    ],
)
def test_containers_without_forward_are_refused_with_the_modules_in_them(container, named):
    """A hook there would never run, and torch's own never says so."""
    with pytest.raises(HookValueError, match=f"has no forward.*{named}") as caught:
        check_callable_module(container)

    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, HooklineError)


def _ways_in():
    return {
        "register_forward_pre_hook": lambda m: hookline.register_forward_pre_hook(m, print),
        "register_forward_hook": lambda m: hookline.register_forward_hook(m, print),
        "register_full_backward_pre_hook": lambda m: hookline.register_full_backward_pre_hook(
            m, print
        ),
        "register_full_backward_hook": lambda m: hookline.register_full_backward_hook(m, print),
        "with_hooks": hookline.with_hooks,
        "add_hook": lambda m: hookline.add_hook(m, hookline.ModuleHook()),
    }


@pytest.mark.parametrize("way_in", _ways_in())
@pytest.mark.parametrize(
    "module", [nn.Linear, None, nn.ModuleList()], ids=["class", "None", "list"]
)
def test_every_way_to_register_on_a_module_refuses_it_at_once(way_in, module):
    """Nothing is registered, and the engine stays off."""
    before = nn.Module.__call__

    with pytest.raises(HooklineError):
        _ways_in()[way_in](module)

    assert nn.Module.__call__ is before


@pytest.mark.parametrize("hook", [print, nn.ReLU(), functools.partial(print), type])
def test_a_hook_may_be_anything_callable(hook):
    """Functions, objects with `__call__`, modules and classes."""
    check_hook(hook)


@pytest.mark.parametrize("hook", [None, "print", 3, torch.ones(1), hookline.ModuleHook()])
def test_a_hook_that_cannot_be_called_is_refused(hook):
    """The error says what was given."""
    with pytest.raises(HookTypeError, match=f"{type(hook).__name__} is not"):
        check_hook(hook)
