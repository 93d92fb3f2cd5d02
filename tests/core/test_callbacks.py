"""Slips in the names of callbacks are told; helpers and bases for others are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from hookline import FunctionHook, HookWarning, ModuleHook, add_hook, watch
from hookline.core.caller import caller_level


@pytest.mark.parametrize("level", [ModuleHook, FunctionHook])
@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("forward_posprocess", "forward_postprocess"),
        ("backward_post_process", "backward_postprocess"),
        ("Forward_preprocess", "forward_preprocess"),
        ("backwards_preprocess", "backward_preprocess"),
    ],
)
def test_r9_a_misspelt_callback_is_told_where_the_class_is_made(level, slip, meant):
    """With the name that was meant, and the place of the class."""
    with pytest.warns(HookWarning, match=f"Mine.{slip} is no callback.*mean '{meant}'") as told:
        type("Mine", (level,), {slip: lambda self, *_: None})
    assert told[0].filename == __file__


def test_r9_names_that_are_no_slips():
    """Callbacks themselves, in any depth of subclasses; helpers; what is private."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Base(ModuleHook):
            def process(self, call):
                pass

            def forward_shape(self, call):
                pass

            def _forward_postproces(self, call):
                pass

        class Mine(Base):
            def forward_postprocess(self, call):
                pass

            def aborted(self, call, exception):
                pass

        class Other(Mine):
            def forward_postprocess(self, call):
                pass

        with Mine(), Other(), watch(nn.ReLU(), Mine()):
            pass


class Idle(ModuleHook):
    def on_forward(self, call):
        pass


class Below(Idle):
    pass


class IdleFunctions(FunctionHook):
    def forward(self, function, in_data):
        pass


@pytest.mark.parametrize("hook", [Idle(), Below(), IdleFunctions()])
def test_r9_a_hook_without_callbacks_is_told_where_it_is_registered(hook):
    """If methods of it look as if they were meant for some."""
    match = f"{type(hook).__name__} has no callback.*on_forward is never|forward is never called"
    with pytest.warns(HookWarning, match=match) as told, hook:
        pass
    assert told[0].filename == __file__
    with pytest.warns(HookWarning, match=match), watch(nn.ReLU(), hook):
        pass
    if isinstance(hook, ModuleHook):
        with pytest.warns(HookWarning, match=match), add_hook(nn.ReLU(), hook):
            pass


def test_r9_a_hook_that_is_meant_to_be_empty():
    """A bare one, one that only counts registrations, one whose callbacks are set on the object."""

    class Count(ModuleHook):
        count = 0

        def added(self, target):
            self.count += 1

    own = Idle()
    seen = []
    own.forward_postprocess = seen.append
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ModuleHook(), Count() as count, own:
            nn.ReLU()(torch.ones(1))
    assert count.count == len(seen) == 1


def test_a_warning_points_to_the_caller():
    """Outside of hookline and torch, it is whoever asks."""
    with pytest.warns(UserWarning, match="here") as told:
        warnings.warn("here", stacklevel=caller_level())
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("level", "callback", "gets"),
    [
        (ModuleHook, lambda self: None, r"\(self, call\)"),
        (ModuleHook, lambda self, module, args, output: None, r"\(self, call\)"),
        (FunctionHook, lambda self, call: None, r"\(self, function, in_data\)"),
    ],
)
def test_r9_a_callback_that_cannot_take_what_it_gets_is_told_where_it_is_made(
    level, callback, gets
):
    """With what it would get; it need not have the same names."""
    with pytest.warns(HookWarning, match=rf"Mine\.forward_postprocess\(self.*gets {gets}") as told:
        type("Mine", (level,), {"forward_postprocess": callback})
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (level,), {"forward_postprocess": lambda self, *_: None})
        type("Mine", (ModuleHook,), {"forward_postprocess": lambda self, c, extra=None: None})
