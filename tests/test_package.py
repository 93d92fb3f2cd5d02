"""The top of the package, whose names are loaded on first use."""

import pytest

import hookline


def test_a_misspelt_name_is_told_with_the_near_one():
    """Python itself prints a suggestion, if the error says where to look."""
    with pytest.raises(AttributeError, match="has no attribute 'captur'") as caught:
        _ = hookline.captur
    assert caught.value.name == "captur"
    assert caught.value.obj is hookline


def test_every_public_name_can_be_loaded():
    """Names that are loaded late must lead somewhere."""
    assert [name for name in hookline.__all__ if not hasattr(hookline, name)] == []
    assert set(hookline.__all__) == set(dir(hookline))
