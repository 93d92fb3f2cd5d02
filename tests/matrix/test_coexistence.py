"""Other libraries' hooks and ours on one model, set and removed in every order: none is lost."""

from contextlib import ExitStack, nullcontext
from functools import cache
from itertools import product

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline
from tests.matrix.case import rows, same, smooth, squares
from tests.matrix.kinds import KINDS
from tests.matrix.peers import PEERS

ORDERS = list(product(["ours", "theirs"], repeat=2))


@cache
def alone(make):
    """What a peer gives without hookline, and saw by then: twice with its hooks, then without."""
    peer = make()
    remove = peer.put()
    first, second = [(peer.run(), list(peer.seen)) for _ in range(2)]
    remove()
    return first, second, peer.run()


def assert_same(found, expected):
    """Each value is the same in each bit."""
    assert len(found) == len(expected)
    assert [
        place for place, pair in enumerate(zip(found, expected, strict=True)) if not same(*pair)
    ] == []


# Where a gradient is a sum over several uses, views of a tensor have torch add up in another order.
SUMMED_ELSEWHERE = {
    "transformers": {"backward hooks", "backward hooks on all", "ModuleHook, inputs"}
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("set_first", "out_first"), ORDERS)
def test_r6_nobodys_hooks_are_lost(name, kind, set_first, out_first):
    """Both work while both are on, and each goes on when the other's are gone."""
    (first, first_seen), (second, second_seen), bare = alone(PEERS[name])
    check = torch.testing.assert_close if kind in SUMMED_ELSEWHERE.get(name, ()) else assert_same
    has_events = not (kind.startswith("backward") and name == "accelerate offload")
    peer = PEERS[name]()
    with ExitStack() as ours, ExitStack() as theirs:
        if set_first == "theirs":
            theirs.callback(peer.put())
        count = ours.enter_context(KINDS[kind](peer.model))
        if set_first == "ours":
            theirs.callback(peer.put())
        check(peer.run(), first)
        assert peer.seen == first_seen
        assert bool(count()) == has_events

        if out_first == "ours":
            ours.close()
            assert_same(peer.run(), second)
            assert peer.seen == second_seen
        else:
            theirs.close()
            before = count()
            check(peer.run(), bare)
            assert count() > before or kind in TALLIES or not has_events
    assert_same(peer.run(), bare)


TALLIES = {
    "TimerHook",
    "StatsHook",
    "NonFiniteHook",
    "RangeHook",
    "MemoryHook",
    "FlopHook",
    "capture",
}
"""Kinds that tell no number of calls here."""


class Steps(Callback):
    """A user's callback, which looks at gradients."""

    def __init__(self):
        self.seen = []

    def on_after_backward(self, trainer, module):
        self.seen.append(module.net[0].weight.grad.sum().item())


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = smooth()

    def training_step(self, batch, index):
        return squares(self.net(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(around, tmp_path):
    """The weights and what the callback saw after two epochs, with something around the fit."""
    torch.manual_seed(0)
    module, steps = Module(), Steps()
    loader = DataLoader(TensorDataset(rows(grad=False)), batch_size=1)
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = Trainer(
        max_epochs=2,
        callbacks=[steps],
        enable_progress_bar=False,
        enable_model_summary=True,
        accumulate_grad_batches=2,
        default_root_dir=tmp_path,
        **options,
    )
    with around(module) as count:
        trainer.fit(module, loader)
        times = count()
    return [p.detach() for p in module.parameters()], steps.seen, times


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", ["backward hooks", "ModuleHook", "FunctionHook", "capture", "patch"]
)
def test_r6_lightning_trains_as_without(kind, tmp_path):
    """Weights and what its callbacks see are equal; hooks see the calls inside of the loop."""
    weights, seen, _ = fitted(lambda _: nullcontext(int), tmp_path)
    found, found_seen, count = fitted(KINDS[kind], tmp_path)

    assert_same(found, weights)
    assert found_seen == seen
    assert count


@pytest.mark.parametrize("first", [True, False])
def test_r6_a_patch_and_the_hidden_states_of_transformers(first):
    """A patch comes after the hooks that collect hidden states, or before them with `first`."""
    peer = PEERS["transformers"]()
    plain = peer.model(torch.arange(6)[None], output_hidden_states=True)
    with hookline.patch(peer.model, {"layers.0": lambda hidden: hidden * 2}, first=first):
        out = peer.model(torch.arange(6)[None], output_hidden_states=True)

    assert torch.equal(out.hidden_states[1], plain.hidden_states[1] * (2 if first else 1))
    assert not torch.equal(out.last_hidden_state, plain.last_hidden_state)


def test_r6_a_layer_under_accelerate_can_be_wrapped():
    """`with_hooks` around a layer whose `forward` accelerate has exchanged, and the other way."""
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    class Adds(ModelHook):
        def post_forward(self, module, output):
            return output + 1

    x = rows(grad=False)
    for hooked_first in (True, False):
        layer = nn.Linear(4, 2)
        plain = layer(x)
        if hooked_first:
            add_hook_to_module(layer, Adds())
        wrapped, hooks = hookline.with_hooks(layer)
        if not hooked_first:
            add_hook_to_module(wrapped, Adds())
        hooks.add_forward_hook(lambda inputs, output: output * 2)
        assert torch.equal(wrapped(x), (plain + 1) * 2)
        remove_hook_from_module(wrapped)
        assert torch.equal(wrapped(x), plain * 2)
