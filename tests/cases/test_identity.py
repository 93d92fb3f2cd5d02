"""Troubles people report: which call a record belongs to.

The numbers are those of the list of reported troubles that this library was built against.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

from hookline import (
    ModuleHook,
    add_hook,
    register_forward_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
)
from hookline.module_hooks import TimerHook


class SharedActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x)))).sum()


def test_c13_records_by_path_and_index():
    """One activation used twice gives two records, and each backward finds its forward."""
    net, stored, matches = SharedActivation(), {}, {}

    class Records(ModuleHook):
        needs_grad_input = True

        def forward_postprocess(self, call):
            stored[call.path, call.index] = call.out.detach().clone()

        def backward_postprocess(self, call):
            if call.path == "act":
                passed = (stored[call.path, call.index] > 0) & (call.grad_output[0] != 0)
                matches[call.index] = torch.equal(call.grad_input[0] != 0, passed)

    with Records():
        net(torch.randn(4, 3, requires_grad=True)).backward()

    assert set(stored) == {("first", 0), ("act", 0), ("second", 0), ("act", 1), ("", 0)}
    assert matches == {1: True, 0: True}


def test_c13_a_module_called_in_a_loop():
    """Each of many calls has an index of its own, in forward and backward."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(2, 2)

        def forward(self, x, times):
            for _ in range(times):
                x = self.step(x)
            return x

    net, events = Loop(), []

    class Notes(ModuleHook):
        def note(self, call):
            if call.path:
                events.append((str(call.phase), call.index))

        forward_preprocess = backward_postprocess = note

    with Notes():
        net(torch.ones(1, 2), 7).sum().backward()
    assert events == [
        *[("forward_pre", index) for index in range(7)],
        *[("backward", index) for index in reversed(range(7))],
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_c16_events_of_a_recomputation_are_marked(reentrant):
    """Those inside the backward are told apart, and begins and ends are paired."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    counts = Counter()

    class Counts(ModuleHook):
        def forward_preprocess(self, call):
            counts["begin", call.path, call.recomputing] += 1

        def forward_postprocess(self, call):
            counts["end", call.path, call.recomputing] += 1

        def aborted(self, call, exception):
            counts["end", call.path, call.recomputing] += 1

    with Counts():
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()

    assert counts == {
        (side, path, again): 1
        for side in ("begin", "end")
        for path in ("", "0", "1", "2")
        for again in (False, True)
    }


@pytest.mark.parametrize("reentrant", [True, False])
def test_c16_hooks_that_change_values_change_them_again(reentrant):
    """What a forward hook changes is changed in the recomputation too, so gradients are right."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def double(module, args, output):
        return output * 2

    def gradient(run):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        run(x).sum().backward()
        return x.grad

    with register_forward_hook(net[0], double):
        found = gradient(lambda x: checkpoint(net, x, use_reentrant=reentrant))
    expected = gradient(lambda x: (net[0](x) * 2).sigmoid())
    assert torch.allclose(found, expected)


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 11, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


@pytest.mark.parametrize("cached", [True, False])
def test_c23_generation_makes_a_pass_for_each_token(cached):
    """The prompt comes at once, then one token a pass (or all so far, without a cache)."""
    model, rows = gpt2(), []

    class Steps(ModuleHook):
        def forward_postprocess(self, call):
            if call.path == "transformer.h.1.mlp":
                rows.append((call.pass_number, call.index, call.mode, call.out.shape[1]))

    with Steps():
        model.generate(
            torch.tensor([[1, 2, 3, 4]]),
            max_new_tokens=3,
            min_new_tokens=3,
            do_sample=False,
            use_cache=cached,
            pad_token_id=0,
        )

    lengths = [4, 1, 1] if cached else [4, 5, 6]
    assert rows == [(step, 0, "eval", length) for step, length in enumerate(lengths)]


def test_c23_a_patch_may_apply_to_some_steps_only():
    """By its pass a hook knows the prompt from the steps after it."""
    model, ids = gpt2(), torch.tensor([[1, 2, 3, 4]])
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)

    class Forces(ModuleHook):
        """Makes the third step choose token 7."""

        def forward_postprocess(self, call):
            if call.path == "lm_head" and call.pass_number - self.first == 2:
                logits = torch.zeros_like(call.out)
                logits[..., 7] = 1
                call.replace(logits)

        def forward_preprocess(self, call):
            self.first = min(getattr(self, "first", call.pass_number), call.pass_number)

    with Forces():
        forced = model.generate(ids, **options)
    assert torch.equal(forced[0, :6], plain[0, :6])
    assert forced[0, 6] == 7


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = self.b = nn.ReLU()

    def forward(self, x):
        return self.b(self.a(x))


def test_c64_two_names_are_one_module():
    """Each call counts once, under one name, with all names listed."""
    net, rows = TwoNames(), []

    class Notes(ModuleHook):
        def forward_preprocess(self, call):
            rows.append((call.path, call.index, call.paths))

    with Notes(), TimerHook() as timer:
        net(torch.ones(1))

    assert rows == [("", 0, ("",)), ("a", 0, ("a", "b")), ("a", 1, ("a", "b"))]
    assert timer.summary()["a"]["occurrence"] == 2
    assert "b" not in timer.summary()


def test_c64_registering_under_both_names_is_registering_twice():
    """A walk by names puts two hooks on the module, which one sees; by modules just one."""
    net, fired = TwoNames(), []
    handles = []
    for _, child in net.named_children():
        handles.append(register_forward_hook(child, lambda *_: fired.append(1)))
    net(torch.ones(1))
    assert len(fired) == 2
    for handle in handles:
        handle.remove()

    hook = TimerHook()
    with add_hook(net.a, hook), pytest.raises(KeyError, match="TimerHook already exists"):
        add_hook(net.b, hook)


def test_c81_hooks_in_a_loop_know_whose_gradient_they_get():
    """The event says the name, so no closure has to catch a loop variable."""
    net = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = net

        def forward(self, x):
            return self.parts["a"](x) * 2 + self.parts["b"](x) * 3

    seen = {}

    class Notes(ModuleHook):
        def backward_preprocess(self, call):
            seen[call.path, call.index, call.type] = call.grad_output[0].item()

    model, notes = Both(), Notes()
    handles = [add_hook(child, notes) for child in net.values()]
    model(torch.ones(1, 1)).backward()
    for handle in handles:
        handle.remove()

    assert seen == {("parts.b", 0, "Linear"): 3.0, ("parts.a", 0, "Linear"): 2.0}


@pytest.mark.parametrize("register", [register_full_backward_hook, register_full_backward_pre_hook])
def test_c81_torch_style_hooks_are_told_the_module(register):
    """Which is enough to tell them apart, one function on many modules."""
    net, order = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), []

    def hook(module, *gradients):
        order.append([name for name, each in net.named_children() if each is module])

    with register(net[0], hook), register(net[1], hook):
        net(torch.ones(1, 1, requires_grad=True)).backward()
    assert order == [["1"], ["0"]]
