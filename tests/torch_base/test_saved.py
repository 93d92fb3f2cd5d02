"""What autograd keeps, read from its nodes."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from hookline.torch_base.private import saved_by, sequence_number
from hookline.torch_base.saved import SavedWalk


def test_what_a_node_keeps_is_read_as_it_is():
    """The tensors themselves, without a copy; None where none is needed."""
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    assert [(value is y, packed) for value, packed in saved_by((x * y).grad_fn)] == [
        (True, False),
        (False, False),
    ]
    assert saved_by((x * y).grad_fn)[1][0] is None


def test_packed_values_come_as_they_were_packed():
    """And are not unpacked."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: ("packed", t), lambda _: 1 / 0):
        out = torch.ones(3, requires_grad=True).exp()
    (value, packed) = saved_by(out.grad_fn)[0]
    assert packed
    assert value[0] == "packed"


def test_a_checkpoint_is_not_unpacked():
    """It would compute its part again."""
    calls = []

    def part(x):
        calls.append(1)
        return x.exp().sin()

    out = checkpoint(part, torch.ones(3, requires_grad=True), use_reentrant=False)
    assert [packed for _, packed in saved_by(out.grad_fn)] == [True]
    assert calls == [1]


def test_nothing_is_kept_after_the_backward():
    """Of lists, single tensors and custom functions alike, and nobody is told off."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(3, requires_grad=True)
    for out in (x[torch.tensor([0])], x.exp(), Custom.apply(x)):
        node = out.grad_fn
        assert any(value is not None for value, _ in saved_by(node))
        out.sum().backward()
        assert not any(value is not None for value, _ in saved_by(node))


def test_a_walk_meets_each_node_once_and_none_from_before():
    """Over two outputs that share nodes, and in two walks."""
    x = torch.ones(3, requires_grad=True).exp()
    start = sequence_number()
    shared = x.sin()
    one, two = shared.exp(), shared.cos()
    walk = SavedWalk()
    first = [saved.number - start for saved in walk.back_from([one, two], start)]
    assert sorted(first) == [0, 1, 2]
    three = two.exp()
    second = [saved.number - start for saved in walk.back_from([three, one], start)]
    assert second == [3]


def test_nodes_of_other_threads_are_not_taken_for_the_calls():
    """What they are numbered beyond this thread's own is no node of the call."""
    import threading

    made = []

    def work():
        x = torch.ones(3, requires_grad=True)
        for _ in range(10):
            x = x.exp()
        made.append(x)

    def read():
        start = sequence_number()
        out = made[0].sin()
        made.append([saved.number - start for saved in SavedWalk().back_from([out], start)])

    for target in (work, read):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert made[1] == [0]
