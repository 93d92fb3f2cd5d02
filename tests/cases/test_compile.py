"""Cases about torch.compile, torch.export, torch.fx and CUDA graphs, by number."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import hookline
from hookline import HooklineError, ModuleHook, register_forward_hook, register_forward_pre_hook

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The compiler asks regions' inputs for it, and hides the warning where warnings are no errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


X = torch.ones(4, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Sequential(nn.Linear(2, 2))
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.sub(x)))


def counted(model, **options):
    counter = CompileCounter()
    return torch.compile(model, backend=counter, **options), counter


# --------------------------------------------------------------------------------- 21: late hooks


def test_c21_hooks_added_after_the_first_run_are_called():
    """Early, late, late on the root, and removed, without anything else that forces a compile."""
    net = Net()
    fast, _ = counted(net)
    hits = dict.fromkeys(["early", "late", "root"], 0)

    def counting(name):
        @torch.compiler.disable
        def hook(module, args, output):
            hits[name] += 1

        return hook

    register_forward_hook(net.sub[0], lambda module, args, output: None)
    early = register_forward_hook(net.sub[0], counting("early"))
    fast(X)
    late = register_forward_hook(net.last, counting("late"))
    root = register_forward_hook(net, counting("root"))
    fast(X)
    assert hits == {"early": 2, "late": 1, "root": 1}
    for handle in (early, late, root):
        handle.remove()
    fast(X)
    assert hits == {"early": 2, "late": 1, "root": 1}
    hookline.clear_hooks(net)


def test_c21_a_global_hook_added_late_sees_each_module_once():
    """The region counts as the model in it."""
    net, seen = Net(), []
    fast, _ = counted(net)
    fast(X)
    note = torch.compiler.disable(lambda module, args, output: seen.append(type(module).__name__))
    with hookline.register_module_forward_hook(note):
        fast(X)
    assert seen == ["Linear", "Sequential", "Linear", "OptimizedModule"]


# ---------------------------------------------------------------------------------- 54: CUDA graphs


def test_c54_a_recorded_program_that_is_replayed_calls_no_hook():
    """A traced program stands for the graph here: no Python runs when it is replayed."""
    linear, runs = nn.Linear(2, 2), []
    with register_forward_hook(linear, lambda module, args, output: runs.append(1)):
        linear(X)
        with hookline.paused():
            graph = torch.jit.trace(linear, X)
        for _ in range(3):
            assert torch.equal(graph(X), linear.forward(X))
    assert runs == [1]


# ------------------------------------------------------------------------------------- 55: torch.fx


@pytest.mark.parametrize("where", ["root", "container", "leaf"])
def test_c55_fx_says_which_hooks_it_drops(where):
    """Hooks of leaf modules run in what was traced; of others a warning says that they do not."""
    net, calls = Net(), []
    target = {"root": net, "container": net.sub, "leaf": net.sub[0]}[where]

    def replace_by_nine(module, args, output):
        calls.append(1)
        return output * 0 + 9

    with register_forward_hook(target, replace_by_nine):
        if where == "leaf":
            traced = torch.fx.symbolic_trace(net)
        else:
            name = type(target).__name__
            with pytest.warns(hookline.HookWarning, match=f"replace_by_nine on {name} left out"):
                traced = torch.fx.symbolic_trace(net)
        assert calls == []
        out = traced(X)
        assert calls == [1] * (where == "leaf")
        assert torch.equal(out, net(X)) == (where == "leaf")
    assert torch.equal(traced(X), net(X))


def test_c55_hooks_go_on_what_was_traced():
    """A `GraphModule` and the leaf modules in it are modules as others are."""
    traced, labels = torch.fx.symbolic_trace(Net()), []

    class Labels(ModuleHook):
        def forward_postprocess(self, call):
            labels.append(call.label)

    with hookline.watch(traced, Labels()):
        traced(X)
    assert labels == ["sub.0", "last", "Net"]


# ------------------------------------------------------------------------------ 60: disabled hooks


@pytest.mark.parametrize("method", ["module.compile", "torch.compile"])
@pytest.mark.parametrize("place", ["root", "leaf"])
def test_c60_a_disabled_hook_leaves_the_rest_compiled(method, place):
    """Marked by `torch.compiler.disable`, it runs in Python; hookline itself marks no hook."""
    net, seen = Net(), []

    @torch.compiler.disable
    def hook(module, args):
        seen.append(args[0].sum().item())

    def plain(module, args):
        return None

    ops = {}
    for name, given in {"disabled": hook, "plain": plain}.items():
        torch._dynamo.reset()
        counter = CompileCounter()
        with register_forward_pre_hook(net if place == "root" else net.sub[0], given):
            if method == "module.compile":
                net.compile(backend=counter)
                net(X)
            else:
                torch.compile(net, backend=counter)(X)
        net._compiled_call_impl = None
        ops[name] = counter.op_count
    assert len(seen) == 1
    assert not hasattr(plain, "_torchdynamo_disable")
    # Outside of the region the hook costs nothing; inside, its module is no part of the graph.
    assert ops == {"disabled": 3 - (place == "leaf"), "plain": 3}


def test_c60_a_scope_costs_no_graph():
    """The count of graphs and their size is the same with and without hook objects."""
    net = Net()
    sizes = []
    for scope in (None, hookline.module_hooks.TimerHook(), hookline.module_hooks.StatsHook()):
        torch._dynamo.reset()
        fast, counter = counted(net, fullgraph=True)
        if scope is None:
            fast(X)
        else:
            with scope:
                fast(X)
        sizes.append((counter.frame_count, counter.op_count))
    assert sizes == [(1, 3)] * 3


# --------------------------------------------------------------------- 74: what a hook's body does


def bodies(log, store, buffer):
    """What people write into hooks, from the compiler's point of view."""

    def copy(module, args, output):
        buffer.copy_(output.detach())

    return {
        "buffer.copy_": copy,
        "dict[k]=": lambda module, args, output: store.update(k=output.detach()),
        "list.append": lambda module, args, output: log.append(output.detach()),
        "item()": lambda module, args, output: store.update(k=output.mean().item()),
        "print": lambda module, args, output: print(end=""),
    }


@pytest.mark.filterwarnings("ignore::hookline.HookWarning")
@pytest.mark.parametrize("kind", ["buffer.copy_", "dict[k]=", "list.append", "item()", "print"])
@pytest.mark.parametrize("disabled", [False, True])
def test_c74_any_body_runs_at_each_call_and_compiling_comes_to_an_end(kind, disabled):
    """No hook makes its region compile again at every call; what it keeps is right."""
    log, store, buffer = [], {}, torch.zeros(4, 2)
    net, hook = Net(), bodies(log, store, buffer)[kind]
    fast, counter = counted(net)
    with register_forward_hook(net.last, torch.compiler.disable(hook) if disabled else hook):
        for number in range(4):
            fast(X + number)
        compiled = counter.frame_count
        for number in range(4, 12):
            out = fast(X + number)
    assert counter.frame_count == compiled <= (1 if disabled else 4)
    assert torch.equal(out, net(X + 11))
    if kind == "buffer.copy_":
        assert torch.equal(buffer, out)
    elif kind == "list.append":
        assert len(log) == 12
        assert torch.equal(log[-1], out)
    elif kind != "print":
        assert torch.equal(torch.as_tensor(store["k"]), out if kind == "dict[k]=" else out.mean())


def test_c74_hook_objects_read_values_without_a_graph_break():
    """They stand outside of the region; what they read is there."""
    net, means = Net(), []

    class Means(ModuleHook):
        def forward_postprocess(self, call):
            means.append(call.out.mean().item())

    fast, counter = counted(net, fullgraph=True)
    with Means():
        outs = [fast(X + number) for number in range(12)]
    assert means == [out.mean().item() for out in outs]
    assert counter.frame_count == 1


# -------------------------------------------------------------------------------- 76: torch.export


class Store(ModuleHook):
    def __init__(self):
        self.stored = []

    def forward_preprocess(self, call):
        self.stored.append(call.args[0])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("where", ["root", "sub"])
@pytest.mark.parametrize("manner", ["function", "object", "scope"])
def test_c76_export_works_and_leaves_nothing_of_a_hook(strict, where, manner):
    """No stand-in for a tensor is kept, the program is that of the bare model."""
    net, store = Net(), Store()
    target = net if where == "root" else net.sub

    def storing(module, args):
        store.stored.append(args[0])

    put = {
        "function": lambda: register_forward_pre_hook(target, storing),
        "object": lambda: hookline.add_hook(target, store),
        "scope": lambda: store,
    }[manner]
    plain = torch.export.export(net, (X,), strict=strict)
    with put(), hookline.paused():
        exported = torch.export.export(net, (X,), strict=strict)
    if manner == "function":
        with put(), pytest.warns(hookline.HookWarning, match="torch.export records the program"):
            exported = torch.export.export(net, (X,), strict=strict)
    else:
        with put():
            exported = torch.export.export(net, (X,), strict=strict)
    assert store.stored == []
    assert exported.graph_module.code == plain.graph_module.code
    assert torch.equal(exported.module()(X), net(X))


def test_c76_the_modules_of_an_exported_program_are_refused():
    """They hold parameters and are never called; so is the program itself, which is no module."""
    exported = torch.export.export(Net(), (X,))
    for target in (exported, exported.module().last):
        with pytest.raises(HooklineError, match=r"has no forward|not on ExportedProgram"):
            register_forward_hook(target, print)
