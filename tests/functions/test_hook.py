"""`FunctionHook`: scopes, names, order, one call object in all phases, replacing, paired ends."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

from hookline import (
    FunctionCall,
    FunctionHook,
    FunctionNode,
    HooklineError,
    HookNameError,
    HookTypeError,
    HookValueError,
    Inputs,
    ModuleHook,
    add_hook,
    get_function_hooks,
    get_module_hooks,
)
from hookline.core.phases import Phase
from tests.logs import CALLBACKS, PHASES, FunctionLog, Noted


class Log(Noted, FunctionLog):
    called = attrgetter("name")


named = Log.named


def doing(phase, action, only=None, **attributes):
    """A hook that does something at one phase, of one function or of all."""

    def callback(self, function, *data):
        if only in (None, function.name):
            action(function, *data)

    return type("Doing", (FunctionHook,), {CALLBACKS[phase]: callback, **attributes})()


def names_at(events, phase):
    return [name for what, name in events if what == phase]


def value():
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


def run(x=None):
    """Three functions with a gradient, forward and backward."""
    x = value() if x is None else x
    out = torch.relu(x * 2).sum()
    out.backward()
    return out


def digits():
    """A small network on real images, and the loss of a batch of them."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:32], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 10)),
    )
    return model, lambda: F.cross_entropy(model(x), torch.tensor(labels[:32]))


# ------------------------------------------------------------------------------- C1: the scope


def test_c1_a_scope_sees_every_function_in_all_four_phases():
    """Inside `with`, each function has its forward events, and its backward ones in reverse."""
    hook, x = Log(), value()
    with hook as given:
        run(x)

    assert given is hook
    assert hook.events == [
        ("forward_pre", "mul"),
        ("forward", "mul"),
        ("forward_pre", "relu"),
        ("forward", "relu"),
        ("forward_pre", "sum"),
        ("forward", "sum"),
        ("backward_pre", "sum"),
        ("backward", "sum"),
        ("backward_pre", "relu"),
        ("backward", "relu"),
        ("backward_pre", "mul"),
        ("backward", "mul"),
    ]


def test_c1_nothing_is_seen_before_and_after():
    """Functions outside of the scope have no events, nor has their backward."""
    hook = Log()
    run()
    with hook:
        pass
    run()

    assert hook.events == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_c1_the_scope_closes_on_any_exit(error):
    """An error that leaves the block is the same object, and the hook is gone."""
    with pytest.raises(type(error)) as caught, Log():
        raise error

    assert caught.value is error
    assert not get_function_hooks()


def test_c1_the_scope_closes_on_return():
    """Leaving the block by `return` closes the scope."""

    def inside():
        with Log():
            return list(get_function_hooks())

    assert inside() == ["Log"]
    assert not get_function_hooks()


def test_c1_another_thread_sees_nothing():
    """While a scope is open here, functions in another thread have no events."""
    hook = Log()
    with hook, ThreadPoolExecutor(1) as pool:
        others = pool.submit(lambda: (run(), dict(get_function_hooks()))[1]).result()

    assert others == {}
    assert hook.events == []


def test_c1_scopes_may_close_in_any_order():
    """The first scope closed first leaves the second one working."""
    events, x = [], torch.ones(1)
    first, second = named("first", events), named("second", events)
    with first:
        second.__enter__()
    torch.relu(x)
    second.__exit__(None, None, None)
    torch.relu(x)

    assert events == [("forward_pre", "second"), ("forward", "second")]


def test_c1_closing_a_scope_that_is_not_open_is_an_error():
    """A scope closed twice is named in the error."""
    hook = Log("meter")

    with pytest.raises(HookNameError, match=r"^hook meter has no open scope in this thread$"):
        hook.__exit__(None, None, None)


def test_c1_function_hooks_and_module_hooks_are_apart():
    """Scopes of the two levels may share a name, and each sees its own level only."""

    class Same(FunctionHook):
        name = "same"
        seen = 0

        def forward_preprocess(self, function, in_data):
            self.seen += 1

    class OfModules(ModuleHook):
        name = "same"
        seen = 0

        def forward_preprocess(self, call):
            self.seen += 1

    x, model = torch.ones(2, 3), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with Same() as functions, OfModules() as modules:
        assert list(get_function_hooks()) == list(get_module_hooks()) == ["same"]
        model(x)

    assert (functions.seen, modules.seen) == (2, 3)


# ---------------------------------------------------------------------------------- C2: names


def test_c2_a_name_can_be_used_once():
    """A second scope of one name is a `KeyError`; the first one stays and works on."""
    first, second, x = Log(), Log(), torch.ones(1)
    with first:
        with pytest.raises(KeyError) as caught, second:
            pass
        torch.relu(x)

    assert str(caught.value).startswith("hook Log already exists; ")
    assert isinstance(caught.value, HooklineError)
    assert [what for what, _ in first.events] == ["forward_pre", "forward"]
    assert second.events == []


def test_c2_the_name_is_free_again_afterwards():
    """The same hook, or another of its name, may be entered later."""
    hook = Log()
    for entered in (hook, hook, Log()):
        with entered:
            assert get_function_hooks() == {"Log": entered}


def test_c2_without_a_name_the_class_name_is_taken():
    """Each class that sets no name has its own name; an instance may set its own."""

    class Plain(FunctionHook):
        pass

    class Derived(Plain):
        pass

    class Named(FunctionHook):
        name = "given"

    own = Plain()
    own.name = "own"
    with Plain(), Derived(), Named(), own:
        assert list(get_function_hooks()) == ["Plain", "Derived", "given", "own"]


def test_c2_renamed_lets_two_of_one_class_nest():
    """`renamed` opens the scope under another name and gives the hook itself."""
    events, x = [], torch.ones(1)
    outer, inner = named("Log", events), named("Log", events)
    inner.note = lambda hook, function: "inner"
    with outer, inner.renamed("b") as given:
        assert dict(get_function_hooks()) == {"Log": outer, "b": inner}
        torch.relu(x)

    assert given is inner
    assert inner.name == "Log"
    assert names_at(events, "forward") == ["Log", "inner"]
    assert not get_function_hooks()


def test_c2_a_new_name_may_be_taken_too():
    """`renamed` meets the same check, with the new name in the error."""
    with Log().renamed("b"), pytest.raises(KeyError) as caught, Log().renamed("b"):
        pass

    assert str(caught.value).startswith("hook b already exists; ")


def test_c2_one_hook_may_be_open_twice():
    """One object under two names gets each event twice."""
    hook, x = Log(), torch.ones(1)
    with hook, hook.renamed("again"):
        torch.relu(x)

    assert [what for what, _ in hook.events] == ["forward_pre"] * 2 + ["forward"] * 2


def test_c2_a_name_that_changes_inside_does_no_harm():
    """The scope closes and frees the name that it was opened under."""
    with Log("before") as hook:
        hook.name = "after"
        assert list(get_function_hooks()) == ["before"]

    assert not get_function_hooks()


# --------------------------------------------------------------------- C3: added and deleted


class Told(FunctionHook):
    """Notes whom it was added to, and fails on demand."""

    def __init__(self, fail=None):
        self.told = []
        self.fail = fail

    def added(self, target):
        self._tell("added", target)

    def deleted(self, target):
        self._tell("deleted", target)

    def _tell(self, what, target):
        self.told.append((what, target, list(get_function_hooks())))
        if self.fail == what:
            raise RuntimeError(what)


def test_c3_a_scope_tells_its_hook():
    """`added(None)` and `deleted(None)`, both while registered, also when the block raised."""
    hook = Told()
    with hook:
        pass
    with pytest.raises(ZeroDivisionError), hook:
        raise ZeroDivisionError

    assert hook.told == [("added", None, ["Told"]), ("deleted", None, ["Told"])] * 2


def test_c3_a_function_tells_its_hook():
    """`added(function)` and `deleted(function)` for one function."""
    node, hook = FunctionNode(torch.relu), Told()
    node.add_hook(hook)
    node.delete_hook("Told")

    assert hook.told == [("added", node, []), ("deleted", node, [])]


def test_c3_if_added_raises_nothing_stays():
    """The error comes out of `with`, the block does not run, and the name is free."""
    with pytest.raises(RuntimeError, match="added"), Told(fail="added"):
        pytest.fail("the block ran")

    assert not get_function_hooks()
    assert torch._C._len_torch_function_stack() == 0
    with Told():
        pass


def test_c3_if_deleted_raises_the_hook_is_gone_all_the_same():
    """The error comes out, with the block's error as its context, but nothing stays registered."""
    with pytest.raises(RuntimeError, match="deleted") as caught, Told(fail="deleted"):
        raise ZeroDivisionError

    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert not get_function_hooks()


def test_c3_a_refused_scope_tells_nothing():
    """A hook whose name was taken was neither added nor deleted."""
    first, second = Told(), Told()
    with first, pytest.raises(KeyError), second:
        pass

    assert second.told == []


# ----------------------------------------------------------------- C4: hooks of one function


def test_c4_a_local_hook_sees_just_that_function():
    """A hook on a `FunctionNode` sees its calls, forward and backward, and no other function."""
    node, hook, x = FunctionNode(torch.relu), Log(), value()
    node.add_hook(hook)
    torch.relu(node(x * 2)).sum().backward()

    assert hook.events == [(phase, "relu") for phase in PHASES]


def test_c4_the_names_of_local_hooks():
    """Taken, missing and wrong hooks are errors of the right kinds with Chainer's texts."""
    node = FunctionNode(torch.relu)
    node.add_hook(Log())
    with pytest.raises(KeyError) as taken:
        node.add_hook(Log())
    with pytest.raises(KeyError) as missing:
        node.delete_hook("other")
    with pytest.raises(TypeError) as wrong:
        node.add_hook(torch.relu, "other")
    with pytest.raises(TypeError, match="did you mean an instance of it"):
        node.add_hook(Log, "other")
    node.delete_hook("Log")

    assert str(taken.value).startswith("Hook Log already exists on relu; delete_hook('Log') ")
    assert str(missing.value) == "Hook other does not exist; hooks here: Log"
    assert str(wrong.value).startswith("Hook must be of type FunctionHook, not ")
    assert all(isinstance(e.value, HooklineError) for e in (taken, missing, wrong))


def test_c4_a_module_hook_is_no_function_hook():
    """A hook of the other level is refused at each place, by name of what is wanted."""
    with pytest.raises(
        HookTypeError, match=r"^Hook must be of type FunctionHook, not Other, a ModuleHook; "
    ):
        FunctionNode(torch.relu).add_hook(type("Other", (ModuleHook,), {})())
    with pytest.raises(
        HookTypeError, match=r"^Hook must be of type ModuleHook, not Log, a FunctionHook; "
    ):
        add_hook(nn.ReLU(), Log())


# ---------------------------------------------------------------------------------- C5: order


def test_c5_scoped_hooks_come_before_local_ones_in_all_phases():
    """In each of the four phases: the thread's hooks as registered, then the function's own."""
    events, node, x = [], FunctionNode(torch.relu), value()
    node.add_hook(named("c", events))
    with named("a", events), named("b", events):
        node.add_hook(named("d", events))
        node(x).backward(torch.ones(3))

    for phase in PHASES:
        assert names_at(events, phase)[:4] == ["a", "b", "c", "d"]


def test_c5_a_local_hook_takes_the_place_of_a_scoped_one_of_its_name():
    """It is called in the scoped one's slot; other functions keep the scoped one."""
    events, node, x, one = [], FunctionNode(torch.relu), value(), torch.ones(3)
    node.add_hook(named("c", events))
    node.add_hook(Log("b", events, lambda hook, function: "local b"))
    with named("a", events), named("b", events), named("d", events):
        torch.sin(node(x)).backward(one)

    local, others = ["a", "local b", "d", "c"], ["a", "b", "d"]
    assert names_at(events, "forward_pre") == [*local, *others]
    assert names_at(events, "forward") == [*local, *others]
    assert names_at(events, "backward_pre") == [*others, *local]
    assert names_at(events, "backward") == [*others, *local]


def test_c5_callbacks_are_called_positionally():
    """A callback may call its parameters what it likes."""

    class Own(FunctionHook):
        def __init__(self):
            self.seen = []

        def forward_preprocess(self, func, data, /):
            self.seen.append((func.name, len(data)))

        def forward_postprocess(self, *everything):
            self.seen.append(len(everything))

        def backward_preprocess(self, _, __, gradients):
            self.seen.append(len(gradients))

        def backward_postprocess(self, call, arrays, out_grad_data):
            self.seen.append((call.name, len(arrays), len(out_grad_data)))

    x, y = value(), value()
    with Own() as hook:
        torch.add(x, y).backward(torch.ones(3))

    assert hook.seen[:2] + hook.seen[-2:] == [("add", 2), 2, 1, ("add", 2, 1)]


# ----------------------------------------------------------------- C6: one object for one call


def test_c6_the_function_is_the_same_object_in_all_phases():
    """What a hook keeps on it in forward is there in backward, call by call."""

    class Keeps(FunctionHook):
        def __init__(self):
            self.kept = []

        def forward_preprocess(self, function, in_data):
            function.mine = [function.index]

        def forward_postprocess(self, function, in_data):
            function.mine.append("forward")

        def backward_preprocess(self, function, in_data, out_grad):
            function.mine.append("backward_pre")

        def backward_postprocess(self, function, in_data, out_grad):
            self.kept.append([*function.mine, function.index])

    x, one = value(), torch.ones(3)
    with Keeps() as hook:
        torch.sin(torch.sin(x)).backward(one)

    assert hook.kept == [[1, "forward", "backward_pre", 1], [0, "forward", "backward_pre", 0]]


def test_c6_who_the_function_is():
    """Name, label, index, module path, pass and type say which call it is."""
    model, x, seen = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3), []
    with Log(note=lambda _, function: seen.append(function)):
        for _ in range(2):
            torch.relu(model(x))

    linear, relu, outside = seen[0], seen[2], seen[4]
    assert type(linear) is FunctionCall
    assert [f.name for f in (linear, relu, outside)] == ["linear", "relu", "relu"]
    assert [f.type for f in (linear, relu, outside)] == ["linear", "relu", "relu"]
    assert [f.module_path for f in (linear, relu, outside)] == ["0", "1", None]
    assert [f.label for f in (linear, relu, outside)] == ["0:linear[0]", "1:relu[0]", "relu[0]"]
    assert [f.index for f in seen[::2]] == [0, 0, 0, 0, 0, 1]
    assert [f.pass_number for f in seen[::2] if f.module_path is not None] == [0, 0, 1, 1]
    assert not any(f.recomputing for f in seen)
    assert repr(linear) == "<FunctionCall 0:linear[0]>"


def test_c6_outputs_are_known_at_the_end_of_the_forward_only():
    """They are the tensors returned, the same objects, and no others hold them afterwards."""
    x, seen = value(), []

    class Looks(Log):
        def _log(self, what, function):
            seen.append((what, function, function.outputs))

    with Looks():
        first, second = x.split([1, 2])
        second.sum().backward()

    at = {what: outputs for what, function, outputs in seen if function.name == "split"}
    assert [what for what, outputs in at.items() if outputs is not None] == ["forward"]
    assert [id(t) for t in at["forward"]] == [id(first), id(second)]


def test_c6_outputs_are_found_in_structures():
    """Tensors in tuples, named tuples and dicts are listed in order; what is no tensor is not."""
    x, seen = torch.ones(2, 2), []
    node = FunctionNode(lambda t: {"a": t + 1, "b": [t * 2, None, 5]}, "several")
    with doing("forward", lambda function, _: seen.append(function.outputs)):
        values, indices = x.max(1)
        several = node(x)

    assert [id(t) for t in seen[0]] == [id(values), id(indices)]
    assert [id(t) for t in seen[1]] == [id(several["a"]), id(several["b"][0])]


@pytest.mark.parametrize(
    "write",
    [
        lambda x, out: x.add_(1),
        lambda x, out: x.__setitem__(0, 5.0),
        lambda x, out: torch.relu_(x),
        lambda x, out: x.t_(),
        lambda x, out: F.relu(x, inplace=True),
        lambda x, out: torch._foreach_mul_([x], 2.0),
    ],
    ids=["method", "setitem", "function", "view", "argument", "foreach"],
)
def test_c6_outputs_of_what_writes_in_place(write):
    """For in-place functions and item assignment, the output is the tensor written."""
    x, seen = torch.ones(3), []
    with doing("forward", lambda function, _: seen.append(function.outputs)):
        write(x, None)

    assert [[id(t) for t in outputs] for outputs in seen] == [[id(x)]]


def test_c6_outputs_of_what_writes_into_out():
    """With `out=`, the outputs are the tensors given there."""
    x, out, pair, seen = torch.ones(3), torch.empty(3), (torch.empty(()), torch.empty(())), []
    with doing("forward", lambda function, _: seen.append(function.outputs)):
        torch.add(x, x, out=out)
        torch.aminmax(x, out=pair)

    assert [[id(t) for t in outputs] for outputs in seen] == [[id(out)], [id(t) for t in pair]]


def test_c6_the_phase_is_told_while_the_event_runs():
    """`phase` is that of the running event, and None outside of any."""
    seen, kept = [], []
    with Log(note=lambda _, function: (seen.append(function.phase), kept.append(function))):
        value().exp().backward(torch.ones(3))

    assert seen[:2] == [Phase.FORWARD_PRE, Phase.FORWARD]
    assert seen[-2:] == [Phase.BACKWARD_PRE, Phase.BACKWARD]
    assert {function.phase for function in kept} == {None}


def test_c6_a_kept_call_keeps_no_tensor():
    """After its events a call holds no tensor, though the hook keeps the call."""
    kept = []
    with Log(note=lambda _, function: kept.append(function)):
        out = run()
    held = weakref.ref(out)
    gc.disable()
    try:
        del out
        assert held() is None
    finally:
        gc.enable()
    assert {(f.args, f.kwargs, f.out, f.outputs, f.arguments) for f in kept} == {(None,) * 5}


# -------------------------------------------------------------------------- C7: what they get


def test_c7_in_data_are_the_input_tensors_as_they_are():
    """Positional and keyword tensors in order, in lists too; the same objects, no copies."""
    x, y, w = value(), torch.ones(3), torch.ones(2, 3)
    seen = []
    with doing("forward_pre", lambda function, in_data: seen.append(in_data)):
        torch.cat([x, y])
        F.linear(input=x, weight=w)
        torch.where(x > 0, x, 1.0)
        torch.zeros(2)

    assert [type(in_data) for in_data in seen] == [tuple] * 5
    assert [[id(t) for t in in_data] for in_data in seen[:3]] == [
        [id(x), id(y)],
        [id(x), id(w)],
        [id(x)],
    ]
    assert seen[3][1] is x
    assert seen[4] == ()


def test_c7_in_data_is_the_same_at_both_ends_of_the_forward():
    """The same tensors come to the begin and to the end, in-place functions included."""
    x, seen = torch.ones(3), []
    with (
        doing("forward_pre", lambda function, in_data: seen.append(in_data[0])),
        doing("forward", lambda function, in_data: seen.append(in_data[0])).renamed("end"),
    ):
        x.mul_(2)

    assert seen[0] is seen[1] is x


def in_backward(make, **attributes):
    """The `in_data` in the backward of `exp` and `linear`, whose inputs are made by functions."""
    seen = {}

    def look(function, in_data, out_grad):
        seen[function.name] = in_data

    with doing("backward", look, **attributes):
        make().backward()
    return seen


def test_c7_in_the_backward_there_is_what_autograd_saved():
    """An input that nobody holds any more is None; one that autograd saved is there."""
    x = torch.ones(4, 3, requires_grad=True)
    w = torch.arange(6.0).view(2, 3).requires_grad_()

    seen = in_backward(lambda: F.linear((x * 2).exp(), w * 1, w[:, 0] * 3).sum())

    assert seen["exp"] == (None,)  # its backward needs its output only
    saved_input, saved_weight, bias = seen["linear"]
    assert torch.equal(saved_input, (x * 2).exp())
    assert torch.equal(saved_weight, w)
    assert bias is None


def test_c7_in_the_backward_a_living_input_is_the_same_object():
    """An input that the program holds is given as it is, saved or not."""
    x = value()
    y = x * 2
    seen = in_backward(lambda: y.exp().sum())

    assert len(seen["exp"]) == 1
    assert seen["exp"][0] is y


def test_c7_retain_inputs_keeps_what_autograd_does_not_save():
    """With `retain_inputs = True` all inputs are there, detached, with the values they had."""
    x, w = torch.ones(4, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)

    seen = in_backward(
        lambda: F.linear((x * 2).exp(), w * 1, w[:, 0] * 3).sum(), retain_inputs=True
    )

    assert torch.equal(seen["exp"][0], x * 2)
    assert [tuple(t.shape) for t in seen["linear"]] == [(4, 3), (2, 3), (2,)]
    assert not any(t.requires_grad for t in (*seen["exp"], *seen["linear"]))


def test_c7_retain_inputs_lasts_as_long_as_the_graph():
    """The inputs kept for a hook go with the graph, with the garbage collector off."""
    held = []

    def look(function, in_data):
        held.append(weakref.ref(in_data[0]))

    with (
        doing("forward", look, only="exp"),
        doing("backward", lambda *_: None, retain_inputs=True).renamed("keeps"),
    ):
        gc.disable()
        try:
            out = (value() * 2).exp()
            kept = [t for call in marked_calls(out) for t in call.in_data]
            assert all(t is not None for t in kept)
            held += map(weakref.ref, kept)
            del out, kept
            assert [ref() for ref in held] == [None] * len(held)
        finally:
            gc.enable()


def marked_calls(tensor):
    """The calls that have left marks on the node of a tensor."""
    return [mark.call for marks in tensor.grad_fn.metadata.values() for mark in marks]


def test_c7_out_grad_has_one_gradient_an_output():
    """Outputs without a gradient have None; the others that of plain autograd."""
    x, seen = torch.arange(6.0, requires_grad=True), {}

    def look(function, in_data, out_grad):
        seen[function.name] = out_grad

    with doing("backward_pre", look):
        first, second, _ = x.split(2)
        (first.sin() * second).sum().backward()

    gradients = seen["split"]
    assert isinstance(gradients, tuple)
    assert len(gradients) == 3
    assert torch.equal(gradients[0], second.detach() * first.detach().cos())
    assert torch.equal(gradients[1], first.detach().sin())
    assert gradients[2] is None


def test_c7_out_grad_of_outputs_from_several_nodes():
    """At the begin those that have arrived are known, at the end all."""
    x, y = value(), value()
    both = FunctionNode(lambda a, b: (a.sin(), b.cos()), "both")
    seen = []

    def look(function, in_data, out_grad):
        seen.append([g is not None for g in out_grad])

    with (
        doing("backward_pre", look, only="both"),
        doing("backward", look, only="both").renamed("end"),
    ):
        one, other = both(x, y)
        (one + other).sum().backward()

    assert seen == [[False, True], [True, True]]


# ------------------------------------------------------------------------ C8: which backward


def test_c8_forward_inside_backward_outside():
    """Backward events belong to the hooks that are registered when backward runs."""
    x, hook = value(), Log()
    with hook:
        out = torch.relu(x * 2).sum()
    out.backward()

    assert {what for what, _ in hook.events} == {"forward_pre", "forward"}
    assert x.grad.tolist() == [2.0, 0.0, 2.0]


def test_c8_another_hook_for_the_backward():
    """Of two scopes, one around the forward and one around the backward, each has its own."""
    x, first, second = value(), Log("first"), Log("second")
    with first:
        out = torch.relu(x * 2).sum()
    with second:
        out.backward()

    assert names_at(first.events, "forward") == ["mul", "relu", "sum"]
    assert second.events == [
        (phase, name) for name in ("sum", "relu", "mul") for phase in ("backward_pre", "backward")
    ]


RUNS = {
    "tensor.backward": lambda loss, leaves: loss.backward(),
    "autograd.backward": lambda loss, leaves: torch.autograd.backward([loss]),
    "backward with inputs": lambda loss, leaves: loss.backward(inputs=leaves),
    "autograd.grad": lambda loss, leaves: [
        setattr(leaf, "grad", grad)
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves), strict=True)
    ],
}


def nodes_of(tensor):
    """The autograd nodes that a backward runs, but for those that write to `.grad`."""
    found, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node not in found and node.name() != "torch::autograd::AccumulateGrad":
            found.add(node)
            todo += [following for following, _ in node.next_functions if following is not None]
    return found


@pytest.mark.parametrize("how", RUNS)
def test_c8_forward_outside_backward_inside(how):
    """Each node of a graph that nobody recorded is a function; the gradients are as without hooks.

    It is named after its node, with empty `in_data`, the gradients that its node gets, and the
    index that counts the functions of its name in the order of the forward.
    """
    model, loss_of = digits()
    leaves = list(model.parameters())
    torch.manual_seed(1)
    RUNS[how](loss_of(), leaves)
    expected = [leaf.grad.clone() for leaf in leaves]
    model.zero_grad()
    seen = []

    class Looks(Log):
        def backward_preprocess(self, function, in_data, out_grad):
            super().backward_preprocess(function, in_data, out_grad)
            seen.append((in_data, [g.shape for g in out_grad], function.index))

    torch.manual_seed(1)
    loss = loss_of()
    names = sorted(node.name() for node in nodes_of(loss))
    with Looks() as hook:
        RUNS[how](loss, leaves)

    assert len(seen) == len(names)
    assert hook.events[::2] == [("backward_pre", name) for _, name in hook.events[::2]]
    assert hook.events[1::2] == [("backward", name) for _, name in hook.events[::2]]
    assert names_at(hook.events, "backward_pre") == [
        *("nll_loss", "log_softmax", "addmm", "t", "mul", "view"),
        *("max_pool2d_with_indices", "relu", "native_batch_norm", "convolution"),
    ]
    assert {in_data for in_data, _, _ in seen} == {()}
    assert [shapes for _, shapes, _ in seen][:2] == [[torch.Size([])], [torch.Size([32, 10])]]
    assert {index for _, _, index in seen} == {0}
    assert all(map(torch.equal, expected, (leaf.grad for leaf in leaves)))


def test_c8_a_graph_that_two_threads_recorded():
    """Autograd numbers the nodes of each thread anew: each function begins at its own nodes."""
    first = FunctionNode(lambda x: torch.sin(x * 2) + 1, "first")
    second = FunctionNode(lambda x: torch.cos(x * 3) * 4, "second")
    seen = {}

    def work(node, x):
        with doing("backward", lambda *_: None):
            return node(x)

    def in_a_new_thread(node, x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work, node, x).result()

    x, one = value(), torch.ones(3)
    y = in_a_new_thread(first, x)
    out = in_a_new_thread(second, y)
    with doing("backward_pre", lambda f, _, grads: seen.update({f.name: (f, grads[0])})):
        out.backward(one)

    (one_call, grad), (other_call, one_grad) = seen["first"], seen["second"]
    assert range(max(one_call.start, other_call.start), min(one_call.stop, other_call.stop))
    assert torch.equal(one_grad, one)
    assert torch.equal(grad, torch.sin(y.detach() * 3) * -12)
    assert list(seen) == ["second", "first"]


@pytest.mark.parametrize("how", RUNS)
def test_c8_forward_inside_and_all_ways_to_run_a_backward(how):
    """Recorded functions have the same events however the backward is started."""
    model, loss_of = digits()
    leaves = list(model.parameters())
    with Log() as hook:
        RUNS[how](loss_of(), leaves)

    expected = ["conv2d", "batch_norm", "relu", "max_pool2d", "flatten", "dropout", "linear"]
    assert names_at(hook.events, "backward") == ["cross_entropy", *reversed(expected)]


def test_c8_a_graph_that_was_recorded_in_part():
    """Recorded functions keep their names, and the nodes around them are functions of their own."""
    x, one = value(), torch.ones(3)
    y = torch.sin(x) * 2
    with Log():
        z = F.softplus(F.hardtanh(y))
    out = z.cos()
    with Log() as hook:
        out.backward(one)

    assert names_at(hook.events, "backward") == ["cos", "softplus", "hardtanh", "mul", "sin"]


def test_c8_a_hook_without_backward_callbacks_records_nothing():
    """A forward under such a hook is unrecorded for one that comes later: names of nodes."""
    w, x = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    with doing("forward", lambda *_: None):
        out = F.cross_entropy(F.linear(x, w), torch.tensor([0, 1, 0, 1]))
    with Log() as hook:
        out.backward()

    assert names_at(hook.events, "backward") == ["nll_loss", "log_softmax", "mm", "t"]


def test_c8_a_local_hook_added_before_the_backward():
    """Which hooks run in the backward is settled when it runs, for local hooks too."""
    node, x, late = FunctionNode(torch.relu), value(), Log("late")
    node.add_hook(Log("early"))
    out = node(x).sum()
    node.delete_hook("early")
    node.add_hook(late)
    out.backward()

    assert late.events == [("backward_pre", "relu"), ("backward", "relu")]


def test_c8_a_hook_that_comes_in_the_backward():
    """It waits for the next function, and has no end without a begin."""
    x, late = value(), Log("late")
    with doing("backward_pre", lambda *_: late.__enter__(), only="relu"):
        run(x)
    late.__exit__()

    assert late.events == [("backward_pre", "mul"), ("backward", "mul")]


# ------------------------------------------------------------------------ C9: paired ends


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_c9_a_raising_callback_ends_the_others(phase, error):
    """Whichever callback raises, each other hook has one end for each begin that ran.

    A begin that itself raised counts as not run, and an end that raised as the end.
    """
    events, x, one = [], value(), torch.ones(3)

    def fail(*_):
        raise error

    before, after = named("before", events), named("after", events)
    with before, doing(phase, fail), after, pytest.raises(type(error)) as caught:
        x.exp().backward(one)

    assert caught.value is error
    forward = [("forward_pre", "before"), ("forward_pre", "after")]
    done = [*forward, ("forward", "before"), ("forward", "after")]
    backward = [("backward_pre", "before"), ("backward_pre", "after")]
    assert (
        events
        == {
            "forward_pre": [("forward_pre", "before"), ("aborted", "before")],
            "forward": [*forward, ("forward", "before"), ("aborted", "after")],
            "backward_pre": [*done, ("backward_pre", "before"), ("aborted", "before")],
            "backward": [*done, *backward, ("backward", "before"), ("aborted", "after")],
        }[phase]
    )


class Fails(Function):
    """Raises on demand, in its forward or in its backward."""

    @staticmethod
    def forward(ctx, x, where, error):
        ctx.fail = error if where == "backward" else None
        if where == "forward":
            raise error
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if ctx.fail is not None:
            raise ctx.fail
        return grad * 2, None, None


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_c9_a_function_that_raises_is_aborted(where):
    """Its begin has `aborted` for an end, with the call and the very exception that comes out."""
    error, x, aborted = ValueError("no"), value(), []

    class Watches(Log):
        def aborted(self, function, exception):
            super().aborted(function, exception)
            aborted.append((function.name, exception))

    with Watches() as hook, pytest.raises(ValueError, match="no") as caught:
        torch.relu(Fails.apply(x.sin(), where, error)).sum().backward()

    assert caught.value is error
    assert aborted == [("Fails", error)]
    assert hook.events[-2][0] == ("forward_pre" if where == "forward" else "backward_pre")
    assert hook.events[-2:] == [(hook.events[-2][0], "Fails"), ("aborted", "Fails")]


def test_c9_hooks_work_as_before_after_a_failure():
    """The next run has the events of a run without a failure before."""
    x = value()
    with Log() as expected:
        run()
    with Log() as hook:
        for where in ("forward", "backward"):
            with pytest.raises(ValueError, match="no"):
                Fails.apply(x, where, ValueError("no")).sum().backward()
        hook.events.clear()
        run()

    assert hook.events == expected.events


def test_c9_a_hook_that_leaves_between_begin_and_end():
    """A removed hook gets no end; the others get theirs."""
    stays, leaves, x = Log("stays"), Log("leaves"), value()
    leaves.__enter__()
    with doing("forward", lambda *_: leaves.__exit__(), only="mul"), stays:
        x * 2

    assert leaves.events == [("forward_pre", "mul"), ("forward", "mul")]
    assert stays.events == [("forward_pre", "mul"), ("forward", "mul")]


# ---------------------------------------------------------------------------- C10: listings


def test_c10_get_function_hooks_lists_this_threads_hooks():
    """By name, in order, and read-only."""
    a, b = Log("a"), Log("b")
    with b, a:
        hooks = get_function_hooks()
        with pytest.raises(TypeError):
            hooks["c"] = a
        with ThreadPoolExecutor(1) as pool:
            assert dict(pool.submit(get_function_hooks).result()) == {}

    assert list(hooks.items()) == [("b", b), ("a", a)]
    assert dict(get_function_hooks()) == {}


def test_c10_function_hooks_add_nothing_to_the_listing_of_module_hooks():
    """What makes module calls known to function hooks is none of the user's module hooks."""
    with Log():
        assert dict(get_module_hooks()) == {}


# ------------------------------------------------------------------------- C11: no recursion


@pytest.mark.parametrize("phase", PHASES)
def test_c11_a_callbacks_own_functions_fire_no_hooks(phase):
    """Functions that a callback calls, forward and backward, have no events at all."""
    results = []

    def compute(*_):
        with torch.enable_grad():
            x = value()
            local(Fails.apply(x, None, None)).sum().backward()
            results.append(x.grad)

    local = FunctionNode(torch.sin)
    local.add_hook(watches := Log("local"))
    x, one = value(), torch.ones(3)
    with Log("before") as before, doing(phase, compute), Log("after") as after:
        x.exp().backward(one)

    assert before.events == after.events == [(each, "exp") for each in PHASES]
    assert watches.events == []
    assert len(results) == 1
    assert torch.equal(results[0], (value().detach() * 2).cos() * 2)


def test_c11_a_hook_may_call_the_function_it_watches():
    """Its own call runs bare: no endless recursion, and the same result."""
    x, again = value(), []
    with doing("forward", lambda function, in_data: again.append(torch.exp(*in_data))):
        out = torch.exp(x)

    assert len(again) == 1
    assert torch.equal(again[0], out)


# ----------------------------------------------------------------------------- C12: replace


@pytest.mark.parametrize("phase", PHASES)
def test_c12_return_values_are_ignored(phase):
    """What a callback returns changes nothing."""
    returns = type("Returns", (FunctionHook,), {CALLBACKS[phase]: lambda self, *_: torch.zeros(3)})
    x, plain = value(), value()
    expected = run(plain)
    with returns():
        out = run(x)

    assert torch.equal(out, expected)
    assert torch.equal(x.grad, plain.grad)


def test_c12_replace_the_inputs():
    """At `forward_pre`, as many tensors as there are inputs, or complete `Inputs`."""
    x, w, new, b = torch.ones(2, 3), torch.ones(2, 3), torch.arange(6.0).view(2, 3), torch.ones(2)
    for given in ((new, w), [new, w], Inputs((new, w)), Inputs((), {"input": new, "weight": w})):
        with doing("forward_pre", lambda function, _, given=given: function.replace(given)):
            out = F.linear(x, w)
        assert torch.equal(out, F.linear(new, w))
    with doing("forward_pre", lambda function, _: function.replace(Inputs((x, new, b)))):
        assert torch.equal(F.linear(x, w), F.linear(x, new, b))
    with doing("forward_pre", lambda function, _: function.replace(new)):
        assert torch.equal(torch.relu(x), new)


def test_c12_replaced_inputs_keep_their_structure():
    """Tensors in lists are replaced where they stood, and all else stays."""
    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    with doing("forward_pre", lambda function, in_data: function.replace(in_data[::-1])):
        out = torch.cat([x, y], dim=1)

    assert out.tolist() == [[0, 0, 1, 1]]


def test_c12_later_hooks_and_the_function_see_the_new_inputs():
    """Each hook gets what the one before it left, at the begin, the end, and in the backward."""
    seen, x = [], torch.ones(1, requires_grad=True)

    def see(function, in_data, *_):
        seen.append(None if in_data[0] is None else in_data[0].item())

    with (
        doing("forward_pre", lambda f, data: f.replace(data[0] + 1), "exp").renamed("a"),
        doing("forward_pre", lambda f, data: f.replace(data[0] * 10), "exp").renamed("b"),
        doing("forward_pre", see, "exp").renamed("c"),
        doing("forward", see, "exp").renamed("d"),
        doing("backward", see, "exp", retain_inputs=True).renamed("e"),
    ):
        out = x.exp()
        out.backward()

    assert seen == [20.0, 20.0, 20.0]
    assert torch.equal(out, torch.tensor([20.0]).exp())
    assert torch.equal(x.grad, out.detach() * 10)


def test_c12_a_wrong_number_of_inputs_is_refused():
    """The error names the function, how many inputs it has, and what was given."""
    x = torch.ones(2, 3)
    with (
        doing("forward_pre", lambda function, _: function.replace(x)),
        pytest.raises(HookTypeError) as caught,
    ):
        F.linear(x, x)

    assert str(caught.value) == (
        "function linear[0] has 2 inputs; float32[2, 3] cannot replace them; "
        "give 2 in order, None where there is none"
    )


def test_c12_replace_the_output():
    """At `forward`, the value takes the output's place; gradients flow through it."""
    x, plain, one = value(), value(), torch.ones(3)
    events = []
    with doing("forward", lambda f, _: f.replace(f.outputs[0] * 5), "exp"), Log("log", events):
        out = x.exp()
        out.backward(one)

    expected = plain.exp() * 5
    expected.backward(one)
    assert torch.equal(out, expected)
    assert torch.equal(x.grad, plain.grad)
    # What the hook put there belongs to the function: no function of its own.
    assert events == [(phase, "exp") for phase in PHASES]


def test_c12_later_hooks_see_the_new_output():
    """`outputs` are what the hook before gave."""
    seen, x = [], torch.ones(1)
    with (
        doing("forward", lambda f, _: f.replace(f.outputs[0] + 1)).renamed("a"),
        doing("forward", lambda f, _: f.replace([f.outputs[0] * 10, None])).renamed("b"),
        doing("forward", lambda f, _: seen.append(f.outputs)).renamed("c"),
    ):
        out = torch.relu(x)

    assert out[0].tolist() == [20.0]
    assert out[1] is None
    assert len(seen[0]) == 1
    assert seen[0][0] is out[0]


def test_c12_what_returns_nothing_has_no_output_to_replace():
    """Item assignment and functions that only write say so."""
    x = torch.ones(3)
    with (
        doing("forward", lambda function, _: function.replace(x)),
        pytest.raises(HookValueError, match=r"^function setitem\[0\] returns nothing that could"),
    ):
        x[0] = 5.0


@pytest.mark.parametrize("form", [lambda grad: grad, lambda grad: (grad,), lambda grad: [grad]])
def test_c12_replace_the_gradient_of_the_output(form):
    """At `backward_pre`, the gradient given flows on into the function, and later hooks see it."""
    x, w, new, seen = torch.ones(4, 3), torch.ones(2, 3), torch.arange(8.0).view(4, 2), []
    x.requires_grad_()
    w.requires_grad_()
    with (
        doing("backward_pre", lambda f, _, __: f.replace(form(new)), "linear").renamed("a"),
        doing("backward_pre", lambda f, _, grads: seen.append(grads), "linear").renamed("b"),
        doing("backward", lambda f, _, grads: seen.append(grads), "linear").renamed("c"),
    ):
        F.linear(x, w).sum().backward()

    assert torch.equal(x.grad, new @ w)
    assert torch.equal(w.grad, new.T @ x)
    assert [len(grads) for grads in seen] == [1, 1]
    assert seen[0][0] is seen[1][0] is new


def test_c12_replace_one_of_several_gradients():
    """Outputs of one node and of several: as many gradients as there are outputs."""
    x, y = torch.arange(4.0, requires_grad=True), torch.arange(4.0, requires_grad=True)
    both = FunctionNode(lambda a, b: (a * 2, b * 3), "both")

    def double_first(function, in_data, out_grad):
        function.replace((torch.full_like(x[:2], 7.0), *out_grad[1:]))

    with doing("backward_pre", double_first, "split"):
        first, second = x.split(2)
        (first + second).sum().backward()
    with doing("backward_pre", lambda f, _, g: f.replace((g[0], g[1] * 5)), "both"):
        one, other = both(x.detach().requires_grad_(), y)
        (one + other).sum().backward()

    assert x.grad.tolist() == [7.0, 7.0, 1.0, 1.0]
    assert y.grad.tolist() == [15.0] * 4


def test_c12_replace_the_gradient_of_what_was_written_in_place():
    """For in-place functions, also on views, it is the gradient of the tensor as it was written."""
    for write, factor in (
        (lambda y: y.mul_(3), [0.0, 0.0]),
        (lambda y: y[0].mul_(3), [0.0, 2.0]),
        (lambda y: y.view(2, 1).t().mul_(3), [0.0, 0.0]),
    ):
        x = torch.ones(2, requires_grad=True)
        with doing("backward_pre", lambda f, _, grads: f.replace(grads[0] * 0), "mul_"):
            y = x * 2
            write(y)
            y.sum().backward()
        assert x.grad.tolist() == factor


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((torch.ones(3), torch.ones(3)), HookTypeError),
        (5.0, HookTypeError),
        (torch.ones(1), HookValueError),
        (torch.ones(3, dtype=torch.float64), HookValueError),
    ],
    ids=["count", "number", "shape", "dtype"],
)
def test_c12_a_gradient_that_does_not_fit_is_refused(given, error):
    """The error names the function, and what was given in place of what."""
    x = value()
    hook = doing("backward_pre", lambda function, _, __: function.replace(given), "exp")
    with hook, pytest.raises(error, match=r"function exp\[0\]") as caught:
        x.exp().sum().backward()

    expected = "gradients of outputs" if error is HookTypeError else "must stay"
    assert expected in str(caught.value)
    assert x.grad is None


def test_c12_nothing_can_be_replaced_elsewhere():
    """At the end of the backward, in `aborted` and outside of events: a clear error."""
    kept, x, message = [], value(), r"^nothing of function \w+\[0\] can be replaced here"
    with (
        doing("backward", lambda f, _, grads: f.replace(grads)),
        pytest.raises(HookValueError, match=message),
    ):
        x.exp().sum().backward()
    with doing("forward", lambda function, _: kept.append(function)):
        x.exp()
    with pytest.raises(HookValueError, match=message):
        kept[0].replace(x)


# ----------------------------------------------------------------- P6: hooks that come and go


def test_p6_a_hook_that_is_removed_is_never_called_again():
    """Removed within an event, for what comes later in this event and in the same run."""
    x, last = value(), Log("last")

    def leave(*_):
        if last.name in get_function_hooks():
            last.__exit__()

    with doing("backward_pre", leave, "relu"):
        last.__enter__()
        run(x)

    assert names_at(last.events, "backward_pre") == ["sum"]
    assert names_at(last.events, "backward") == ["sum"]


# ------------------------------------------------------------------- R5: nothing stays behind


def test_r5_nothing_stays_on_a_graph_that_lives_on():
    """After a backward that retains the graph, no hook of ours and no gradient is left on it."""
    x, held = value(), []

    def look(function, in_data, out_grad):
        held.extend(weakref.ref(each) for each in (function.window, *out_grad))

    out = torch.relu(x * 2).sum()
    with doing("backward", look):
        gc.disable()
        try:
            recorded = torch.relu(x * 2).sum()
            for graph in (out, recorded):
                graph.backward(retain_graph=True)
            assert [ref() for ref in held] == [None] * len(held)
        finally:
            gc.enable()

    assert len(held) == 12
