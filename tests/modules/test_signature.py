"""Which arguments a torch-style hook takes is settled from its signature (P1)."""

from __future__ import annotations

import functools
from unittest.mock import Mock

import pytest
from torch import nn

import hookline
from hookline.errors import HooklineError, HookTypeError
from hookline.modules.signature import FORWARD, FORWARD_PRE, takes_kwargs


class Methods:
    """The same forms as bound, static and class methods, and as a callable object."""

    def default(self, module, args):
        pass

    def longer(self, module, args, kwargs):
        pass

    @staticmethod
    def static(module, args, kwargs):
        pass

    @classmethod
    def of_class(cls, module, args):
        pass

    def __call__(self, module, args, kwargs, output):
        pass


def _decorated(hook):
    @functools.wraps(hook)
    def inside(*arguments):
        return hook(*arguments)

    return inside


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        pytest.param(lambda module, args: None, False, id="default"),
        pytest.param(lambda module, args, kwargs: None, True, id="kwargs"),
        pytest.param(lambda module, args, kwargs=None: None, False, id="optional third"),
        pytest.param(lambda *arguments: None, False, id="any number"),
        pytest.param(lambda module, *rest: None, False, id="module and any number"),
        pytest.param(lambda module, args, /, kwargs: None, True, id="positional only"),
        pytest.param(lambda module, args, kwargs, *, log=None: None, True, id="optional keyword"),
        pytest.param(Methods().default, False, id="bound method"),
        pytest.param(Methods().longer, True, id="bound method with kwargs"),
        pytest.param(Methods().static, True, id="static method"),
        pytest.param(Methods.of_class, False, id="class method"),
        pytest.param(_decorated(lambda module, args, kwargs: None), True, id="decorated"),
        pytest.param(
            functools.partial(lambda log, module, args, kwargs: None, []), True, id="partial"
        ),
        pytest.param(
            functools.partial(lambda module, args, kwargs: None, kwargs={}),
            False,
            id="partial that fills kwargs",
        ),
        pytest.param(Mock(), False, id="mock"),
        pytest.param(max, False, id="no readable signature"),
    ],
)
def test_p1_the_form_of_a_pre_hook_is_read_from_its_signature(hook, expected):
    """Torch's default count of arguments comes first, then one more for the kwargs."""
    assert takes_kwargs(hook, FORWARD_PRE, None) is expected


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        pytest.param(lambda module, args, output: None, False, id="default"),
        pytest.param(lambda module, args, kwargs, output: None, True, id="kwargs"),
        pytest.param(lambda module, args, output, extra=1: None, False, id="optional fourth"),
        pytest.param(lambda *arguments: None, False, id="any number"),
        pytest.param(Methods(), True, id="callable object"),
    ],
)
def test_p1_the_form_of_a_forward_hook_is_read_from_its_signature(hook, expected):
    """As for pre-hooks, with the output as one more argument."""
    assert takes_kwargs(hook, FORWARD, None) is expected


@pytest.mark.parametrize(
    ("hook", "default", "forms"),
    [
        (lambda: None, FORWARD_PRE, ("(module, args)", "(module, args, kwargs)")),
        (lambda module: None, FORWARD_PRE, ("(module, args)", "(module, args, kwargs)")),
        (lambda a, b, c, d: None, FORWARD_PRE, ("(module, args)", "(module, args, kwargs)")),
        (
            lambda module, args, *, log: None,
            FORWARD_PRE,
            ("(module, args)", "(module, args, kwargs)"),
        ),
        (
            lambda module, output: None,
            FORWARD,
            ("(module, args, output)", "(module, args, kwargs, output)"),
        ),
        (
            lambda a, b, c, d, e: None,
            FORWARD,
            ("(module, args, output)", "(module, args, kwargs, output)"),
        ),
    ],
)
def test_p1_a_signature_that_fits_neither_form_is_refused_with_both_shown(hook, default, forms):
    """The error names the hook and says which two forms there are."""
    with pytest.raises(HookTypeError) as caught:
        takes_kwargs(hook, default, None)

    assert isinstance(caught.value, HooklineError)
    assert isinstance(caught.value, TypeError)
    assert "<lambda>" in str(caught.value)
    for form in forms:
        assert form in str(caught.value)


@pytest.mark.parametrize("with_kwargs", [True, False])
@pytest.mark.parametrize(
    "hook", [lambda module, args: None, lambda module, args, kwargs: None, lambda: None, max]
)
def test_p1_with_kwargs_overrides_the_signature(hook, with_kwargs):
    """Whoever says it is believed, even where the signature says otherwise."""
    assert takes_kwargs(hook, FORWARD_PRE, with_kwargs) is with_kwargs


@pytest.mark.parametrize(
    ("register", "form"),
    [
        (hookline.register_full_backward_pre_hook, r"\(module, grad_output\)"),
        (hookline.register_full_backward_hook, r"\(module, grad_input, grad_output\)"),
        (hookline.register_module_full_backward_hook, r"\(module, grad_input, grad_output\)"),
    ],
)
def test_p4_a_backward_hook_that_cannot_be_called_is_refused_at_once(register, form):
    """Not in the backward; one whose signature cannot be read is believed."""
    target = () if "_module_" in register.__name__ else (nn.ReLU(),)
    with pytest.raises(HookTypeError, match=rf"\(grad\) does not take {form}"):
        register(*target, lambda grad: None)
    for hook in (lambda *args: None, lambda module, *args, more=1: None, max):
        register(*target, hook).remove()
