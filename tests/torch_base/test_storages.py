"""The memory behind tensors of all kinds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookline.torch_base.storages import is_number, size_of, storages_of


def sizes(tensor):
    return [size_of(storage) for storage in storages_of(tensor)]


def test_views_share_the_storage_of_what_they_are_of():
    """One object for both, of the size of the whole."""
    x = torch.ones(4, 5)
    assert storages_of(x)[0] is storages_of(x[1:, ::2])[0]
    assert sizes(x[0]) == [80]


def test_sparse_tensors_are_indices_and_values():
    """Also in gradient mode, and though the values have a node of theirs."""
    sparse = torch.eye(3).to_sparse().requires_grad_()
    assert sizes(sparse) == [48, 12]
    assert sizes(sparse * 2) == [48, 12]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("block", [(), (2, 2)])
def test_compressed_tensors_are_both_indices_and_values(layout, block):
    """By rows and columns, in blocks too; those that the tensor was made of."""
    blocked = {torch.sparse_csr: torch.sparse_bsr, torch.sparse_csc: torch.sparse_bsc}
    parts = torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), torch.ones(3, *block)
    tensor = torch.sparse_compressed_tensor(*parts, layout=blocked[layout] if block else layout)
    assert storages_of(tensor) == [part.untyped_storage() for part in parts]


def test_jagged_tensors_are_values_and_offsets():
    """And what else is in them."""
    values, offsets = torch.ones(5), torch.tensor([0, 2, 5])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert storages_of(jagged)[:2] == [values.untyped_storage(), offsets.untyped_storage()]


def test_a_tensor_made_of_others_is_these_however_deep():
    """A subclass that says what it is made of."""

    class Pair(torch.Tensor):
        @staticmethod
        def __new__(cls, left, right):
            return torch.Tensor._make_wrapper_subclass(cls, left.shape)

        def __init__(self, left, right):
            self.left, self.right = left, right

        def __tensor_flatten__(self):
            return ["left", "right"], None

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    a, b, c = torch.ones(3), torch.ones(3).to_sparse(), torch.ones(3)
    assert sizes(Pair(Pair(a, b), c)) == [12, 24, 12, 12]


def test_what_has_no_memory_that_is_known_has_no_size():
    """A lazy parameter without a shape, and memory of MKL-DNN's own."""
    assert sum(sizes(nn.LazyLinear(3).weight)) == 0
    assert sizes(torch.ones(3).to_mkldnn()) == []


def test_meta_and_subclasses_and_parameters_have_one_each():
    """Of the size that they say."""
    assert sizes(torch.ones(3, device="meta")) == [12]
    assert sizes(nn.Parameter(torch.ones(3))) == [12]

    class Own(torch.Tensor):
        pass

    assert sizes(torch.ones(3).as_subclass(Own)) == [12]


def test_tensors_inside_a_transform_are_those_that_they_stand_for():
    """All rows of a `vmap` share one storage."""
    x = torch.ones(4, 3)
    found = []
    torch.vmap(lambda row: found.extend(storages_of(row)) or row)(x)
    assert found == [x.untyped_storage()]


def kept_by(tensor):
    return tensor.grad_fn._raw_saved_other.data


@pytest.mark.parametrize("number", [2, 2.5, 1 + 2j])
def test_python_numbers_are_told_from_tensors(number):
    """By their dtype giving way; in another default dtype too."""
    x = torch.ones(3, requires_grad=True)
    wide = {int: torch.int64, float: torch.float64, complex: torch.complex128}[type(number)]
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            by_number, by_tensor = x * number, x * torch.tensor(number, dtype=wide)
            assert is_number(kept_by(by_number))
            assert not is_number(kept_by(by_tensor))
        finally:
            torch.set_default_dtype(torch.float32)
    assert not is_number(torch.ones(3, dtype=wide))
    assert not is_number(torch.tensor(1.0))
