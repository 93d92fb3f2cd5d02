"""Where `FlopHook` sees operators, and that it changes nothing."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hookline
from hookline import FunctionNode, ModuleHook, add_hook, delete_hook
from hookline.function_hooks import FlopHook as FunctionFlopHook
from hookline.module_hooks import FlopHook
from hookline.record.measures import Measures
from hookline.record.run import Recorder
from hookline.torch_base.modes import dispatch_modes
from tests.hooks.flop_net import BODY, HEAD, STEP, Net, batch, own_flops

LEVELS = [FlopHook, FunctionFlopHook]


def count_modes():
    return len(list(dispatch_modes))


def test_r1_the_mode_is_on_in_calls_and_scopes_only():
    """Registered on a module: while it runs. In a scope: all through it. Then it is off."""
    net, seen = Net(), []
    flops = FlopHook()
    with hookline.register_module_forward_hook(lambda *_: seen.append(count_modes())):
        with hookline.watch(net, flops, where=["body"]):
            assert not list(dispatch_modes)
            net(batch())
        assert seen == [1, 1, 0, 0, 0]  # body.0, body.1, body (its end), head, root
        seen.clear()
        with flops:
            assert len(list(dispatch_modes)) == 1
            net(batch())
        net(batch())
    assert seen == [1] * 5 + [0] * 5


class Foreign(TorchDispatchMode):
    """A mode of somebody else."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Does(ModuleHook):
    """Does something at the end of each forward and backward."""

    def __init__(self, what):
        self.forward_postprocess = self.backward_postprocess = lambda call: what()


def test_c11_the_mode_is_off_in_callbacks_of_hook_objects():
    """Forward and backward; behind them it is where it was, with modes of others around it."""
    net, seen = Net(), []
    flops = FlopHook()
    with hookline.watch(net, Does(lambda: seen.append(count_modes()))), flops:
        net(batch()).sum().backward()
        assert list(dispatch_modes) == [flops.operator_mode]
        with Foreign() as foreign, FlopHook().renamed("second") as second:
            net(batch())
            assert list(dispatch_modes) == [flops.operator_mode, foreign, second.operator_mode]
    assert seen == [0] * 10 + [1] * 5
    assert own_flops(flops)


def test_c1_scopes_opened_and_left_in_a_callback_stay_as_they_are():
    """A mode that is taken off or put on in a callback is off or on behind it."""
    net, left, opened = Net(), FlopHook(), FlopHook().renamed("opened")
    steps = [opened.__enter__, lambda: left.__exit__(None, None, None)]
    hook = Does(lambda: steps and steps.pop()())
    with hookline.watch(net, hook, where=["head"]):
        left.__enter__()
        try:
            net(batch())
            assert list(dispatch_modes) == []
            with FlopHook().renamed("around") as around:
                net(batch())
                assert list(dispatch_modes) == [around.operator_mode, opened.hook.operator_mode]
        finally:
            opened.__exit__(None, None, None)
    assert list(dispatch_modes) == []


def test_r11_a_scope_is_of_its_thread_and_a_registration_of_all():
    """Another thread sees no mode of a scope; with `watch` its calls count, and backward too."""
    net, scope, watched, modes = Net(), FlopHook(), FlopHook(), []

    def work():
        modes.append(len(list(dispatch_modes)))
        net(batch()).sum().backward()
        modes.append(len(list(dispatch_modes)))

    for opened in (lambda: scope, lambda: hookline.watch(net, watched)):
        with opened():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    assert modes == [0] * 4
    assert own_flops(scope) == {}
    assert own_flops(watched) == STEP


def test_r11_threads_at_once_are_counted_together():
    """No count is lost where several threads run one model."""
    net, flops = Net(), FlopHook()

    def work():
        for _ in range(20):
            torch.autograd.grad(net(batch()).sum(), list(net.parameters()))

    with hookline.watch(net, flops):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert own_flops(flops) == {key: 80 * each for key, each in STEP.items()}


@pytest.mark.parametrize("level", ["module", "function"])
def test_hooks_on_everything_count_in_all_threads(level):
    """As under `hookline run`: calls of this thread and of new ones."""
    net = Net()

    def work():
        torch.autograd.grad(net(batch()).sum(), list(net.parameters()))

    with Recorder(Measures(flops=True, level=level)) as recorder:
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    [flops] = recorder._hooks
    assert recorder.faults == []
    assert own_flops(flops) == {key: 2 * each for key, each in STEP.items()}


def test_p6_a_hook_removed_in_a_call_counts_no_more():
    """Also from another thread; the mode goes at the end of the call."""
    flops = FlopHook()

    def remove(x):
        thread = threading.Thread(target=delete_hook, args=(net, "FlopHook"))
        thread.start()
        thread.join()
        return x

    net = Net(remove)
    add_hook(net, flops)
    net(batch())

    assert not list(dispatch_modes)
    assert flops._meter._counted
    net.between = lambda x: x
    before = flops.total_flops()
    net(batch())
    assert flops.total_flops() == before


def test_two_scopes_end_in_any_order():
    """Each hook counts in its own scope; a scope inside one of the same hook ends alone."""
    net, first, second = Net(), FlopHook(), FlopHook()
    first.__enter__()
    with second.renamed("second"):
        net(batch())
        first.__exit__()
        net(batch())
    net(batch())

    assert first.total_flops() == BODY + HEAD
    assert second.total_flops() == 2 * (BODY + HEAD)
    with first, first.renamed("again"):
        pass
    with first:
        with first.renamed("inner"):
            pass
        assert len(list(dispatch_modes)) == 1


def test_a_mode_of_others_above_ours_stays():
    """A scope that ends under another's mode takes out its own alone."""
    from torch.utils.flop_counter import FlopCounterMode

    flops = FlopHook()
    flops.__enter__()
    with FlopCounterMode(display=False) as counter:
        Net()(batch())
        flops.__exit__()
        Net()(batch())
    assert flops.total_flops() == BODY + HEAD
    assert counter.get_total_flops() == 2 * (BODY + HEAD)


def test_r12_a_forked_child_has_no_mode():
    """Neither of a scope nor of a call that runs; the parent's stays."""
    with FlopHook() as flops:
        child = os.fork()
        if not child:
            left = len(list(dispatch_modes))
            Net()(batch())
            os._exit(left or bool(flops.total_flops()))
        _, status = os.waitpid(child, 0)
        Net()(batch())
    assert status == 0
    assert flops.total_flops() == BODY + HEAD


@pytest.mark.parametrize("make", LEVELS)
def test_r5_nothing_is_kept_alive(make):
    """The model and what it made go while the hook is on."""
    with make() as flops:
        net = Net()
        out = net(batch())
        out.sum().backward()
        gone = weakref.ref(net), weakref.ref(out)
        del net, out
        gc.collect()
        assert [each() for each in gone] == [None, None]
        assert not flops._meter._stacks


def test_one_function_is_counted_alone():
    """Registered on a `FunctionNode`, forward and backward."""
    x = batch().requires_grad_()
    product, flops = FunctionNode(torch.mm), FunctionFlopHook()
    product.add_hook(flops)
    (product(x, torch.ones(4, 4)) @ torch.ones(4, 2)).sum().backward()
    product.delete_hook("FlopHook")
    product(x, torch.ones(4, 4))

    assert [(row.direction, row.name, row.self_flops) for row in flops.rows()] == [
        ("forward", "mm", BODY),
        ("backward", "mm", BODY),
    ]


# It changes nothing.


MODELS = {
    "net": lambda: Net(nn.Dropout(0.5)),
    "lstm": lambda: nn.Sequential(nn.LSTM(4, 3, num_layers=2, dropout=0.5)),
    "gru": lambda: nn.Sequential(nn.GRU(4, 3)),
    "conv": lambda: nn.Sequential(nn.Unflatten(0, (1, 3)), nn.Conv1d(3, 2, 3), nn.BatchNorm1d(2)),
    "attention": lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)),
    "upsample": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Upsample(scale_factor=2, mode="linear"), nn.Linear(8, 2)
    ),
}


def flat(out):
    return torch.cat([each.flatten() for each in hookline_tensors(out)])


def hookline_tensors(out):
    return [out] if isinstance(out, torch.Tensor) else [t for o in out for t in hookline_tensors(o)]


@pytest.mark.parametrize("make", LEVELS)
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_r2_results_are_the_same_bits(name, inference, make):
    """Outputs, gradients and the generator's state, also where operators are taken apart."""
    torch.manual_seed(0)
    net = MODELS[name]()

    def work():
        torch.manual_seed(1)
        net.zero_grad()
        x = batch()
        with torch.inference_mode(inference):
            out = flat(net(x))
        if not inference:
            out.square().sum().backward()
        grads = [] if inference else [p.grad.clone() for p in net.parameters()]
        return [out.detach(), *grads, torch.get_rng_state()]

    buffers = [b.clone() for b in net.buffers()]
    plain = work()
    for old, new in zip(buffers, net.buffers(), strict=True):
        new.copy_(old)
    with make() as flops:
        watched = work()
    assert flops.total_flops()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_r2_training_steps_are_the_same_bits(case):
    """Five kinds of models, under the hooks of both levels, registered and in scopes."""

    def step():
        torch.manual_seed(1)
        case.model.zero_grad()
        loss = case.loss()
        loss.backward()
        return [loss.detach(), *(p.grad for p in case.model.parameters() if p.grad is not None)]

    plain = step()
    with FlopHook() as flops, FunctionFlopHook() as by_function:
        scoped = step()
    with hookline.watch(case.model, FlopHook(), FunctionFlopHook()):
        watched = step()
    assert flops.total_flops() == by_function.total_flops() > 0
    for results in (scoped, watched):
        assert all(torch.equal(a, b) for a, b in zip(plain, results, strict=True))


@pytest.mark.parametrize("make", LEVELS)
def test_r2_operators_that_give_back_an_input_give_back_the_same_object(make):
    """Dropout in evaluation, a no-op `contiguous`, in-place operators."""
    x = batch()
    with torch.inference_mode(), make():
        assert F.dropout(x, training=False) is x
        assert x.contiguous() is x
        y = x.clone()
        assert y.mul_(2) is y


def test_r2_compiled_regions_stay_compiled():
    """Nothing is compiled anew, and the products that the region calls are counted."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    plain = compiled(batch())
    plain.sum().backward()
    graphs = counters["stats"]["unique_graphs"]
    with FlopHook() as flops:
        out = compiled(batch())
        out.sum().backward()
    compiled(batch())

    assert torch.equal(plain, out)
    assert counters["stats"]["unique_graphs"] == graphs == 1
    assert flops.total_flops() == sum(STEP.values())
    assert {row.path for row in flops.rows() if row.self_flops} == {""}
    torch._dynamo.reset()
