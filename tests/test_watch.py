"""Hooks on the selected modules of one model, and on the functions that these call."""

import gc
import os
import re
import subprocess
import sys
import threading
import warnings
from weakref import ref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import hookline
from hookline import (
    FunctionHook,
    HookNameError,
    HookTypeError,
    HookValueError,
    ModuleHook,
    SelectionError,
    Watch,
    add_hook,
    hooks_of,
    register_forward_hook,
    select,
    watch,
)
from hookline.core.demand import demand
from hookline.core.thread import module_switch
from hookline.edits import scale
from hookline.functions import places as function_places
from hookline.torch_base import paths
from hookline.torch_base import select as selecting


class Calls(ModuleHook):
    """Keeps the path of each forward and backward."""

    def __init__(self, name=None):
        self.rows = []
        if name:
            self.name = name

    def forward_postprocess(self, call):
        self.rows.append(call.path)

    def backward_postprocess(self, call):
        self.rows.append(f"{call.path} backward")

    def take(self):
        taken, self.rows = self.rows, []
        return taken


class Functions(FunctionHook):
    """Keeps the address of each function's forward and backward."""

    def __init__(self):
        self.rows = []

    def forward_postprocess(self, function, in_data):
        self.rows.append(function.label)

    def backward_postprocess(self, function, in_data, out_grad):
        self.rows.append(f"{function.label} backward")

    def take(self):
        taken, self.rows = self.rows, []
        return taken


class Told(ModuleHook):
    """Keeps for which modules it was added and deleted; raises for some."""

    def __init__(self, fails_at=(), ends_badly_at=(), name="Told"):
        self.name = name
        self.added_to = []
        self.deleted_from = []
        self.fails_at = fails_at
        self.ends_badly_at = ends_badly_at

    def added(self, target):
        if target in self.fails_at:
            raise ArithmeticError(self.name)
        self.added_to.append(target)

    def deleted(self, target):
        self.deleted_from.append(target)
        if target in self.ends_badly_at:
            raise ArithmeticError(self.name)

    def forward_preprocess(self, call):
        pass


class Net(nn.Module):
    """Two linear layers, functions between them, a container and an unused layer."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        x = F.relu(self.one(x)) + 1
        for module in self.rest:
            x = module(x)
        return F.relu(x)


@pytest.fixture(autouse=True)
def _all_functions_let_go():
    yield
    assert len(function_places.everywhere) == 0


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(3, 4)


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2}
    config = GPT2Config(vocab_size=32, n_positions=8, attn_implementation="eager", **sizes)
    return GPT2LMHeadModel(config).eval()


def transformer():
    torch.manual_seed(0)
    return nn.Transformer(8, 2, 2, 2, 8, batch_first=True, dropout=0.0)


TOKENS = torch.arange(8).reshape(1, 8)


# Module hooks.


def test_without_where_every_module_is_watched(net, x):
    """Containers and modules that are not called aside, which have no calls."""
    calls = Calls()
    with watch(net, calls):
        net(x).sum().backward()
    assert calls.take() == [
        *["one", "rest.0", "rest.1", ""],
        *["rest.1 backward", "rest.0 backward", "one backward", " backward"],
    ]
    net(x)
    assert calls.take() == []


@pytest.mark.parametrize(
    "where",
    [
        "transformer.h.*.attn",
        ["transformer.h.0", "lm_head"],
        nn.LayerNorm,
        re.compile(r"mlp\.act$"),
        (nn.Embedding, "transformer.ln_f"),
        lambda path, module: path.endswith("c_proj"),
    ],
    ids=lambda where: getattr(where, "__name__", str(where)),
)
def test_where_selects_as_select_does_on_gpt2(where):
    """The modules that a plain torch hook on the same modules sees, in the same order."""
    model = gpt2()
    patterns = where if isinstance(where, list | tuple) else [where]
    names = {module: path for path, module in select(model, *patterns)}
    expected = []
    handles = [
        m.register_forward_hook(lambda module, args, out: expected.append(names[module]))
        for m in names
    ]
    calls = Calls()
    with torch.no_grad(), watch(model, calls, where=where) as watched:
        model(TOKENS)
    for handle in handles:
        handle.remove()

    assert calls.rows == expected
    assert len(expected) >= 2
    assert watched.selection.paths == tuple(names.values())


def test_where_may_be_a_selection_or_a_module(net, x):
    """What was selected before, also in part, and a module of the model."""
    calls = Calls()
    chosen = select(net, nn.Linear) - select(net, "unused")
    with watch(net, calls, where=chosen):
        net(x)
    with watch(net, calls, where=net.one):
        net(x)
    with watch(net, calls, where=[chosen[:1], net.rest[1]]):
        net(x)
    assert calls.take() == ["one", "rest.0", "one", "one", "rest.1"]


def test_the_model_becomes_the_root(net, x):
    """Also for calls of its parts alone, which are otherwise roots of their own."""
    seen = []

    class Root(ModuleHook):
        def forward_preprocess(self, call):
            seen.append((call.root, call.path))

    with watch(net, Root(), where="one"):
        net.one(x)
        net(x)
    assert seen == [("Net", "one"), ("Net", "one")]


def test_a_part_of_a_larger_model_is_watched_by_its_own_names(x):
    """Patterns and the selection go by the model given; events by the topmost that is known."""
    with Calls() as calls:  # so that it is known what is put into what
        outer = nn.Sequential(Net())
    with watch(outer[0], calls, where="on?") as watched:
        outer(x)
    assert watched.selection.paths == ("one",)
    assert calls.take() == ["0.one"]


def test_several_hooks_run_in_the_given_order(net, x):
    """Each under its own name, or the one that `renamed` gives."""
    order = []

    class Noted(ModuleHook):
        def __init__(self, mark):
            self.mark = mark

        def forward_preprocess(self, call):
            order.append(self.mark)

    with watch(net, Noted("a"), Noted("b").renamed("b"), Noted("c").renamed("c"), where="one"):
        net(x)
    assert order == ["a", "b", "c"]

    order.clear()
    with (
        add_hook(net.one, Noted("first"), "first"),
        watch(net, Noted("last"), where="one"),
        watch(net, Noted("b").renamed("b"), Noted("c").renamed("c"), where="one", prepend=True),
    ):
        net(x)
    assert order == ["b", "c", "first", "last"]


def test_c5_a_scoped_hook_of_the_same_name_gives_way(net, x):
    """At the watched modules only, as for hooks that were added to a module."""
    scoped, watched = Calls(), Calls()
    with scoped, watch(net, watched, where="one"):
        net(x)
    assert watched.take() == ["one"]
    assert scoped.take() == ["rest.0", "rest.1", ""]


def test_r11_module_hooks_run_in_all_threads(net, x):
    """Also in one that runs already."""
    calls, go, done = Calls(), threading.Event(), threading.Event()

    def work():
        go.wait()
        net(x)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with watch(net, calls, where="one"):
        go.set()
        done.wait()
    thread.join()
    assert calls.take() == ["one"]


def test_c10_watched_hooks_are_listed_and_cleared(net, x):
    """`hooks_of` shows them and `clear_hooks` removes them; closing then does nothing."""
    hook = Told()
    watched = watch(net, hook, where=nn.Linear)
    assert [(row.path, row.hook) for row in hooks_of(net)] == [
        ("one", hook),
        ("rest.0", hook),
        ("unused", hook),
    ]
    hookline.clear_hooks(net)
    assert hooks_of(net) == []
    watched.close()
    assert hook.deleted_from == hook.added_to[::-1]


def test_r2_watching_changes_no_result():
    """Bitwise the same outputs and gradients of a transformer, watched at both levels."""
    source, target = torch.randn(2, 3, 8), torch.randn(2, 3, 8)

    def gradients(model):
        out = model(source, target)
        out.sum().backward()
        return [out, *(p.grad for p in model.parameters())]

    plain = gradients(transformer())
    model = transformer()
    calls, functions = Calls(), Functions()
    with watch(model, calls, functions):
        watched = gradients(model)

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(calls.rows) > 40
    assert len(functions.rows) > 40


# Function hooks.


def by_module(function_hook, wanted, run):
    """What a scope of the hook sees of the functions whose label is wanted."""
    with function_hook:
        run()
    return [label for label in function_hook.take() if wanted(label)]


ADDRESSES = {
    "h.*.attn:softmax": r"transformer\.h\.\d\.attn:softmax\[",
    "h.*.attn:matmul[0]": r"transformer\.h\.\d\.attn:matmul\[0\]",
    "h.1.mlp.act:*": r"transformer\.h\.1\.mlp\.act:",
    "ln_f:layer_nor?": r"transformer\.ln_f:layer_norm",
    "**:add": r".*:add\[",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_select_functions_forward_and_backward(address):
    """They see what a scope sees, but for what they do not mean."""
    model = gpt2()
    where = address if address.startswith("**") else f"transformer.{address}"

    def run():
        model(TOKENS).logits.sum().backward()

    expected = by_module(Functions(), lambda label: re.match(ADDRESSES[address], label), run)
    functions = Functions()
    with watch(model, functions, where=where):
        run()

    assert functions.rows == expected
    assert any(label.endswith("backward") for label in expected)
    assert not all(label.endswith("backward") for label in expected)


def test_function_hooks_see_what_the_selected_modules_call(net, x):
    """Not what modules inside of them call, and nothing outside of the model."""
    functions = Functions()
    with watch(net, functions, where=["", "one"]):
        F.gelu(net(F.relu(x))).sum().backward()
    assert functions.take() == [
        *["one:linear[0]", ":relu[0]", ":add[0]", ":relu[1]"],
        *[":relu[1] backward", ":add[0] backward", ":relu[0] backward", "one:linear[0] backward"],
    ]


def test_function_hooks_of_one_model_do_not_see_another(net, x):
    """The same hook may watch two models, and each sees its own."""
    other = Net()
    mine, theirs = Functions(), Functions()
    with watch(net, mine, where="one"), watch(other, theirs, where="**:relu"):
        net(x)
        assert theirs.take() == []
        other(x)
    assert mine.take() == ["one:linear[0]"]
    assert theirs.take() == [":relu[0]", ":relu[1]"]


def test_function_hooks_run_in_the_given_order(net, x):
    """Those with `prepend` in front of the others, in their order too."""
    order = []

    class Noted(FunctionHook):
        def __init__(self, mark):
            self.name = mark

        def forward_preprocess(self, function, in_data):
            order.append(self.name)

    with (
        watch(net, Noted("c"), Noted("d"), where=":add"),
        watch(net, Noted("a"), Noted("b"), where=":add", prepend=True),
    ):
        net(x)
    assert order == ["a", "b", "c", "d"]


def test_a_scope_of_the_same_name_sees_all_functions(net, x):
    """A watch is for some functions only, so it takes no scope's place."""
    scoped, watched = Functions(), Functions()
    with scoped, watch(net, watched, where=":add"):
        net(x)
    assert watched.take() == [":add[0]"]
    assert len(scoped.take()) == 6


def test_both_levels_at_once(net, x):
    """Module hooks take the modules, function hooks what these call and what is addressed."""
    calls, functions = Calls(), Functions()
    with watch(net, calls, functions, where=["one", ":relu[1]"]):
        net(x)
    assert calls.take() == ["one"]
    assert functions.take() == ["one:linear[0]", ":relu[1]"]


def test_r11_function_hooks_run_in_threads_that_start_later(net, x):
    """As do hooks for all modules."""
    functions = Functions()
    with watch(net, functions, where="one"):
        thread = threading.Thread(target=net, args=(x,))
        thread.start()
        thread.join()
    assert functions.take() == ["one:linear[0]"]


def test_c12_function_hooks_may_replace(net, x):
    """At the selected functions only."""

    class Ones(FunctionHook):
        def forward_postprocess(self, function, in_data):
            function.replace(torch.ones_like(function.outputs[0]))

    with watch(net, Ones(), where=":relu[1]"):
        out = net(x)
    assert torch.equal(out, torch.ones(3, 4))
    with watch(net, Ones(), where="one:linear"):
        out = net(x)
    h = torch.full((3, 4), 2.0)
    assert torch.equal(out, F.relu(torch.tanh(net.rest[0](h))))


def test_c9_a_begin_is_followed_by_one_end_where_a_function_raises(net):
    """Aborted, for functions that are selected, and for no others."""
    seen = []

    class Paired(FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen.append(("begin", function.label))

        def forward_postprocess(self, function, in_data):
            seen.append(("end", function.label))

        def aborted(self, call, exception):
            seen.append(("aborted", call.label))

    wrong = torch.ones(3, 5)
    with watch(net, Paired(), where="one:linear"), pytest.raises(RuntimeError):
        net(wrong)
    assert seen == [("begin", "one:linear[0]"), ("aborted", "one:linear[0]")]
    seen.clear()
    with watch(net, Paired(), where=":relu"), pytest.raises(RuntimeError):
        net(wrong)
    assert seen == []


def test_c8_backward_of_a_forward_outside_the_watch(net, x):
    """Only what was recorded in the selected modules is theirs."""
    functions = Functions()
    out = net(x).sum()
    with watch(net, functions):
        out.backward()
    assert functions.take() == []


def test_c7_retained_inputs(net, x):
    """A function hook that wants inputs kept gets them in the backward."""
    kept = []

    class Retaining(FunctionHook):
        retain_inputs = True

        def backward_postprocess(self, function, in_data, out_grad):
            kept.append([None if t is None else t.clone() for t in in_data])

    with watch(net, Retaining(), where=":add"):
        net(x).sum().backward()
    assert torch.equal(kept[0][0], F.relu(net.one(x)))


# Set-up and removal.


def test_c3_added_and_deleted_are_told_each_module(net):
    """In the order of registration, and backwards."""
    hook = Told()
    linears = [net.one, net.rest[0], net.unused]
    with watch(net, hook, where=nn.Linear) as watched:
        assert hook.added_to == linears
        assert not watched.closed
    assert hook.deleted_from == linears[::-1]
    assert watched.closed
    watched.close()
    assert hook.deleted_from == linears[::-1]


def test_c3_function_hooks_are_told_once(net):
    """As in a scope, with None: they are registered for many functions at once."""
    told = []

    class Functions(FunctionHook):
        def added(self, target):
            told.append(("added", target))

        def deleted(self, target):
            told.append(("deleted", target))

    with watch(net, Functions()):
        assert told == [("added", None)]
    assert told == [("added", None), ("deleted", None)]


@pytest.mark.parametrize("prepend", [False, True])
def test_r5_a_failing_set_up_leaves_nothing(net, prepend):
    """What was registered before is taken back, its `deleted` called, and the error comes out."""
    good, bad = Told(name="good"), Told([net.unused], name="bad")
    functions = Functions()
    first, second = (bad, good) if prepend else (good, bad)
    with pytest.raises(ArithmeticError, match="bad"):
        watch(net, first, second, functions, where=nn.Linear, prepend=prepend)

    assert hooks_of(net) == []
    assert not module_switch
    assert bad.added_to == [net.one, net.rest[0]]
    assert bad.deleted_from == [net.rest[0], net.one]
    assert good.deleted_from == good.added_to[::-1]
    assert len(good.added_to) == 3


def test_r5_a_failing_set_up_of_a_function_hook_leaves_nothing(net):
    """Module hooks that were registered before are gone too."""

    class Failing(FunctionHook):
        def added(self, target):
            raise ArithmeticError

    told = Told()
    with pytest.raises(ArithmeticError):
        watch(net, told, Functions(), Failing())
    assert hooks_of(net) == []
    assert told.deleted_from == told.added_to[::-1]
    assert len(told.added_to) == 5


def test_c3_a_failing_deleted_hinders_no_other(net, x):
    """All hooks go, the first error comes out, the others are details of it."""
    first = Told(ends_badly_at=[net.one], name="first")
    second = Told(ends_badly_at=[net.one, net.unused], name="second")
    watched = watch(net, first, second, where=nn.Linear)
    with pytest.raises(ArithmeticError, match="second") as caught:
        watched.close()
    assert len(caught.value.__notes__) == 2
    assert hooks_of(net) == []
    assert len(first.deleted_from) == len(second.deleted_from) == 3
    watched.close()


def test_c9_the_error_of_the_block_wins(net):
    """What is raised while the hooks are removed becomes a detail of it."""
    with pytest.raises(KeyError) as caught, watch(net, Told((), [net.one]), where="one"):
        raise KeyError(net)
    assert caught.value.args == (net,)
    assert "ArithmeticError" in caught.value.__notes__[0]


def test_c2_the_same_name_twice_on_a_module(net, x):
    """Refused as `add_hook` refuses it, naming the module; the first one stays alone."""
    first, second = Calls(), Calls()
    with watch(net, first, where=["rest.0", "one"]):
        with pytest.raises(KeyError, match="Hook Calls already exists on 'one'"):
            watch(net, second, where=["unused", "one"])
        assert [row.path for row in hooks_of(net)] == ["one", "one", "rest.0", "rest.0"]
        with pytest.raises(HookNameError, match=r"on 'rest\.0'"):
            watch(net, second, where=select(net) - select(net, "one"))
        with pytest.raises(HookNameError, match="on 'unused'"):
            watch(net, second, Calls(), where="unused")
        with watch(net, second, where="unused"), watch(net, Calls("other"), where="one"):
            net(x)
    assert first.take() == ["one", "rest.0"]


def test_c2_the_same_function_hook_twice_on_a_module(net):
    """Refused where both are for functions of one module."""
    with watch(net, Functions(), where="one"):
        with pytest.raises(HookNameError, match=r"Hook Functions already exists for .* 'one"):
            watch(net, Functions(), where=["rest.0", "one:linear"])
        with watch(net, Functions(), where="rest.0"):
            pass
        with watch(net, Functions().renamed("again"), where="one"):
            assert len(function_places.everywhere) == 2


def test_a_closed_watch_cannot_be_entered_again(net):
    """A new one is needed."""
    watched = watch(net, Calls())
    with watched:
        pass
    with pytest.raises(HookValueError, match="is closed"), watched:
        pass


def test_r5_a_watch_that_is_collected_detaches(net, x):
    """With a ResourceWarning that names it."""
    calls, functions = Calls(), Functions()
    with pytest.warns(ResourceWarning, match="<Watch of Net, open: Calls, Functions at 6 places>"):
        watch(net, calls, functions)
    net(x)
    assert calls.take() == functions.take() == []
    assert hooks_of(net) == []


def test_r5_a_closed_watch_is_collected_silently(net):
    """Nothing is said of one that was closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(net, Calls()).close()
        gc.collect()


def test_r5_a_watch_keeps_no_module_alive(x):
    """Neither open nor closed; a model that goes takes its hooks along."""
    net = Net()
    modules = [ref(module) for module in net.modules()]
    watched = watch(net, Calls(), Functions())
    net(x).sum().backward()
    del net
    gc.collect()
    assert [module() for module in modules] == [None] * len(modules)
    assert demand.backward == 1
    with pytest.raises(HookValueError, match=r"the model of .* is gone"):
        _ = watched.selection
    assert {row.cause for row in watched.silent()} == {"replaced"}
    watched.close()


def test_r5_nothing_holds_a_hook_once_closed(net, x):
    """But for the watch itself, which the user holds."""
    calls, functions = Calls(), Functions()
    hooks = [ref(calls), ref(functions)]
    with watch(net, calls, functions):
        net(x).sum().backward()
    del calls, functions
    gc.collect()
    assert [hook() for hook in hooks] == [None, None]


def test_r1_nothing_is_on_afterwards(net, x):
    """The engine and the function level are as they were."""
    before = nn.Module.__call__
    with watch(net, Calls(), Functions()):
        assert nn.Module.__call__ is not before
        net(x)
    assert nn.Module.__call__ is before
    assert torch._C._len_torch_function_stack() == 0
    assert vars(net).keys() == vars(Net()).keys()


def test_r12_nothing_is_on_in_a_forked_child(net, x):
    """Neither hooks nor warnings; closing there does nothing."""
    calls, functions = Calls(), Functions()
    with watch(net, calls, functions) as watched:
        child = os.fork()
        if child == 0:
            net(x)
            watched.close()
            quiet = not calls.rows and not functions.rows and not hooks_of(net)
            os._exit(0 if quiet else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        net(x)
    assert len(calls.take()) == 4
    assert len(functions.take()) == 6


def test_the_verb_stays_the_verb():
    """Also where something has imported the file of that name first."""
    program = "import hookline.watch as verb, hookline; assert callable(hookline.watch) and verb"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_repr(net):
    """The model, the state, the hooks and at how many places."""
    with watch(net, Calls(), Functions().renamed("f"), where=nn.Linear) as watched:
        assert repr(watched) == "<Watch of Net, open: Calls, f at 3 places>"
    assert repr(watched) == "<Watch of Net, closed: Calls, f at 3 places>"
    assert isinstance(watched, Watch)


# What cannot be watched.


def scripted_net():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU())


def test_containers_are_left_out_where_others_are_meant(net, x):
    """By a glob, a class or a callable; nothing of them fails."""
    for where in ("**", nn.Module, lambda path, module: True, re.compile("")):
        calls = Calls()
        with watch(net, calls, where=where):
            net(x)
        assert calls.rows == ["one", "rest.0", "rest.1", ""]


@pytest.mark.parametrize("where", ["rest", ["one", "rest"], ["**", "rest"], "rest:relu"])
def test_r10_a_container_that_is_named(net, where):
    """It is never called, which is said with what to do."""
    with pytest.raises(HookValueError, match=r"ModuleList has no forward.* put them on .*0, 1"):
        watch(net, Calls(), Functions(), where=where)
    assert hooks_of(net) == []


def test_r10_only_containers(net):
    """A pattern that means nothing else is no use."""
    for hook in (Calls(), Functions()):
        with pytest.raises(SelectionError, match=r"'rest'.* whose calls no hook can see"):
            watch(net, hook, where=nn.ModuleList)


def test_r10_torchscript():
    """Left out among others, refused by name."""
    model = scripted_net()
    calls = Calls()
    with watch(model, calls):
        model(torch.ones(1, 4))
    assert calls.rows == ["1", ""]
    with pytest.raises(HookTypeError, match="is TorchScript"):
        watch(model, Calls(), where="0")


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        ([Calls], "not the class Calls; did you mean an instance"),
        ([print], "not <built-in function print>"),
        ([None], "not None"),
        ([Calls(), "x"], "not 'x'"),
        ([], "watch needs a hook"),
    ],
)
def test_r10_what_is_no_hook(net, hooks, says):
    """Refused before anything is registered."""
    with pytest.raises(HookTypeError) as caught:
        watch(net, *hooks)
    assert says in str(caught.value)
    assert hooks_of(net) == []


def test_r10_patterns(net):
    """What matches nothing, selects nothing, or is none."""
    with pytest.raises(SelectionError, match="did you mean 'one'"):
        watch(net, Calls(), where="on")
    with pytest.raises(SelectionError, match=r"where=\[\] selects nothing"):
        watch(net, Calls(), where=[])
    with pytest.raises(HookTypeError, match="a pattern is"):
        watch(net, Calls(), where=3)
    with pytest.raises(HookTypeError, match="not in the class Net"):
        watch(Net, Calls())
    with pytest.raises(HookValueError, match="of another model"):
        watch(net, Calls(), where=select(Net(), "one"))


def test_r10_levels_that_do_not_fit(net):
    """Addresses are for function hooks, and module hooks need modules."""
    with pytest.raises(SelectionError, match="'one:linear': addresses select functions"):
        watch(net, Calls(), where=["rest.0", "one:linear"])
    with pytest.raises(SelectionError, match="Calls is a ModuleHook, and only functions"):
        watch(net, Calls(), Functions(), where="one:linear")


# Other models.


def test_shared_modules_are_watched_once():
    """A module with several paths has one hook, which sees each call by its path."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = self.a

        def forward(self, x):
            return self.b(self.a(x))

    model, calls = Shared(), Calls()
    with watch(model, calls, where=["b", "a"]) as watched:
        model(torch.ones(1, 2))
    assert watched.selection.paths == ("b",)
    assert calls.take() == ["a", "a"]


def test_nineteen_nested_shared_modules():
    """Half a million paths, 20 hooks."""
    model = nn.Linear(2, 2)
    for _ in range(19):
        model = nn.Sequential(model, model)
    hook = Told()
    with watch(model, hook):
        assert len(hook.added_to) == 20


@pytest.fixture
def _one_process():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_a_distributed_model(x):
    """Watched through its wrapper or by itself: the same modules, paths and root."""
    net = Net()
    net.unused = nn.Identity()
    model = nn.parallel.DistributedDataParallel(net)
    for watched in (model, net):
        calls, functions = Calls(), Functions()
        with watch(watched, calls, functions, where=["", "one", "rest.*"]):
            model(x).sum().backward()
        assert calls.take()[:4] == ["one", "rest.0", "rest.1", ""]
        assert functions.take()[0] == "one:linear[0]"


def test_a_compiled_model_is_one_call(x):
    """A hook on the model sees the call of the compiled one; those inside see none."""
    net = Net()
    model = torch.compile(net, backend="eager")
    calls = Calls()
    with watch(model, calls) as watched:
        model(x).sum().backward()
    assert calls.take() == ["", " backward"]
    assert watched.selection.paths[0] == ""
    assert watched.selection.modules[0] is net


def test_a_prepended_hook_runs_before_others_on_the_module(net, x):
    """Torch-style hooks of ours included."""
    order = []

    class First(ModuleHook):
        def forward_postprocess(self, call):
            order.append("watch")

    with register_forward_hook(net.one, lambda m, a, o: order.append("registered")):
        with watch(net, First(), where="one", prepend=True):
            net(x)
        with watch(net, First(), where="one"):
            net(x)
    assert order == ["watch", "registered", "registered", "watch"]


@pytest.mark.parametrize("verb", ["watch", "capture", "patch", "attention"])
def test_the_model_is_walked_once_for_a_verb_and_the_first_pass(verb, monkeypatch):
    """Changes of its structure are seen from before the walk on, so what it found stays known."""
    model = nn.TransformerEncoderLayer(8, 2, 16)
    walks = []
    walk = paths.paths_in

    def counted(root):
        walks.append(root)
        return walk(root)

    for module in (paths, selecting):
        monkeypatch.setattr(module, "paths_in", counted)
    with {
        "watch": lambda: watch(model, Calls(), where="linear?"),
        "capture": lambda: hookline.capture(model, "linear?"),
        "patch": lambda: hookline.patch(model, {"linear?": scale(2.0)}),
        "attention": lambda: hookline.attention(model, "self_attn"),
    }[verb]():
        model(torch.zeros(3, 1, 8))
    assert walks == [model]
