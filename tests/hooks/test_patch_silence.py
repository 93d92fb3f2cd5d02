"""Edits that were never made are reported, with the likely cause."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hookline import patch
from hookline.edits import add, scale, zero

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A layer, then what a test gives, then a layer."""

    def __init__(self, between):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)
        self.between = between

    def forward(self, x):
        return self.two(self.between(self.one(x)))


def causes(patched):
    return [(row.path, row.cause) for row in patched.silent()]


def step(net):
    """The gradient of the first layer's weight."""
    net.zero_grad()
    out = net(X)
    if out.requires_grad:
        out.sum().backward()
    return net.one.weight.grad


WITHOUT_A_NODE = {
    ":dropout": lambda h: F.dropout(h, 0.5, training=False),
    ":contiguous": torch.Tensor.contiguous,
    ":float": torch.Tensor.float,
    ":detach": torch.Tensor.detach,
    ":argmax": lambda h: h + h.argmax(-1, keepdim=True),
    ":zeros": lambda h: torch.zeros(4, 3) + h,
    ":ones_like": lambda h: h * torch.ones_like(h),
    ":bernoulli": lambda h: h * torch.bernoulli(torch.full((4, 3), 0.5)),
}


@pytest.mark.parametrize("address", WITHOUT_A_NODE)
def test_r9_a_function_without_a_gradient_of_its_own(address):
    """An edit of its gradient changes nothing, and says so."""
    torch.manual_seed(0)
    net = Net(WITHOUT_A_NODE[address])
    torch.manual_seed(1)
    expected = step(net)
    with patch(net, {address: scale(0.0, on="grad")}) as patched:
        torch.manual_seed(1)
        found = step(net)

    assert (found is None) == (expected is None)
    assert found is None or torch.equal(found, expected)
    (row,) = patched.silent()
    assert (row.path, row.type, row.cause) == (address, "Net", "no gradient")
    assert "returns its input as it is" in row.advice
    assert row.hooks == ("<Edit scale(0.0) on='grad'>",)


@pytest.mark.parametrize("address", [":relu", ":relu_", ":view", ":split", ":add_"])
def test_r9_a_function_with_one_is_changed_and_not_reported(address):
    """Views and in-place functions have a node of their own."""
    between = {
        ":relu": F.relu,
        ":relu_": torch.relu_,
        ":view": lambda h: h.view(4, 3),
        ":split": lambda h: torch.cat(torch.split(h, 1, -1), -1),
        ":add_": lambda h: h.add_(1),
    }
    torch.manual_seed(0)
    net = Net(between[address])
    with patch(net, {address: zero(on="grad")}) as patched:
        assert not step(net).any()
    assert patched.silent() == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_r9_a_forward_without_gradients(mode):
    """An edit of a gradient is reported for each module that ran, not for those that did not."""
    net = Net(F.relu)
    edits = {nn.Linear: [scale(2.0, on="grad"), add(0.0)], ":relu": zero(on="grad")}
    with mode(), patch(net, edits) as patched:
        net(X)
        assert causes(patched) == [
            ("unused", "not called"),
            ("one", "no gradient"),
            ("two", "no gradient"),
            (":relu", "no gradient"),
        ]
    assert len(causes(patched)) == 4  # once closed, too


def test_r9_a_backward_that_comes_later_is_no_silence():
    """Nor is a forward without gradients beside one with them."""
    net = Net(F.relu)
    with patch(net, {"one": scale(2.0, on="grad")}) as patched:
        with torch.no_grad():
            net(X)
        assert causes(patched) == [("one", "no gradient")]
        step(net)
        assert causes(patched) == []


def test_r9_a_backward_after_the_patch():
    """Comes too late to be changed."""
    net = Net(F.relu)
    with patch(net, {"one": scale(2.0, on="grad")}) as patched:
        out = net(X)
    out.sum().backward()
    assert causes(patched) == [("one", "no gradient")]


def test_r9_an_output_that_is_not_used():
    """No gradient flows to it, though its module ran and the backward too."""
    net = Net(lambda h: h * 0 + net.unused(h) * 0 + h)

    class Left(Net):
        def forward(self, x):
            self.unused(x)
            return super().forward(x)

    left = Left(F.relu)
    with patch(left, {"unused": scale(2.0, on="grad"), "one": scale(2.0, on="grad")}) as patched:
        step(left)
    assert causes(patched) == [("unused", "no gradient")]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("on", ["output", "input"])
def test_r9_calls_that_were_not_reached(on, first):
    """An edit for the third call is reported where there were two."""
    net = Net(F.relu)
    edits = [zero(on=on, calls=2), add(0.0, on=on, calls=slice(1, None))]
    with patch(net, {"one": edits}, first=first) as patched:
        net(X)
        assert [row.hooks for row in patched.silent()] == [(repr(edit),) for edit in edits]
        net(X)
        (row,) = patched.silent()
        assert (row.path, row.cause, row.hooks) == ("one", "not called", (repr(edits[0]),))
        assert row.advice == "it was called, but not in the calls that the edit is for"
        net(X)
        assert patched.silent() == []


def test_r9_each_place_of_a_pattern_counts_by_itself():
    """One edit on several modules is reported where it was not made."""
    net = Net(torch.Tensor.detach)  # no gradient comes to what is before it
    with patch(net, {nn.Linear: scale(2.0, on="grad")}) as patched:
        step(net)
    assert causes(patched) == [("unused", "not called"), ("one", "no gradient")]


def test_r9_a_shared_module_under_two_paths():
    """What never ran is reported once for its seat, not again for its edits."""
    net = Net(F.relu)
    net.again = net.unused
    with patch(net, {"unused": zero(), "again": add(1.0, on="grad")}) as patched:
        step(net)
    assert causes(patched) == [("unused", "never called")]


def test_r9_the_gradient_of_one_of_several_outputs():
    """The backward came, but not by the output whose gradient was to be changed."""
    lstm = nn.LSTM(3, 2)
    edits = [scale(2.0, on="grad[0]"), scale(2.0, on="grad[1][1]")]
    with patch(lstm, {"": edits}) as patched:
        out, _ = lstm(X)
        out.sum().backward()
    (row,) = patched.silent()
    assert (row.path, row.cause, row.hooks) == ("", "no gradient", (repr(edits[1]),))
