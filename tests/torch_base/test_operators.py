"""Which operators are told of, and that seeing them changes nothing."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from hookline.core.thread import local
from hookline.torch_base.modes import dispatch_modes
from hookline.torch_base.operators import OperatorMode


def seen(work):
    """The names of the operators that are told of while something runs."""
    names: list[str] = []
    mode = OperatorMode(lambda operator, *_: names.append(str(operator)))
    with dispatch_modes.standing((mode,)):
        work()
    return [name.removeprefix("aten.").removesuffix(".default") for name in names]


def test_operators_are_told_of_with_arguments_and_results():
    """Once each, in the order in which they run; keywords as they are given."""
    told = []
    x = torch.ones(2)

    def ran(operator, args, kwargs, out):
        told.append((operator, args[0] is x, args[1:], dict(kwargs), out.tolist()))

    with dispatch_modes.standing((OperatorMode(ran),)):
        torch.clamp(x, min=3)
        x.add_(1, alpha=2)
    assert told == [
        (torch.ops.aten.clamp.default, True, (3,), {}, [3, 3]),
        (torch.ops.aten.add_.Tensor, True, (1,), {"alpha": 2}, [3, 3]),
    ]


def test_what_is_made_of_others_is_taken_apart_in_inference_as_in_training():
    """A linear layer is a product, with and without recording."""
    x, weight, bias = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)

    def work():
        F.linear(x, weight, bias)

    with torch.inference_mode():
        inference = seen(work)
    assert inference == seen(work) == ["t", "addmm"]


def test_r2_recurrent_layers_keep_their_kernel_in_inference():
    """Torch's `decompose` would take an LSTM apart in Python, to other bits."""
    layer = nn.LSTM(3, 4)
    with torch.inference_mode():
        names = seen(lambda: layer(torch.ones(2, 1, 3)))
    assert "mkldnn_rnn_layer" in names
    assert not {"addmm", "mm", "sigmoid"} & set(names)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_r2_nested_tensors_keep_kernels_of_their_own():
    """A nested tensor's product is no batch of plain ones; it would have no shape."""
    ragged = [torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)]
    nested = torch.nested.as_nested_tensor(ragged)
    names = seen(lambda: torch.matmul(nested, nested.transpose(1, 2)))
    assert "matmul" in names


class Wrapper(Tensor):
    """Hands what is done on it to another tensor, as a sharded one does."""

    inner: Tensor
    calls: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner):
        made = Tensor._make_wrapper_subclass(cls, inner.shape)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(str(func))
        plain = [each.inner if isinstance(each, cls) else each for each in args]
        return cls.run(func, plain, kwargs or {})

    @classmethod
    def run(cls, func, args, kwargs):
        return func(*args, **kwargs)


class Pretending(Wrapper):
    """Learns the shape of a result before it makes it."""

    @classmethod
    def run(cls, func, args, kwargs):
        with FakeTensorMode() as fake:
            shape = func(*map(fake.from_tensor, args), **kwargs).shape
        out = func(*args, **kwargs)
        assert out.shape == shape
        return out


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("cls", [Wrapper, Pretending])
def test_a_tensor_class_does_its_work_itself(cls, inference):
    """What it runs in the end is told of, once; it is asked for what it is asked without us."""
    wrapped, weight = cls(torch.ones(2, 3)), torch.ones(4, 3)
    with torch.inference_mode(inference):
        Wrapper.calls.clear()
        F.linear(wrapped, weight)
        plain = list(Wrapper.calls)
        Wrapper.calls.clear()
        names = seen(lambda: F.linear(wrapped, weight))
    assert Wrapper.calls == plain
    assert names.count("mm") == 1


def test_r3_an_error_of_a_tensor_class_leaves_nothing_behind():
    """It comes through as it was raised; the next operator is told of."""
    error = KeyError("mine")

    class Failing(Wrapper):
        @classmethod
        def run(cls, func, args, kwargs):
            raise error

    def work():
        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                Failing(torch.ones(2)).exp()
            assert caught.value is error
        Wrapper(torch.ones(2)).exp()

    assert seen(work).count("exp") == 1


def test_jagged_tensors_are_told_of_by_the_rows_that_they_have():
    """Forward and backward are products of plain tensors in the end."""
    jagged = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, requires_grad=True
    )
    names = seen(lambda: nn.Linear(3, 5)(jagged).values().sum().backward())
    assert [name for name in names if name.endswith("mm")] == ["addmm", "mm", "mm"]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_fake_tensors_are_like_plain_ones(inside, inference):
    """With their mode on and off."""
    with FakeTensorMode() as fake:
        layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with torch.inference_mode(inference):
        if inside:
            with fake:
                names = seen(lambda: layer(x))
        else:
            names = seen(lambda: layer(x))
    assert names.count("addmm") == 1


def test_r2_traces_and_exports_are_the_same():
    """What records a program records the program, not us."""
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    plain = make_fx(layer)(x).code
    exported = str(torch.export.export(layer, (x,)).graph)
    traced = str(torch.jit.trace(layer, x).code)
    results = []

    def work():
        results.append(make_fx(layer)(x).code)
        results.append(str(torch.export.export(layer, (x,)).graph))
        results.append(str(torch.jit.trace(layer, x).code))

    seen(work)
    assert results == [plain, exported, traced]


def test_what_hooks_run_is_left_out():
    """Nothing is told of while a callback runs."""

    def work():
        local.thread.busy = True
        try:
            torch.ones(2).exp()
        finally:
            local.thread.busy = False
        torch.zeros(2)

    assert seen(work) == ["zeros"]


def test_r3_an_error_of_an_operator_is_the_same_object():
    """It comes through as it was raised; the mode goes on working."""
    error = KeyError("mine")

    @torch.library.custom_op("hookline_tests::fails", mutates_args=())
    def fails(x: Tensor) -> Tensor:
        raise error

    def work():
        with pytest.raises(KeyError) as caught:
            fails(torch.ones(2))
        assert caught.value is error
        torch.zeros(2)

    assert seen(work) == ["ones", "zeros"]


def test_backwards_in_a_thread_are_told_of():
    """The engine takes the stack that it finds when it starts."""
    x = torch.ones(2, 2, requires_grad=True)
    y = (x @ x).sum()
    assert seen(y.backward).count("mm") == 2
