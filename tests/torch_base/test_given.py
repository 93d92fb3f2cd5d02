"""The names in a model that was given, whatever larger model it is called in."""

import gc

import pytest
from torch import nn

from hookline.torch_base.given import Given
from hookline.torch_base.paths import Root, roots


def part():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def whole(**children):
    model = nn.Module()
    for name, child in children.items():
        model.add_module(name, child)
    return model


def root_of(model):
    """A root, walked, which nothing else knows of."""
    root = Root(model, "Whole")
    root.walk(0)
    return root


@pytest.mark.parametrize(
    ("path", "found"),
    [("enc", ""), ("enc.0", "0"), ("enc.0.weight", "0.weight"), ("", None), ("encoder", None)],
)
def test_a_path_in_a_larger_model_is_one_in_the_part(path, found):
    """What lies outside, also under a name that only begins alike, stays what it was."""
    model = part()
    given = Given(model)
    larger = root_of(whole(enc=model, encoder=part()))
    expected = (larger, path) if found is None else (given.root, found)
    assert given.place(larger, path) == expected


def test_every_seat_of_a_part_counts():
    """A part that stands at two places is left by neither of its paths."""
    model = part()
    given = Given(model)
    larger = root_of(whole(one=model, two=whole(inner=model), other=part()))
    assert given.paths(larger, ("one.0", "two.inner.1", "other.0")) == ("0", "1")


def test_its_own_root_is_itself():
    """Where the model is called by itself, nothing is cut off."""
    model = part()
    given = Given(model)
    assert given.place(given.root, "1") == (given.root, "1")


def test_to_ask_changes_no_membership():
    """A child belongs to the root that it belonged to, also after another walk."""
    inner = part()
    outer = whole(inner=inner)
    given = Given(inner)
    root = roots.declare(outer)
    inner.append(nn.Tanh())
    roots.version += 1  # as if a hook had been on
    assert {paths[0] for paths in given.current().seats.values()} == {"", "0", "1", "2"}
    assert roots.root_of(inner[0]) is root


def test_r5_it_keeps_no_model_alive():
    """Once the model is gone there is none, and nothing in it."""
    model = part()
    given = Given(model)
    assert given.model is model
    del model
    gc.collect()
    given.walk(0)
    assert (given.model, given.seats) == (None, {})
