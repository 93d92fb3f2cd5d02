"""Replicas of `DataParallel`: hooks see them as the module that they are made of.

The real thing needs several devices. Here torch's own `replicate` makes the replicas on the CPU
(only its broadcast is replaced), and they run in threads, as `parallel_apply` runs them.
"""

import gc
import sys
import threading
from collections import Counter

import pytest
import torch
from torch import nn

import hookline
from hookline import ModuleHook, add_hook, capture, hooks_of, register_forward_hook, watch
from hookline.core.records import TimeRow
from hookline.module_hooks import StatsHook, TimerHook
from hookline.modules.places import table
from hookline.record.measures import Measures
from hookline.record.run import Recorder
from hookline.torch_base.paths import roots
from hookline.torch_base.replicas import originals
from tests.distributed.manners import SeenFunctions

X = torch.linspace(-1, 1, 24).reshape(6, 4)
COPIES = 3


class Net(nn.Module):
    """Two parts; the second has two names."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.alias = self.head

    def forward(self, x):
        return self.head(self.enc(x))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def run(monkeypatch):
    """Runs a model as `DataParallel` does: a replica for each part of the input."""
    torch_replicate = sys.modules["torch.nn.parallel.replicate"]

    def broadcast(tensors, devices, detach=False):
        return [[tensor.view_as(tensor) for tensor in tensors] for _ in devices]

    monkeypatch.setattr(torch_replicate, "_broadcast_coalesced_reshape", broadcast)
    monkeypatch.setattr(torch_replicate, "_get_device_index", lambda device, _: device)

    def run(model):
        outs, parts = {}, X.chunk(COPIES)
        replicas = torch_replicate.replicate(model, list(range(COPIES)))

        def work(place):
            outs[place] = replicas[place](parts[place])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(COPIES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([outs[place] for place in range(COPIES)])

    return run


class Events(ModuleHook):
    """Keeps what each event says of its call."""

    def __init__(self):
        self.rows = []

    def note(self, call):
        self.rows.append((call.phase.value, call.root, call.paths, call.index, call.pass_number))

    forward_preprocess = forward_postprocess = note
    backward_preprocess = backward_postprocess = note


def step(run, net):
    """All that a training step gives: the output and the gradients."""
    net.zero_grad()
    out = run(net)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in net.parameters())]


def test_c27_each_replica_has_the_events_of_the_model(net, run):
    """Forward and backward, by the model's root and paths; each replica's forward is a pass."""
    events = Events()
    with watch(net, events):
        net(X).sum().backward()
        expected, events.rows = events.rows, []
        step(run, net)
    assert len(expected) == 20
    assert Counter(events.rows) == Counter(
        (*row[:4], 1 + copy) for row in expected for copy in range(COPIES)
    )


def test_c27_no_record_is_lost(net, run):
    """What is stored by path and call holds all replicas' values: together, those of one model."""
    expected = net(X)
    with capture(net, "**", what=("output", "grad")) as acts:
        step(run, net)

    head = acts["head"]
    assert len(head) == COPIES
    together = torch.cat([call.output for call in head]).sort(0).values
    assert torch.equal(together, expected.sort(0).values)
    assert all(torch.equal(call.grad, 2 * call.output) for call in head)


def test_c27_hooks_get_the_replica_and_the_module_lives_on(net, run):
    """The argument is what was called, with its own weights, as with torch's hooks."""
    got, by_torch = [], []
    with register_forward_hook(net.head, lambda module, args, out: got.append(module)):
        handle = net.head.register_forward_hook(lambda module, *_: by_torch.append(module))
        step(run, net)
        handle.remove()

    assert got == by_torch
    assert len(set(got)) == COPIES
    assert net.head not in got


def test_c27_a_backward_is_that_of_the_module(net, run):
    """The replica may be gone by then, so hooks get what it was made of: also if it is not."""
    got, kept = [], []
    with (
        hookline.register_full_backward_hook(net.head, lambda m, gi, go: got.append(m)),
        register_forward_hook(net.head, lambda module, args, out: kept.append(module)),
    ):
        step(run, net)
    assert got == [net.head] * COPIES


def test_c27_results_are_as_without_hooks(net, run):
    """Bit for bit, with hooks of all kinds on."""
    expected = step(run, net)
    rows = []
    with watch(net, Events(), TimerHook(), StatsHook(every=1), SeenFunctions(rows)):
        found = step(run, net)
    assert all(map(torch.equal, found, expected))
    assert {label for _, label, _ in rows} == {
        "enc.0:linear[0]",
        "enc.1:relu[0]",
        "head:linear[0]",
    }
    assert Counter(phase for phase, *_ in rows) == {
        "forward_pre": 3 * COPIES,
        "backward": 3 * COPIES,
    }


def test_c27_statistics_are_merged_by_path(net, run):
    """The rows are those of the model run in one, and parameters have the model's names."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    stats, whole = StatsHook(every=1), StatsHook(every=1)
    for hook, forward in ((stats, run), (whole, lambda net: net(X))):
        with watch(net, hook):
            step(forward, net)
            optimizer.step()

    def numbers(hook):
        return {
            (row.path, row.direction): (row.count, pytest.approx(row.mean), row.abs_max)
            for row in hook.rows()
        }

    assert numbers(stats) == numbers(whole)
    assert [row.name for row in stats.parameter_rows()] == [n for n, _ in net.named_parameters()]


def test_value_hooks_of_a_wrapped_layer_change_what_replicas_give(net, run):
    """Forward, and backward."""
    expected = run(net)
    net.head, hooks = hookline.with_hooks(net.head)
    with (
        hooks.add_forward_hook(lambda x, out: out + 1),
        hooks.add_backward_hook(lambda grad: grad * 0),
    ):
        found = run(net)
        found.sum().backward()
    assert torch.equal(found, expected + 1)
    assert not net.enc[0].weight.grad.any()


def test_hooks_on_everything_see_replicas(net, run):
    """As `hookline run` puts them on."""
    with Recorder(Measures(time=True)) as recorder:
        step(run, net)
    assert {(row.root, row.path) for row in recorder.tables()[TimeRow]} == {
        ("Net", path) for path in ("", "enc", "enc.0", "enc.1", "head")
    }
    assert {row.calls for row in recorder.tables()[TimeRow]} == {COPIES}


def test_a_scope_is_one_thread_s(net, run):
    """C1: the threads in which replicas run are others."""
    with Events() as scope, watch(net, Events().renamed("watched")):
        out = run(net)
        forward = list(scope.rows)
        out.sum().backward()
    assert forward == []
    assert {row[0] for row in scope.rows} <= {"backward_pre", "backward"}


def test_r5_replicas_leave_nothing(net, run):
    """However many forwards there are, nothing is kept of them, nor learnt about structure."""
    with add_hook(net.head, Events()) as handle:
        step(run, net)
        gc.collect()
        before = len(table), len(roots._parents), roots.version
        for _ in range(3):
            step(run, net)
        gc.collect()
        assert (len(table), len(roots._parents), roots.version) == before
        assert not originals
        assert [row.path for row in hooks_of(net)] == ["head"] * 4
    assert not handle.active


def test_r1_without_hooks_replicas_are_torch_s_affair(net, run):
    """Nothing stands in the way, and nothing is remembered."""
    original = nn.Module._replicate_for_data_parallel
    with Events():
        assert nn.Module._replicate_for_data_parallel is not original
    assert nn.Module._replicate_for_data_parallel is original
    run(net)
    assert not originals
