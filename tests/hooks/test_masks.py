"""Which -inf are meant: the rules, one by one."""

from __future__ import annotations

import pytest
import torch

from hookline.hooks.finite import examine, is_finite, total
from hookline.hooks.masks import explained, is_mask, makes_mask

INF = float("inf")


def hidden(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_a_mask_of_truth_values_explains_just_what_it_hides():
    """True or False may mean hidden; all that is hidden must be -inf, and nothing else."""
    out = torch.tensor([[0.5, -INF], [-INF, 1.0]])
    mask = hidden([0, 1], [1, 0])
    assert explained(out, [mask])
    assert explained(out, [~mask])
    assert not explained(out, [hidden([1, 1], [1, 1])])
    assert not explained(out, [hidden([0, 1], [0, 0])])
    assert not explained(out, [hidden([0, 1], [1, 1])])


def test_a_mask_must_spread_to_the_shape_of_the_output():
    """By broadcasting; a mask of another shape, or a single truth value, explains nothing."""
    out = torch.zeros(2, 3, 4)
    out[..., 2] = -INF
    assert explained(out, [hidden(0, 0, 1, 0)])
    assert explained(out, [hidden([0, 0, 1, 0]).expand(3, 4)])
    assert not explained(out, [hidden(0, 0, 1)])
    assert not explained(out, [hidden([0, 0, 1, 0])[None, None, None]])
    assert not explained(torch.tensor(-INF), [torch.tensor(True)])
    assert not explained(torch.tensor([-INF]), [torch.tensor(True)])
    assert not explained(torch.tensor(-INF), [hidden(1)])


def test_an_input_that_is_minus_infinite_there_explains_it():
    """Elsewhere it explains nothing; two inputs explain together what neither does alone."""
    out = torch.tensor([0.0, -INF, -INF])
    first, second = torch.tensor([1.0, -INF, 2.0]), torch.tensor([0.0, 0.0, -INF])
    assert explained(out, [first, second])
    assert not explained(out, [first])
    assert not explained(out, [first, torch.tensor([INF, 0.0, INF])])
    assert explained(out, [first, hidden(0, 0, 1)])
    assert not explained(out, [first, hidden(0, 1, 0)])
    assert not explained(out, [])


def test_token_ids_and_meta_tensors_explain_nothing():
    """Labels of 0 and 1 are no mask."""
    out = torch.tensor([0.0, -INF])
    assert not explained(out, [torch.tensor([0, 1])])
    assert not explained(out, [hidden(0, 1).to("meta")])
    assert not explained(out.to_sparse(), [hidden(0, 1)])


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ([0.0, -INF], "", True),
        ([-INF, -INF], "", True),
        ([0.0, 0.0], "", False),
        ([0.5, -INF], "", False),
        ([0.5, -INF], "attn_bias", True),
        ([0.5, -INF], "attn_mask", True),
        ([INF, -INF], "attn_mask", False),
        ([float("nan"), -INF], "attn_mask", False),
    ],
)
def test_an_additive_mask_is_known_by_its_values_or_its_name(values, name, expected):
    """Nothing but 0 and -inf; other finite numbers only where the name says what it is."""
    assert is_mask(torch.tensor(values), name) is expected
    assert not is_mask(torch.tensor(values).to("meta"), name)


def test_a_module_makes_a_mask_out_of_integers_only():
    """Given a floating point number, it is none."""
    out = torch.tensor([0.0, -INF])
    assert makes_mask(out, [])
    assert makes_mask(out, [torch.tensor([1, 0]), hidden(1, 0)])
    assert not makes_mask(out, [torch.tensor([1, 0]), torch.ones(2)])
    assert not makes_mask(out + 1, [torch.tensor([1, 0])])


# Finite or not.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_finite_sum_proves_all_finite(dtype):
    """Wherever a NaN or an Inf stands, the sum is not finite; an overflow is cleared."""
    values = torch.randn(100, dtype=torch.float64).to(dtype)
    assert is_finite(values)
    for bad in (float("nan"), INF, -INF):
        for place in (0, 50, 99):
            poisoned = values.clone()
            poisoned[place] = bad
            assert not total(poisoned).isfinite()
            assert not total(poisoned, exact=True).isfinite()
            assert not is_finite(poisoned)
    large = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(large)
    if dtype is not torch.float64:
        assert total(large, exact=True).isfinite()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_the_first_bad_value_is_found_in_any_layout():
    """Strided in any order of strides, sparse in two layouts: the index in the tensor."""
    values = torch.zeros(3, 4)
    values[1, 2], values[2, 0] = INF, float("nan")
    for tensor in (values, values.T.contiguous().T, values.to_sparse(), values.to_sparse_csr()):
        found = examine(tensor)
        assert (found.nan, found.inf, found.position) == (1, 1, (1, 2))
        assert found.shape == (3, 4)
    assert examine(values.T).position == (0, 2)
    assert examine(torch.zeros(3)) is None
    assert examine(torch.tensor(INF)).position == ()


def test_masks_are_told_from_other_infinities():
    """Only if every value that is not finite is -inf."""
    assert examine(torch.tensor([1.0, -INF])).masks
    for other in (INF, float("nan")):
        assert not examine(torch.tensor([other, -INF])).masks
    assert not examine(torch.tensor([complex(-INF, 0)])).masks
