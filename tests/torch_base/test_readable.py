"""Which tensors' numbers can be read, and what is read of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookline.torch_base.readable import (
    has_views,
    is_sharded,
    readable,
    shape_of,
    version_of,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_plain_tensors_are_read_without_a_copy(dtype):
    """The numbers are the tensor's own, free of autograd; a parameter is read like a tensor."""
    for tensor in (torch.randn(3).to(dtype), nn.Parameter(torch.randn(3).to(dtype))):
        found = readable(tensor)
        assert type(found) is torch.Tensor
        assert not found.requires_grad
        assert found.data_ptr() == tensor.data_ptr()
        assert found.shape == tensor.shape


def test_what_has_no_numbers_is_not_read():
    """Integers, truth values, empty and meta tensors, quantised ones."""
    for tensor in (
        torch.arange(3),
        torch.tensor([True]),
        torch.empty(0, 3),
        torch.ones(2, device="meta"),
        torch.empty(3, dtype=torch.complex64, device="meta"),
        torch.ones(3, dtype=torch.uint8),
    ):
        assert readable(tensor) is None


def test_eight_bit_floats_are_read():
    """They have no sum of their own, so wider numbers stand for them."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        found = readable(torch.tensor([1.0, float("nan")]).to(dtype))
        assert found.dtype is torch.float32
        assert found.isnan().tolist() == [False, True]


def test_complex_tensors_are_read_conjugated_or_not():
    """The conjugate of a complex tensor is a lazy view; it is made real."""
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(readable(z), z)
    assert torch.equal(readable(z.conj()), z.conj())
    assert not readable(z.conj()).is_conj()
    assert torch.equal(
        torch.view_as_real(readable(z.conj())), torch.view_as_real(z.conj_physical())
    )


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_of_sparse_tensors_the_stored_values_are_read():
    """COO (coalesced or not) and CSR."""
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert readable(dense.to_sparse()).tolist() == [2.0, 3.0]
    assert readable(dense.to_sparse_csr()).tolist() == [2.0, 3.0]
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    assert readable(twice).tolist() == [3.0]
    assert readable(torch.sparse_coo_tensor([[0]], [1], (3,), check_invariants=True)) is None


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_read_as_a_whole(layout):
    """All numbers of all parts."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3), 2 * torch.ones(1, 3)], layout=layout)
    assert readable(nested).sum() == 12


def test_subclasses_are_read_as_what_they_are():
    """A subclass that changes nothing is read without its `__torch_function__` being asked."""
    asked = []

    class Nosy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    tensor = torch.ones(3).as_subclass(Nosy)
    asked.clear()
    found = readable(tensor)
    assert not asked
    assert type(found) is torch.Tensor
    assert found.tolist() == [1.0] * 3


def test_subclasses_with_operations_of_their_own_are_left_alone():
    """What their operations do is not known."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError

    assert readable(Wrapper()) is None


def test_fake_tensors_and_modes_are_left_alone():
    """A fake tensor has no numbers, and under a fake mode none are made."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = torch.ones(2)
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
        assert readable(fake) is None
        assert readable(real) is None
    assert readable(fake) is None
    assert readable(mode.from_tensor(real)) is None
    assert readable(real) is not None


def test_nothing_is_read_inside_a_transform_or_a_trace():
    """vmap, grad, make_fx and torch.jit.trace."""
    from torch.fx.experimental.proxy_tensor import make_fx

    found = []
    outside = torch.ones(2)

    def function(x):
        found.append((readable(x), readable(outside)))
        return x * 2

    x = torch.ones(2)
    torch.vmap(function)(x)
    torch.func.grad(lambda x: function(x).sum())(x)
    make_fx(function)(x)
    torch.jit.trace(function, x, check_trace=False)
    assert found == [(None, None)] * 4
    assert readable(x) is not None


def test_other_dispatch_modes_do_not_hinder():
    """Under a mode that only counts, tensors are read."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert readable(torch.ones(2)) is not None


def test_sharded_tensors_are_told_by_what_they_can_do():
    """A DTensor knows its placements; a plain tensor does not."""
    assert not is_sharded(torch.ones(2))


def test_version_of_tensors():
    """How often a tensor was written to; inference tensors are not counted."""
    tensor = torch.ones(2)
    before = version_of(tensor)
    tensor.add_(1)
    assert version_of(tensor) == before + 1
    with torch.inference_mode():
        assert version_of(torch.ones(2)) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
def test_views_and_shapes_of_unusual_tensors():
    """Sparse and strided nested ones have no views for hooks; a shape there is always."""
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    tensors = {
        "plain": (torch.ones(2, 3), True, (2, 3)),
        "coo": (torch.eye(3).to_sparse(), False, (3, 3)),
        "csr": (torch.eye(3).to_sparse_csr(), False, (3, 3)),
        "jagged": (torch.nested.nested_tensor(parts, layout=torch.jagged), True, None),
        "nested": (torch.nested.nested_tensor(parts), False, (2, -1, 4)),
    }
    for tensor, views, shape in tensors.values():
        assert has_views(tensor) is views
        assert shape is None or shape_of(tensor) == shape
