"""How what is in a model is called in texts."""

from types import SimpleNamespace

import pytest

from hookline.core.names import around, full_name, joined, shortened, where


@pytest.mark.parametrize("path", ["", "a", "a.b", "encoder.layers.0"])
def test_what_is_around_a_path_leads_to_the_root(path):
    """Checked against cutting the path by hand; of the root there is nothing around."""
    parts = path.split(".") if path else []
    assert list(around(path)) == [".".join(parts[:n]) for n in reversed(range(len(parts)))]


def test_joined_paths_have_no_dot_at_the_root():
    """A parameter of the root goes by its own name."""
    assert joined("", "weight") == "weight"
    assert joined("a.b", "weight") == "a.b.weight"


@pytest.mark.parametrize(("most", "text"), [(2, "a, b and 1 more"), (3, "a, b, c")])
def test_long_lists_are_shortened(most, text):
    """How many are left out is said."""
    assert shortened("abc", most) == text
    assert shortened([], most) == ""


@pytest.mark.parametrize(
    ("path", "name", "below", "full"),
    [
        ("head", "", "head", "Net head"),
        ("", "", "Net", "Net"),
        ("head", "relu", "head:relu", "Net head:relu"),
        ("", "relu", ":relu", "Net:relu"),
        (None, "relu", "relu (outside modules)", "relu (outside modules)"),
        (None, "", "outside modules", "outside modules"),
    ],
)
def test_what_a_row_is_of(path, name, below, full):
    """A module by its path, a function by its address; the root stands in front of both."""
    row = SimpleNamespace(root="Net", path=path, name=name)
    assert (where(row), full_name(row)) == (below, full)
