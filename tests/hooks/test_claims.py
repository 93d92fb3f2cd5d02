"""Sums between numbers, and who claims a storage."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from hookline.core.calls import Pass
from hookline.hooks.claims import Claims, Sums
from hookline.torch_base.saved import Saved

NUMBERS = st.integers(0, 30)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 100))), NUMBERS, NUMBERS)
def test_sums_are_those_of_a_plain_loop(amounts, start, stop):
    """From the first number up to before the last."""
    start, stop = sorted((start, stop))
    expected = sum(amount for number, amount in amounts if start <= number < stop)
    assert Sums(amounts).between(start, stop) == expected


def claims():
    root = SimpleNamespace(name="", seats={})  # as that of functions outside of any module
    return Claims(Pass(root, 0, 0, "train", None, 0))


def test_a_storage_is_claimed_once_by_the_lowest_number():
    """Whichever comes first."""
    found, x = claims(), torch.ones(3)
    (claim,) = found.of(Saved(5, x, packed=False))
    assert list(found.of(Saved(3, x[1:], packed=False))) == []
    assert list(found.of(Saved(9, [x], packed=True))) == []
    assert (claim.number, claim.size, claim.packed) == (3, 12, False)


def test_a_storage_that_is_gone_leaves_no_claim_to_the_next():
    """Though that may have its address."""
    found = claims()
    sizes = [claim.size for _ in range(5) for claim in found.of(Saved(1, torch.ones(9), False))]
    assert sizes == [36] * 5
    assert len(found._found) == 0
