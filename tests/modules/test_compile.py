"""Hooks on modules inside of compiled regions: registered before, later, and removed."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import hookline
from hookline import (
    CompileError,
    Inputs,
    paused,
    register_forward_hook,
    register_forward_pre_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    register_module_forward_hook,
    with_hooks,
)

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The compiler asks regions' inputs for it, and hides the warning where warnings are no errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x):
        return self.body(self.first(x)) * 2


def compiled(model, **options):
    """The model compiled, and what counts its graphs."""
    counter = CompileCounter()
    return torch.compile(model, backend=counter, **options), counter


def plus(number):
    return lambda module, args, out: out + number


PLACES = {
    "leaf": lambda net: net.first,
    "deep leaf": lambda net: net.body[1],
    "container": lambda net: net.body,
    "root": lambda net: net,
}
HOOKS = {
    "pre": lambda module: register_forward_pre_hook(module, lambda m, args: (args[0] * 3,)),
    "forward": lambda module: register_forward_hook(module, plus(1)),
    "backward pre": lambda module: register_full_backward_pre_hook(module, lambda m, g: g[0] * 3),
    "backward": lambda module: register_full_backward_hook(module, lambda m, gi, go: gi[0] * 5),
}


def run(model, x):
    """The output and the gradient of the input."""
    x = x.clone().requires_grad_()
    out = model(x)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    return out.detach(), grad


def same(left, right):
    return all(map(torch.equal, left, right))


@pytest.mark.parametrize("when", ["before", "after a run", "after a run under hooks"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_does_in_a_region_what_it_does_without(kind, place, when):
    """Values and gradients are those of the model itself; removed, the hook is gone at once."""
    net, x = Net(), torch.randn(2, 4)
    plain = run(net, x)
    if when == "before":
        handle = HOOKS[kind](PLACES[place](net))
        fast, _ = compiled(net)
    else:
        fast, _ = compiled(net)
        if when == "after a run":
            run(fast, x)
        else:
            with register_forward_hook(nn.Linear(1, 1), plus(1)):
                run(fast, x)
        handle = HOOKS[kind](PLACES[place](net))
    expected = run(net, x)
    assert not same(expected, plain)
    assert same(run(fast, x), expected)
    handle.remove()
    assert same(run(fast, x), plain)


@pytest.mark.parametrize("place", PLACES)
def test_each_hook_is_called_once_a_call(place):
    """Neither the region nor the model in it sees a call of the other's."""
    net, x, calls = Net(), torch.randn(2, 4), []
    count = torch.compiler.disable(lambda module, args, out: calls.append(type(module)))
    fast, _ = compiled(net)
    for _ in range(2):
        with register_forward_hook(PLACES[place](net), count):
            fast(x)
            fast(x)
    assert calls == [type(PLACES[place](net))] * 4


@pytest.mark.parametrize("kind", ["pre", "forward"])
def test_pure_hooks_leave_one_graph(kind):
    """Forward hooks without side effects are traced, also into `fullgraph=True`."""
    net, x = Net(), torch.randn(2, 4)
    fast, counter = compiled(net, fullgraph=True)
    with HOOKS[kind](net.first), HOOKS[kind](net.body[1]):
        for _ in range(3):
            assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 1


def test_a_module_with_backward_hooks_runs_apart():
    """The rest of the region stays compiled: graphs before and after it."""
    net, x = Net(), torch.randn(2, 4)
    fast, counter = compiled(net)
    with HOOKS["backward"](net.first):
        run(fast, x)
        run(fast, x)
    assert counter.frame_count == 1
    assert counter.op_count == 3


@pytest.mark.parametrize("kind", ["backward pre", "backward"])
def test_fullgraph_refuses_backward_hooks_by_an_error_of_ours(kind):
    """It names the module's type and the hook and says what to do; without them it compiles."""
    net, x = Net(), torch.randn(2, 4)
    fast, counter = compiled(net, fullgraph=True)
    with (
        HOOKS[kind](net.first),
        pytest.raises(CompileError, match=r"hooks on Linear cannot be part of a graph.*<lambda>"),
    ):
        fast(x)
    assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 1


def test_one_instance_of_a_class_has_hooks_and_another_has_not():
    """They share code where neither has hooks, and only there."""
    nets, x = [Net() for _ in range(3)], torch.randn(2, 4)

    def call(net, x):
        return net(x)

    fast, counter = compiled(call)
    for net in nets:
        assert torch.equal(fast(net, x), net(x))
    assert counter.frame_count == 1
    with register_forward_hook(nets[1].first, plus(1)):
        for net in (*nets, *nets):
            assert torch.equal(fast(net, x), net(x))
        assert counter.frame_count == 3
    for net in nets:
        assert torch.equal(fast(net, x), net(x))


def test_an_instance_with_a_hook_before_its_first_call():
    """Code that another instance of the class left is not taken for it."""
    one, two, x = Net(), Net(), torch.randn(2, 4)
    compiled(one)[0](x)
    with register_forward_hook(two.first, plus(1)):
        assert torch.equal(compiled(two)[0](x), two(x))
        assert torch.equal(compiled(one)[0](x), one(x))


def test_other_regions_are_not_compiled_again():
    """A hook concerns the code that calls modules of its class, no other."""
    net, other, x = Net(), nn.Sequential(nn.ReLU(), nn.GELU()), torch.randn(2, 4)
    fast, counter = compiled(net)
    apart, others = compiled(other)
    function, functions = compiled(lambda x: x.sin() + 1)
    for _ in range(9):
        with register_forward_hook(net.first, plus(1)):
            assert torch.equal(fast(x), net(x))
            apart(x)
            function(x)
    assert counter.frame_count == 9
    assert (others.frame_count, functions.frame_count) == (1, 1)


def test_many_hooks_one_after_another_never_reach_the_recompile_limit():
    """Code that will not be valid again is thrown away, so its places are free."""
    net, x, handles = Net(), torch.randn(2, 4), []
    fast, counter = compiled(net, fullgraph=True)
    for number in range(9):
        handles.append(register_forward_hook((net.first, net.body[1])[number % 2], plus(number)))
        assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 9
    for handle in handles:
        handle.remove()
        assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 18


def test_hooks_on_all_modules_see_each_once():
    """Also those registered late; the region and the model in it are one."""
    net, x, seen = Net(), torch.randn(2, 4), []
    fast, _ = compiled(net)
    fast(x)
    note = torch.compiler.disable(lambda module, args, out: seen.append(type(module).__name__))
    with register_module_forward_hook(note):
        fast(x)
    assert seen == ["Linear", "Tanh", "Linear", "Sequential", "OptimizedModule"]
    with register_module_forward_hook(plus(1)):
        assert torch.equal(fast(x), net(x))
    assert torch.equal(fast(x), net(x))


def test_a_wrapper_in_a_wrapper():
    """Value hooks are traced level by level, each with the input that its layer saw."""
    inner, inner_hooks = with_hooks(nn.Linear(4, 4))
    outer, outer_hooks = with_hooks(inner)
    net, x = nn.Sequential(outer, nn.ReLU()), torch.randn(2, 4)
    fast, counter = compiled(net, fullgraph=True)
    fast(x)
    outer_hooks.add_forward_pre_hook(lambda value: value + 1)
    outer_hooks.add_forward_hook(lambda value, out: out + value)
    inner_hooks.add_forward_pre_hook(lambda value: value * 2)
    inner_hooks.add_forward_hook(lambda value, out: out * value)
    assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 2
    outer_hooks.registry.clear()
    inner_hooks.add_backward_hook(lambda gradient: gradient * 3)
    assert same(run(torch.compile(net, backend="eager"), x), run(net, x))


def test_keywords_and_inputs_are_replaced():
    """What a pre-hook returns is what the module is traced with."""

    class Scaled(nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            return self.scaled(x, scale=2.0)

    net, x = Outer(), torch.randn(2, 4)
    fast, counter = compiled(net, fullgraph=True)

    def triple(module, args, kwargs):
        return Inputs(args, {"scale": kwargs["scale"] * 3})

    with register_forward_pre_hook(net.scaled, triple):
        assert torch.equal(fast(x), x * 6)
    assert torch.equal(fast(x), x * 2)
    assert counter.frame_count == 2


def test_what_a_hook_reads_is_followed():
    """A number that it takes from elsewhere may change; the code is compiled again."""
    net, x = Net(), torch.randn(2, 4)

    class Scale:
        factor = 2.0

        def __call__(self, module, args, out):
            return out * self.factor

    scale = Scale()
    fast, _ = compiled(net)
    with register_forward_hook(net.first, scale):
        assert torch.equal(fast(x), net(x))
        scale.factor = 3.0
        assert torch.equal(fast(x), net(x))


def test_a_hook_that_removes_itself():
    """One that is called outside of graphs may, while the region runs."""
    net, x, seen = Net(), torch.randn(2, 4), []
    fast, _ = compiled(net)

    @torch.compiler.disable
    def once(module, args, out):
        seen.append(out)
        handle.remove()

    handle = register_forward_hook(net.first, once)
    for _ in range(3):
        assert torch.equal(fast(x), net(x))
    assert len(seen) == 1


def test_a_hook_that_runs_after_errors_is_called():
    """`always_call` hooks cannot be traced, so their module runs apart."""

    class Fails(nn.Module):
        def forward(self, x):
            msg = "boom"
            raise ValueError(msg)

    class Recovers(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = Fails()

        def forward(self, x):
            try:
                return self.fails(x)
            except ValueError:
                return x * 2

    net, x, outs = Recovers(), torch.ones(2), []
    fast, _ = compiled(net)
    fast(x)
    with register_forward_hook(net.fails, lambda m, a, out: outs.append(out), always_call=True):
        assert torch.equal(fast(x), x * 2)
    assert outs == [None]


def test_modules_with_hooks_that_die_while_others_compile():
    """The guards of the code do not know of them."""
    net, x = Net(), torch.randn(2, 4)
    others = [nn.Linear(2, 2) for _ in range(5)]
    handles = [register_forward_hook(other, plus(1)) for other in others]
    handles.append(register_forward_hook(net.first, plus(1)))

    def collecting(graph, inputs):
        others.clear()
        gc.collect()
        return graph.forward

    fast = torch.compile(net, backend=collecting, fullgraph=True)
    assert torch.equal(fast(x), net(x))
    assert [handle.active for handle in handles] == [False] * 5 + [True]
    with register_forward_hook(net.body[1], plus(2)):
        assert torch.equal(fast(x), net(x))
    handles[-1].remove()


def test_compile_in_place():
    """`module.compile()` leaves the call of the module itself to Python: all hooks see it."""
    net, x = Net(), torch.randn(2, 4)
    plain, counter = run(net, x), CompileCounter()
    net.compile(backend=counter)
    run(net, x)
    expected = Net()
    expected.load_state_dict(net.state_dict())
    for hook in HOOKS.values():
        for place in PLACES.values():
            with hook(place(net)), hook(place(expected)):
                assert same(run(net, x), run(expected, x))
    assert same(run(net, x), plain)
    assert counter.frame_count >= 1


def test_regions_in_a_list_of_layers_share_code():
    """Of layers compiled one by one, only those with hooks have code of their own."""
    layers, x = nn.ModuleList(Net() for _ in range(10)), torch.randn(2, 4, requires_grad=True)
    counter = CompileCounter()
    for layer in layers:
        layer.compile(backend=counter, fullgraph=True)

    def through():
        value = x
        for layer in layers:
            value = layer(value)
        return value

    plain = through()
    assert counter.frame_count == 1
    with register_forward_hook(layers[3].first, plus(1)):
        changed = through()
        assert torch.equal(through(), changed)
        assert counter.frame_count == 3
    assert not torch.equal(changed, plain)
    assert torch.equal(through(), plain)


def test_shapes_that_change():
    """A hook in code for shapes of all kinds; nothing is compiled for each."""
    net = Net()
    fast, counter = compiled(net, dynamic=True, fullgraph=True)
    with register_forward_hook(net.first, lambda module, args, out: out + out.shape[0]):
        for rows in (2, 3, 7, 11):
            x = torch.randn(rows, 4)
            assert torch.equal(fast(x), net(x))
    assert counter.frame_count == 1


def test_a_checkpoint_inside_of_a_region():
    """What it computes again is in the graph, hooks included."""

    class Checkpointed(Net):
        def forward(self, x):
            x = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
            return self.body(x) * 2

    net, x = Checkpointed(), torch.randn(2, 4)
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    with register_forward_hook(net.first, plus(1)):
        assert same(run(fast, x), run(net, x))
    assert same(run(fast, x), run(net, x))


def test_a_backend_that_differentiates_ahead():
    """Values and gradients through traced hooks and modules that run apart."""
    net, x = Net(), torch.randn(2, 4)
    fast = torch.compile(net, backend="aot_eager")
    plain = run(fast, x)
    with HOOKS["forward"](net.first), HOOKS["backward"](net.body[1]):
        assert same(run(fast, x), run(net, x))
    assert same(run(fast, x), plain)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_backend_that_generates_code(mode):
    """A hook registered after the first call changes what the generated code computes."""
    net, x = nn.Sequential(nn.Tanh()), torch.randn(2, 4)
    fast = torch.compile(net, mode=mode)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), x.tanh())
        with register_forward_hook(net[0], plus(1)):
            torch.testing.assert_close(fast(x), x.tanh() + 1)
        torch.testing.assert_close(fast(x), x.tanh())


def test_a_hook_that_keeps_what_the_compiler_guards():
    """A list that grows would make the code invalid at each call: the module goes apart instead."""
    net, x, kept = Net(), torch.randn(2, 4), []
    fast, counter = compiled(net)

    def several():
        for _ in range(4):
            fast(x)

    with register_forward_hook(net.first, lambda module, args, out: kept.append(out)):
        with pytest.warns(hookline.HookWarning, match="what they keep, change with each call"):
            several()
        compiled_until_now = counter.frame_count
        for _ in range(12):
            fast(x)
    assert counter.frame_count == compiled_until_now <= 4
    assert len(kept) == 16
    assert all(torch.equal(out, net.first(x)) for out in kept)


def test_paused_hooks_take_no_part():
    """Code with hooks and code without them stand side by side."""
    net, x = Net(), torch.randn(2, 4)
    plain = net(x)
    fast, counter = compiled(net, fullgraph=True)
    with register_forward_hook(net.first, plus(1)):
        for _ in range(3):
            assert not torch.equal(fast(x), plain)
            with paused():
                assert torch.equal(fast(x), plain)
    assert counter.frame_count == 2


def test_break_in_the_model_under_hooks():
    """A graph break of the model's own, in a module with hooks and around it."""

    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            x = self.inner(x) + 1
            torch._dynamo.graph_break()
            return x * 2

    net, x = nn.Sequential(*(Breaks() for _ in range(10))), torch.randn(2, 4)
    plain = net(x)
    fast, _ = compiled(net)
    assert torch.equal(fast(x), plain)
    with register_forward_hook(net[3], plus(1)), register_forward_hook(net[4].inner, plus(1)):
        for _ in range(2):
            assert torch.equal(fast(x), net(x))
    with hookline.module_hooks.TimerHook() as timer:
        assert torch.equal(fast(x), plain)
    assert [row.calls for row in timer.rows() if row.path == ""] == [1]
    started_at = [code() for code in torch._dynamo.convert_frame.input_codes.seen]
    files = {code.co_filename for code in started_at if code is not None}
    assert not {file for file in files if "/hookline/" in file}
