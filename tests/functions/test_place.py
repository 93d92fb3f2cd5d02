"""Whose call is it: module path, index, label and pass of functions, and what is repeated."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import FunctionHook, FunctionNode, ModuleHook


class Places(FunctionHook):
    """Notes the calls that it sees: those of the forward, those repeated, those of the backward."""

    def __init__(self):
        self.forward = []
        self.repeated = []
        self.backward = []

    def forward_preprocess(self, function, in_data):
        (self.repeated if function.recomputing else self.forward).append(function)

    def backward_preprocess(self, function, in_data, out_grad):
        self.backward.append(function)


def labels(calls):
    return [call.label for call in calls]


class Block(nn.Module):
    """Calls functions of its own, a child twice, and functions again."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.act = nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x):
        y = self.act(self.layer(x) + x)
        return torch.sin(self.layer(y) + torch.sin(x))


class Net(nn.Module):
    """Two blocks, and one that is there under two names."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.again = self.blocks[0]

    def forward(self, x):
        for block in (*self.blocks, self.again):
            x = block(x) * 2
        return x


def inputs():
    return torch.ones(2, 3, requires_grad=True)


# --------------------------------------------------------------- module path, index and label


def test_the_path_is_that_of_the_module_whose_forward_calls():
    """Each function goes by the innermost module that runs, the root by the empty path."""
    model, x = Block(), inputs()
    with Places() as hook:
        model(x)

    assert [(f.module_path, f.name) for f in hook.forward] == [
        ("layer", "linear"),
        ("", "add"),
        ("act.0", "relu"),
        ("act.1", "tanh"),
        ("layer", "linear"),
        ("", "sin"),
        ("", "add"),
        ("", "sin"),
    ]


def test_the_index_counts_by_path_and_name():
    """Calls of one name in one module are counted through the pass, whoever calls the module."""
    model, x = Net(), inputs()
    with Places() as hook:
        model(x)

    expected, counts = [], Counter()
    for function in hook.forward:
        key = (function.module_path, function.name)
        expected.append(counts[key])
        counts[key] += 1
    assert [f.index for f in hook.forward] == expected
    assert counts["blocks.1.layer", "linear"] == 2
    assert counts["", "mul"] == 3
    # The shared block goes by the name under which it is called, if that can be told.
    shared = counts["blocks.0.layer", "linear"] + counts["again.layer", "linear"]
    assert shared == 4


def test_the_label_is_the_address():
    """`path:name[index]`; a function of the root itself has nothing before the colon."""
    model, x = Net(), inputs()
    with Places() as hook:
        model(x)

    seen = labels(hook.forward)
    assert seen[:4] == [
        "blocks.0.layer:linear[0]",
        "blocks.0:add[0]",
        "blocks.0.act.0:relu[0]",
        "blocks.0.act.1:tanh[0]",
    ]
    assert seen[-1] == ":mul[2]"
    assert len(set(seen)) == len(seen)


def test_a_module_that_calls_itself():
    """Its functions have one count, so no two of them share a label."""

    class Recursive(nn.Module):
        def forward(self, x, times):
            y = x + 1
            if times:
                y = self(y, times - 1)
            return y + 2

    model, x = Recursive(), inputs()
    with Places() as hook:
        model(x, 2)

    assert labels(hook.forward) == [f":add[{i}]" for i in range(6)]


def test_what_another_function_calls_has_its_module_too():
    """A custom function and a `FunctionNode` are functions of the module that calls them."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x**3

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.node = FunctionNode(lambda x: x * 2 + 1, "double")

        def forward(self, x):
            return self.node(Cube.apply(x))

    model, x = nn.Sequential(Custom()), inputs()
    with Places() as hook:
        model(x)

    assert labels(hook.forward) == ["0:Cube[0]", "0:double[0]"]


def test_forward_called_directly():
    """Where `forward` is called directly no module runs: its functions are the caller's."""

    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer.forward(x)

    model, x = Direct(), inputs()
    with Places() as hook:
        model(x)
        model.layer.forward(x)

    assert labels(hook.forward) == [":linear[0]", "linear[0]"]


def test_with_module_hooks_the_places_are_the_same():
    """Whether somebody watches the modules makes no difference to functions."""

    class Watches(ModuleHook):
        def forward_postprocess(self, call):
            pass

        def backward_postprocess(self, call):
            pass

    seen = []
    for watches in (False, True):
        model, x, hook = Net(), inputs(), Places()
        with hook:
            if watches:
                with Watches():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
        calls = [*hook.forward, *hook.backward]
        seen.append([(f.label, f.root.partition("#")[0]) for f in calls])

    assert seen[0] == seen[1]


def test_a_hook_on_one_function_knows_the_place():
    """Without any scope, a `FunctionNode` in a model has path and index of its calls."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = FunctionNode(torch.relu)

        def forward(self, x):
            return self.relu(self.relu(x))

    model, x, hook = nn.Sequential(Own(), Own()), inputs(), Places()
    model[1].relu.add_hook(hook)
    model(x).sum().backward()

    assert labels(hook.forward) == ["1:relu[0]", "1:relu[1]"]
    assert labels(hook.backward) == ["1:relu[1]", "1:relu[0]"]


# --------------------------------------------------------------------------------- the passes


def test_the_pass_is_that_of_the_model():
    """Each outermost forward is a pass, in which the indices start anew; backward knows it too."""
    model, x = Block(), inputs()
    with Places() as hook:
        for _ in range(3):
            model(x).sum().backward()

    in_model = [f for f in hook.forward if f.module_path is not None]
    assert [f.pass_number for f in in_model] == [0] * 8 + [1] * 8 + [2] * 8
    assert labels(in_model[:8]) == labels(in_model[8:16]) == labels(in_model[16:])
    in_model = [f for f in hook.backward if f.module_path is not None]
    assert [f.pass_number for f in in_model] == [0] * 8 + [1] * 8 + [2] * 8


def test_passes_of_several_models():
    """Each root counts its own passes, and functions carry their root."""
    first, second, x = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh()), inputs()
    with Places() as hook:
        for model in (first, second, second):
            model(x)

    assert [(f.name, f.pass_number) for f in hook.forward] == [
        ("relu", 0),
        ("tanh", 0),
        ("tanh", 1),
    ]
    assert len({f.root for f in hook.forward}) == 2


def test_the_step_and_the_mode():
    """Functions carry the optimizer steps so far, and whether the model trains."""
    model, x = nn.Sequential(nn.Linear(3, 3)), inputs()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Places() as hook:
        model(x).sum().backward()
        optimizer.step()
        model(x)
        model.eval()
        model(x)
        model.train()
        with torch.no_grad():
            model(x)

    calls = [f for f in hook.forward if f.module_path is not None]
    assert [f.step - calls[0].step for f in calls] == [0, 1, 1, 1]
    assert [f.mode for f in calls] == ["train", "train", "eval", "no_grad"]


# ------------------------------------------------------------------------ outside of modules


def test_outside_of_modules():
    """A function that no module calls has no path, and is counted by its name alone."""
    x = inputs()
    with Places() as hook:
        y = torch.sin(x)
        F.relu(torch.sin(y)).sum().backward()

    assert [f.module_path for f in hook.forward] == [None] * 4
    assert labels(hook.forward) == ["sin[0]", "sin[1]", "relu[0]", "sum[0]"]
    assert labels(hook.backward) == ["sum[0]", "relu[0]", "sin[1]", "sin[0]"]
    assert {f.root for f in hook.forward} == {""}


def test_outside_of_modules_a_backward_or_a_step_ends_the_pass():
    """Counting starts anew after each backward, and after each step of an optimizer."""
    x = inputs()
    optimizer = torch.optim.SGD([x], 0.0)
    with Places() as hook:
        torch.sin(x)
        torch.sin(x).sum().backward()
        torch.sin(x)
        optimizer.step()
        torch.sin(x)

    calls = [f for f in hook.forward if f.name == "sin"]
    assert [f.index for f in calls] == [0, 1, 0, 0]
    assert [f.pass_number - calls[0].pass_number for f in calls] == [0, 0, 1, 2]


def test_inside_and_outside_are_counted_apart():
    """The same function has one count in a model and one outside of it."""
    model, x = nn.Sequential(nn.ReLU(), nn.ReLU()), inputs()
    with Places() as hook:
        torch.relu(model(torch.relu(x)))

    assert labels(hook.forward) == ["relu[0]", "0:relu[0]", "1:relu[0]", "relu[1]"]


# ------------------------------------------------------------- functions that nobody recorded


def test_unrecorded_functions_of_watched_modules():
    """If module hooks recorded the forward, the nodes' functions have module path and pass."""

    class Watches(ModuleHook):
        def backward_postprocess(self, call):
            pass

    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), inputs()
    with Watches():
        out = model(model(x)).sum()
    with Places() as hook:
        out.backward()

    assert labels(hook.backward) == [
        "sum[0]",
        *("1:relu[1]", "0:addmm[1]", "0:t[1]"),
        *("1:relu[0]", "0:addmm[0]", "0:t[0]"),
    ]
    assert [f.pass_number for f in hook.backward[1:]] == [1, 1, 1, 0, 0, 0]


def test_unrecorded_functions_without_modules():
    """Else they are outside of modules, counted by their names in the order of the forward."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), inputs()
    out = model(model(x)).sum()
    with Places() as hook:
        out.backward()

    assert labels(hook.backward) == [
        *("sum[0]", "relu[1]", "addmm[1]", "t[1]", "relu[0]", "addmm[0]", "t[0]")
    ]


# -------------------------------------------------------------------------- what is repeated


class Checkpointed(nn.Module):
    """Functions around a checkpointed block that is run twice."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.block = Block()
        self.reentrant = reentrant

    def forward(self, x):
        y = torch.sin(x)
        for _ in range(2):
            y = checkpoint(self.block, y, use_reentrant=self.reentrant)
        return torch.sin(y)


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_a_checkpoint_repeats_the_same_places(reentrant):
    """What is computed again has path, index and pass of what it repeats, and says so."""
    model, x = Checkpointed(reentrant=reentrant), inputs()
    with Places() as hook:
        for _ in range(2):
            model(x).sum().backward()

    forward = [f for f in hook.forward if f.module_path]
    assert all(f.module_path is not None for f in hook.repeated)
    repeated = {(f.label, f.pass_number) for f in hook.repeated}
    assert repeated == {(f.label, f.pass_number) for f in forward}
    assert len(repeated) == len(hook.repeated) == len(forward)
    assert {f.root for f in hook.repeated} == {f.root for f in forward}


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_what_is_repeated_advances_no_counter(reentrant):
    """The next pass has the places and numbers that it would have without a checkpoint."""
    model, x = Checkpointed(reentrant=reentrant), inputs()
    with Places() as hook:
        for _ in range(3):
            model(x).sum().backward()

    calls = [f for f in hook.forward if f.module_path is not None]
    each = len(calls) // 3
    assert labels(calls[:each]) == labels(calls[each : 2 * each]) == labels(calls[2 * each :])
    assert [f.pass_number for f in calls] == [0] * each + [1] * each + [2] * each


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_backward_under_a_checkpoint(reentrant):
    """In a non-reentrant one the functions of the forward have the backward, else the repeats."""
    model, x = Checkpointed(reentrant=reentrant), inputs()
    with Places() as hook:
        model(x).sum().backward()

    inside = [f for f in hook.backward if f.module_path]
    forward = [f for f in hook.forward if f.module_path]
    assert Counter(labels(inside)) == Counter(labels(forward))
    ran = hook.repeated if reentrant else forward
    assert {id(f) for f in inside} == {id(f) for f in ran}


class Owner(nn.Module):
    """A layer, and a function that can carry hooks of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.tanh = FunctionNode(torch.tanh)

    def forward(self, x):
        return self.tanh(self.layer(x))


class Owners(nn.Module):
    """Two of them under one checkpoint, each called twice."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.parts = nn.Sequential(Owner(), Owner())
        self.reentrant = reentrant

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.parts, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_a_function_with_a_hook_of_its_own_is_repeated(reentrant):
    """Where no module is watched, its repeats still have the places of what they repeat."""
    model, hook = Owners(reentrant=reentrant), Places()
    nodes = [part.tanh for part in model.parts]
    for node in nodes:
        node.add_hook(hook)
    for _ in range(2):
        model(inputs()).sum().backward()
    for node in nodes:
        node.delete_hook("Places")

    place = [f"parts.{part}:tanh[{call}]" for call in (0, 1) for part in (0, 1)]
    assert [(f.label, f.pass_number) for f in hook.forward] == [
        (p, n) for n in (0, 1) for p in place
    ]
    repeated = [*place[2:], *place[:2]]  # the part that ran last is repeated first
    assert [(f.label, f.pass_number) for f in hook.repeated] == [
        (p, n) for n in (0, 1) for p in repeated
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_a_hook_that_a_function_gets_before_a_second_backward(reentrant):
    """What a scope saw in the forward is known in each backward, also in one that fails."""
    model, scope, late = Owner(), Places(), Places()

    class Fails(FunctionHook):
        def forward_preprocess(self, function, in_data):
            raise ZeroDivisionError

    with scope:
        y = checkpoint(model, inputs(), use_reentrant=reentrant).sum()
    y.backward(retain_graph=True)
    model.tanh.add_hook(late)
    y.backward(retain_graph=True)
    model.tanh.add_hook(Fails())
    with pytest.raises(ZeroDivisionError):
        y.backward()
    model.tanh.delete_hook("Places")
    model.tanh.delete_hook("Fails")

    (first,) = [f for f in scope.forward if f.name == "tanh"]
    assert late.forward == []
    assert [(f.label, f.pass_number) for f in late.repeated] == 2 * [
        (first.label, first.pass_number)
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_functions_that_are_seen_only_when_repeated(reentrant):
    """They say that they are repeats, of the root that the checkpoint calls, and count apart."""
    model, hook = Owners(reentrant=reentrant), Places()
    y = model(inputs()).sum()
    with hook:
        y.backward(retain_graph=True)
        y.backward()
        model(inputs())

    assert {f.module_path for f in hook.repeated} == {"0", "0.layer", "1", "1.layer"}
    assert len(hook.repeated) == 16
    seen = [f.label for f in hook.forward if f.name == "tanh"]
    assert seen == ["parts.0:tanh[0]", "parts.1:tanh[0]", "parts.0:tanh[1]", "parts.1:tanh[1]"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_functions_of_one_model_repeat_none_of_another(reentrant):
    """Two models have functions of one path and name; what was seen of one says nothing of both."""
    seen, unseen, hook = Owner(), Owner(), Places()
    with hook:
        seen(inputs())
    y = checkpoint(unseen, inputs(), use_reentrant=reentrant).sum()
    with hook:
        y.backward()

    assert {f.module_path for f in hook.repeated} == {"layer", ""}
    assert {f.root for f in hook.forward if f.module_path is not None} == {"Owner"}
    assert {f.root for f in hook.repeated} == {"Owner#2"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_repeats_in_a_backward_inside_a_forward(reentrant):
    """A checkpoint of a module that is none of the running model's has that module for its root."""
    part, hook = Owner(), Places()

    class Model(nn.Module):
        def forward(self, x):
            y = checkpoint(part, x, use_reentrant=reentrant).sum()
            part.tanh.add_hook(hook)
            y.backward()
            return x

    with hookline.register_forward_hook(nn.Identity(), lambda *_: None):  # so that calls are known
        Model()(inputs())
    part.tanh.delete_hook("Places")

    assert [(f.root, f.label) for f in hook.repeated] == [("Owner", ":tanh[0]")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_p6_a_scope_that_is_opened_inside_a_backward_sees_what_is_repeated(reentrant):
    """The next events are its own, though autograd began with the modes of before."""
    model, hook = Owners(reentrant=reentrant), Places()

    def enter(module, gradients):
        hook.__enter__()

    with hookline.register_full_backward_pre_hook(model, enter):
        y = model(inputs())
        y.sum().backward()
    hook.__exit__(None, None, None)

    assert [f.name for f in hook.repeated] == 4 * ["linear", "tanh"]
    assert not hook.forward


def test_r8_functions_in_a_reentrant_checkpoint_outside_of_modules():
    """They are repeats without a module; what the checkpoint does besides is none of them."""
    x = inputs()
    with Places() as hook:
        checkpoint(lambda v: torch.sin(v) * 2, x, use_reentrant=True).sum().backward()

    assert [f.name for f in hook.forward] == ["sin", "mul", "sum"]
    assert labels(hook.repeated) == ["sin[0]", "mul[0]"]
    assert labels(hook.backward) == ["sum[0]", "mul[0]", "sin[0]"]


def test_r8_functions_in_a_non_reentrant_checkpoint_outside_of_modules():
    """Their repeats are seen and marked, up to where the checkpoint stops early."""
    x = inputs()
    with Places() as hook:
        checkpoint(lambda v: torch.sin(v) * 2, x, use_reentrant=False).sum().backward()

    assert labels(hook.repeated) == ["sin[0]"]
    assert labels(hook.backward) == ["sum[0]", "mul[0]", "sin[0]"]


def test_functions_in_a_backward_are_part_of_it():
    """What a custom function's backward calls, also a model or another backward, has no events."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                y = ctx.saved_tensors[0].detach().requires_grad_()
                return torch.autograd.grad(helper(y * 2) * 1, y, grad)[0]

    helper, x, one = FunctionNode(torch.sin, "helper"), inputs(), torch.ones(2, 3)
    with Places() as hook:
        Twice.apply(x).backward(one)

    assert labels(hook.forward) == ["Twice[0]"]
    assert labels(hook.backward) == ["Twice[0]"]
    assert torch.equal(x.grad, torch.cos(x.detach() * 2) * 2)
