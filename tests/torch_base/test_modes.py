"""The thread's stacks of modes: one may be put on and taken out wherever it lies."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.torch_base.modes import dispatch_modes, function_modes


class Dispatch(TorchDispatchMode):
    """Counts operators."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    """Counts functions."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[(dispatch_modes, Dispatch), (function_modes, Function)], ids=["d", "f"])
def kind(request):
    return request.param


def test_a_mode_is_put_on_once(kind):
    """A second time does nothing, and says so."""
    stack, make = kind
    mode = make()
    assert stack.put_on(mode)
    assert not stack.put_on(mode)
    torch.ones(2).exp()
    assert list(stack) == [mode]
    assert mode.count == 2
    stack.take_out(mode)
    assert list(stack) == []


@pytest.mark.parametrize("place", range(3))
def test_a_mode_is_taken_out_wherever_it_lies(kind, place):
    """The others keep their order; one that is not there changes nothing."""
    stack, make = kind
    modes = [make() for _ in range(3)]
    with stack.standing(modes):
        stack.take_out(modes[place])
        left = [mode for mode in modes if mode is not modes[place]]
        assert list(stack) == left
        stack.take_out(modes[place])
        assert list(stack) == left
    assert list(stack) == []


def test_modes_stand_for_a_while(kind):
    """Those that were on before stay on; all that were put go, also after an error."""
    stack, make = kind
    outer, inner = make(), make()
    with stack.standing((outer,)):
        with stack.standing((outer, inner)):
            assert list(stack) == [outer, inner]
        assert list(stack) == [outer]
        with pytest.raises(ZeroDivisionError), stack.standing((outer, inner)):
            _ = 1 / 0
        assert list(stack) == [outer]
    assert list(stack) == []


def test_torchs_own_modes_stay_below():
    """A fake mode keeps its place when ours is taken out from above or below others."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    ours, others = Dispatch(), Dispatch()
    with dispatch_modes.standing((ours, others)), FakeTensorMode() as fake:
        dispatch_modes.take_out(ours)
        assert list(dispatch_modes) == [fake, others]
        assert torch.ones(2).exp().fake_mode is fake
