"""Whose FLOPs they are, where `FlopHook` sees operators, and that it changes nothing."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry, register_flop_formula

import hookline
from hookline import ModuleHook, add_hook, delete_hook
from hookline.function_hooks import FlopHook as FunctionFlopHook
from hookline.functions import places as function_places
from hookline.module_hooks import FlopHook
from hookline.modules import places as module_places
from hookline.record.run import Recorder
from hookline.torch_base.modes import dispatch_modes

LEVELS = [FlopHook, FunctionFlopHook]


class Net(nn.Module):
    """Two layers, the second in a container; what else is needed is done in between."""

    def __init__(self, between=lambda x: x):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)
        self.between = between

    def forward(self, x):
        return self.head(self.between(self.body(x)))


class Modes(ModuleHook):
    """How many dispatch modes are on in each call."""

    def __init__(self):
        self.seen = []

    def forward_postprocess(self, call):
        self.seen.append(len(list(dispatch_modes)))


BODY, HEAD = 2 * 3 * 4 * 4, 2 * 3 * 4 * 2


def batch():
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def own_flops(hook):
    """What each path made itself, by direction; zeros are left out."""
    found = Counter()
    for row in hook.rows():
        found[row.path, row.direction] += row.self_flops
    return {key: flops for key, flops in found.items() if flops}


STEP = {
    ("body.0", "forward"): BODY,
    ("head", "forward"): HEAD,
    ("head", "backward"): 2 * HEAD,
    ("body.0", "backward"): BODY,
}


# Whose they are.


@pytest.mark.parametrize("make", LEVELS)
def test_operators_belong_to_the_innermost_call(make):
    """A layer's own FLOPs are those of its own call, whatever is around it."""
    net = Net()
    with make() as flops:
        net(batch()).sum().backward()

    assert own_flops(flops) == STEP
    assert flops.total_flops() == sum(STEP.values())


def test_what_a_forward_does_itself_is_its_own():
    """A product between the layers is the root's own; totals hold what is inside."""
    weight = torch.ones(4, 4)
    net = Net(lambda x: x @ weight)
    with FlopHook() as flops:
        net(batch())

    rows = {row.path: row for row in flops.rows()}
    assert (rows[""].self_flops, rows[""].total_flops) == (BODY, BODY + BODY + HEAD)
    assert (rows["body"].self_flops, rows["body"].total_flops) == (0, BODY)
    assert dict(rows[""].operators) == {"aten.mm": BODY}
    assert rows["body.1"].calls == 1
    assert rows["body.1"].total_flops == 0


@pytest.mark.parametrize("make", LEVELS)
def test_rows_tell_modes_apart(make):
    """Train, eval and no-grad passes have rows of their own."""
    net = Net()
    with make() as flops:
        net(batch())
        with torch.no_grad():
            net(batch())
        net.eval()(batch())

    heads = {row.mode: row.calls for row in flops.rows() if row.path == "head"}
    assert heads == {"train": 1, "no_grad": 1, "eval": 1}


def test_what_runs_outside_of_modules_counts_in_a_scope():
    """It has rows without a path, by direction and mode, and is part of the total."""
    weight = torch.ones(2, 5, requires_grad=True)
    with FlopHook() as flops:
        loss = (Net()(batch()) @ weight).sum()
        loss.backward()
        with torch.no_grad():
            _ = weight.T @ weight

    outside = {(r.direction, r.mode): r for r in flops.rows() if r.path is None}
    one = 2 * 3 * 2 * 5
    assert {key: row.self_flops for key, row in outside.items()} == {
        ("forward", "train"): one,
        ("backward", "train"): 2 * one,
        ("forward", "no_grad"): 2 * 5 * 2 * 5,
    }
    assert {(row.root, row.type, row.calls, row.level) for row in outside.values()} == {
        ("", "", 0, "module")
    }
    assert flops.total_flops() == sum(row.self_flops for row in flops.rows())


def test_chosen_modules_take_what_others_inside_of_them_run():
    """With `watch`, the innermost chosen module; what is in none of them is left out."""
    net = Net()
    flops = FlopHook()
    with hookline.watch(net, flops, where=["body"]):
        net(batch()).sum().backward()
        _ = torch.ones(3, 3) @ torch.ones(3, 3)

    assert own_flops(flops) == {("body", "forward"): BODY, ("body", "backward"): BODY}


def test_chosen_functions_are_counted_alone():
    """With `watch`, functions of other modules and outside are left out."""
    net = Net()
    flops = FunctionFlopHook()
    with hookline.watch(net, flops, where=["head:linear"]):
        net(batch()).sum().backward()
        _ = torch.ones(3, 3) @ torch.ones(3, 3)

    assert own_flops(flops) == {("head", "forward"): HEAD, ("head", "backward"): 2 * HEAD}


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_a_forward_that_a_checkpoint_repeats_is_told_apart(reentrant):
    """It has rows of its own; one that ends early, before the last product, has less."""
    net = Net()
    x = batch().requires_grad_()
    with FlopHook() as flops:
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()

    repeated = {("body.0", "recompute"): BODY}
    if reentrant:
        repeated["head", "recompute"] = HEAD
    assert own_flops(flops) == {**STEP, ("body.0", "backward"): 2 * BODY, **repeated}


@pytest.mark.parametrize("make", LEVELS)
def test_the_backward_of_a_forward_outside_is_counted(make):
    """Forward before the scope, backward inside: all of it counts, by function or as outside."""
    loss = Net()(batch()).sum()
    with make() as flops:
        loss.backward()

    assert flops.total_flops() == BODY + 2 * HEAD
    assert {row.direction for row in flops.rows() if row.self_flops} == {"backward"}


def test_a_gradient_of_a_gradient_counts():
    """All three runs are in the total: what torch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    x, net = batch().requires_grad_(), Net()
    first, _, second = *net.body, net.head

    def work(model):
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()

    with FlopCounterMode(display=False) as counter:  # which raises where modules are called
        work(
            lambda x: F.linear(
                F.linear(x, first.weight, first.bias).tanh(), second.weight, second.bias
            )
        )
    with FlopHook() as flops:
        work(net)
    assert flops.total_flops() == counter.get_total_flops()


def test_c11_what_hooks_compute_does_not_count():
    """A product in another hook's callback is nobody's."""

    class Costly(ModuleHook):
        def forward_postprocess(self, call):
            _ = torch.ones(9, 9) @ torch.ones(9, 9)

    with FlopHook() as flops, Costly():
        Net()(batch())
    assert flops.total_flops() == BODY + HEAD


@pytest.mark.parametrize("make", LEVELS)
def test_c9_a_call_that_raises_counts_up_to_there(make):
    """The next pass is counted as if nothing had been; nothing stays on."""
    net = Net(lambda x: x / 0 if net.faulty else x)
    net.faulty = True
    net.between = lambda x: (_ for _ in ()).throw(KeyError("no")) if net.faulty else x
    flops = make()
    with hookline.watch(net, flops):
        with pytest.raises(KeyError):
            net(batch())
        assert own_flops(flops) == {("body.0", "forward"): BODY}
        assert not list(dispatch_modes)
        net.faulty = False
        net(batch()).sum().backward()

    assert own_flops(flops) == {**STEP, ("body.0", "forward"): 2 * BODY}


@pytest.mark.parametrize("make", LEVELS)
def test_c9_a_backward_that_raises_counts_up_to_there(make):
    """The mode is gone with the run, and the next run is counted anew."""
    net = Net()
    flops = make()
    with hookline.watch(net, flops):
        out = net(batch())
        handle = net.body[1].register_full_backward_pre_hook(lambda *_: 1 / 0)
        out = net(batch())
        with pytest.raises(ZeroDivisionError):
            out.sum().backward()
        assert not list(dispatch_modes)
        handle.remove()
        before = own_flops(flops)
        net(batch()).sum().backward()

    after = Counter(own_flops(flops))
    after.subtract(before)
    assert {key: n for key, n in after.items() if n} == STEP


def test_reset_forgets_also_inside_of_a_call():
    """What comes after still counts."""
    flops = FlopHook()
    net = Net(lambda x: (flops.reset(), x)[1])
    with flops:
        net(batch())

    assert own_flops(flops) == {("head", "forward"): HEAD}


# Where operators are seen.


def test_r1_the_mode_is_on_in_calls_and_scopes_only():
    """Registered on a module: while it runs. In a scope: all through it. Then it is off."""
    net, modes = Net(), Modes()
    flops = FlopHook()
    with modes:
        with hookline.watch(net, flops, where=["body"]):
            assert not list(dispatch_modes)
            net(batch())
        assert modes.seen == [1, 1, 0, 0, 0]  # body.0, body.1, body (its end), head, root
        modes.seen.clear()
        with flops:
            assert len(list(dispatch_modes)) == 1
            net(batch())
        net(batch())
    assert modes.seen == [1] * 5 + [0] * 5


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


@pytest.mark.parametrize(
    ("make", "registry"),
    [
        (FlopHook, module_places.everywhere),
        (FunctionFlopHook, function_places.everywhere),
    ],
    ids=["module", "function"],
)
def test_hooks_on_everything_count_in_all_threads(make, registry):
    """As under `hookline run`: calls of this thread and of new ones."""
    net, flops = Net(), make()

    def work():
        torch.autograd.grad(net(batch()).sum(), list(net.parameters()))

    with Recorder(time=False) as recorder:
        recorder._register(flops, registry)
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

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
    assert flops._meter._tallies
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


# What is counted.


def test_operators_without_a_formula_are_listed():
    """With who ran them, how often and why; those that do no matrix work are not."""
    net = nn.Bilinear(4, 4, 3)
    with FlopHook() as flops:
        for _ in range(2):
            net(batch(), batch()).softmax(-1)
        _ = torch.linalg.inv(torch.eye(3)) @ torch.eye(3).to_sparse()

    found = {(row.path, row.operator): (row.calls, row.reason) for row in flops.uncounted()}
    assert found == {
        ("", "aten._trilinear"): (2, "no formula"),
        (None, "aten.linalg_inv_ex"): (1, "no formula"),
        (None, "aten.mm"): (1, "not dense"),
    }
    assert flops.total_flops() == 0


def test_sparse_and_nested_tensors_are_listed():
    """A formula for dense tensors would count what is not done."""
    sparse = torch.eye(4).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    with FunctionFlopHook() as flops:
        _ = torch.mm(sparse, torch.ones(4, 4))
        assert flops.total_flops() == 0
        F.linear(nested, torch.ones(5, 4))
    assert {row.operator for row in flops.uncounted()} <= {"aten.mm", "aten._sparse_addmm"}
    assert flops.uncounted()
    assert flops.total_flops() == 2 * 5 * 4 * 5  # a jagged tensor's five rows


@pytest.fixture
def operator():
    """An operator of a program's own."""

    @torch.library.custom_op("hookline_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x @ x) * 2

    twice.register_fake(torch.empty_like)
    yield twice
    flop_registry.pop(torch.ops.hookline_tests.twice, None)


def test_operators_of_the_program_count_by_its_formula(operator):
    """Without one they are listed, since nobody knows what they do."""
    with FunctionFlopHook() as flops:
        operator(torch.ones(4, 4))
        assert [(row.operator, row.reason) for row in flops.uncounted()] == [
            ("hookline_tests.twice", "no formula")
        ]
        register_flop_formula(torch.ops.hookline_tests.twice)(
            lambda shape, out_shape=None, **_: 2 * shape[0] ** 3
        )
        operator(torch.ones(4, 4))
    assert flops.total_flops() == 128


def test_r2_a_formula_that_raises_does_no_harm(operator):
    """The operator is listed with what was wrong; the program goes on."""
    register_flop_formula(torch.ops.hookline_tests.twice)(lambda *_, **__: 1 // 0)
    with FunctionFlopHook() as flops:
        assert operator(torch.eye(4)).sum() == 8
    (row,) = flops.uncounted()
    assert "ZeroDivisionError" in row.reason


def test_operators_that_take_functions_are_listed():
    """What they run inside is not known."""
    from torch._higher_order_ops import while_loop

    with FunctionFlopHook() as flops:
        _, out = while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x @ torch.eye(4)),
            (torch.tensor(0), batch()),
        )
    assert torch.equal(out, batch())
    assert [(row.operator, row.calls) for row in flops.uncounted()] == [("while_loop", 1)]


def test_meta_tensors_count():
    """No numbers are needed."""
    with torch.device("meta"), FlopHook() as flops:
        Net()(torch.empty(3, 4)).sum().backward()
    assert own_flops(flops) == STEP


def test_vmap_counts_the_whole_batch():
    """What runs in the end is one product of all."""
    weight = torch.ones(4, 2)
    with FlopHook() as flops:
        torch.vmap(lambda x: x @ weight)(torch.ones(5, 3, 4))
        torch.func.grad(lambda x: (x @ weight).sum())(batch())
    assert flops.total_flops() == 5 * HEAD + 2 * HEAD


def test_autocast_counts_what_runs():
    """In the type that it chooses."""
    with torch.autocast("cpu", torch.bfloat16), FlopHook() as flops:
        Net()(batch()).sum().backward()
    assert own_flops(flops) == STEP


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
