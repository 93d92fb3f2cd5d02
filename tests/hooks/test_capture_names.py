"""Captures are named as in the model that was given, wherever it is called."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hookline
from hookline import CaptureKeyError, capture


class Whole(nn.Module):
    def __init__(self, part, more=None):
        super().__init__()
        self.part, self.more = part, more

    def forward(self, x):
        x = self.part(x)
        return x if self.more is None else self.more(x)


class Attend(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def part():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


X = torch.ones(1, 2)


def test_a_part_is_captured_by_its_own_paths():
    """What was selected is read by the name that selected it, values and gradients."""
    whole = Whole(part(), nn.Linear(2, 1))
    with capture(whole.part, "", "0", "1:relu", what=("input", "output", "grad")) as acts:
        whole(X).sum().backward()
    assert set(acts) == {"", "0", "1:relu"}
    assert torch.equal(acts["0"].output, whole.part[0](X))
    assert torch.equal(acts[""].output, acts["1:relu"].output)
    assert torch.equal(acts["1:relu"].grad, whole.more.weight)
    assert acts["1:relu[0]"].output is not None
    assert acts["0"].paths == ("0",)
    assert torch.equal(acts["0"].input, X)


def test_a_leaf_is_captured_as_when_it_is_called_alone():
    """The given model itself has the name that it has when it is the root."""
    whole = Whole(part(), nn.Linear(2, 1))
    with capture(whole.more, "") as acts:
        whole(X)
    leaf = nn.Linear(2, 1)
    with capture(leaf, "") as alone:
        leaf(X)
    assert list(acts) == list(alone) == [""]
    assert acts[""].output.shape == (1, 1)


@pytest.mark.parametrize("first", ["alone", "inside"])
def test_one_name_alone_and_inside(first):
    """Calls of the model alone, inside another and wrapped later are calls under one name."""
    model = part()
    with capture(model, "0", "0:linear") as acts:
        calls = [model, Whole(model), Whole(Whole(model))]
        for call in calls if first == "alone" else reversed(calls):
            call(X)
    assert list(acts) == ["0:linear", "0"]
    assert len(acts["0"]) == len(acts["0:linear"]) == 3


def test_a_shared_module_has_the_path_by_which_it_ran():
    """Of several paths in the given model, that of the call counts, also in a larger model."""
    layer = nn.Linear(2, 2)
    shared = nn.Sequential(layer, nn.Sequential(layer))
    with capture(shared) as acts:
        Whole(shared, shared)(X)
    assert list(acts) == ["0", "1.0", "1", ""]
    assert [len(entry) for entry in acts.values()] == [2, 2, 2, 2]
    assert acts["1.0"].paths == ("0", "1.0")


def test_a_module_called_from_outside_keeps_its_path_there():
    """A call by a path outside of the given model has the full path, and is found by its own."""
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer)
    outer = Whole(nn.Sequential(layer))
    outer.rest = model
    with capture(model, "0") as acts:
        outer(X)
    assert list(acts) == ["part.0"]
    assert acts["0"] is acts["part.0"]


def test_attention_of_a_part_has_the_paths_of_the_part():
    """Weights are named like captures."""
    model = nn.Sequential(Attend())
    with hookline.attention(model) as weights:
        Whole(model)(torch.ones(1, 2, 2))
    assert list(weights) == ["0"]


def test_an_error_never_suggests_the_name_that_was_asked_for():
    """What was selected and called, but is not held, is said to be that."""
    model = part()
    with capture(model, "0") as acts:
        Whole(model)(X)
    acts.clear()
    with pytest.raises(CaptureKeyError, match="no call of it is held") as caught:
        acts["0"]
    assert "did you mean" not in str(caught.value)


def test_a_saved_capture_has_the_same_names(tmp_path):
    """Names survive being saved."""
    model = part()
    with capture(model, "0") as acts:
        model(X)
        Whole(model)(X)
    acts.save(tmp_path / "acts.safetensors")
    loaded = hookline.load_capture(tmp_path / "acts.safetensors")
    assert list(loaded) == ["0"]
    assert len(loaded["0"]) == 2
