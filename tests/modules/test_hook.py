"""`ModuleHook`: scopes, names, order, one call object in all phases, replacing, paired ends."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hookline
from hookline import (
    HooklineError,
    HookNameError,
    HookTypeError,
    HookValueError,
    Inputs,
    ModuleHook,
    add_hook,
    clear_hooks,
    delete_hook,
    get_module_hooks,
    hooks_of,
)
from hookline.core.phases import Phase
from tests.logs import CALLBACKS, PHASES, ModuleLog, Noted


class Log(Noted, ModuleLog):
    called = attrgetter("label")


named = Log.named


def doing(phase, action, **attributes):
    """A hook that does something with the call at one phase."""
    body = {CALLBACKS[phase]: lambda self, call: action(call), **attributes}
    return type("Doing", (ModuleHook,), body)()


def names_at(events, phase):
    return [name for what, name in events if what == phase]


def network():
    """Linear, ReLU, Linear with weights of a fixed seed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def run(model, x=None):
    x = torch.ones(2, 3) if x is None else x
    out = model(x)
    out.sum().backward()
    return out


class Twice(nn.Module):
    """Runs one layer two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


class Boom(nn.Module):
    """Fails on demand."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x * 2


# ------------------------------------------------------------------------------- C1: the scope


def test_c1_a_scope_sees_every_module_in_all_four_phases():
    """Inside `with`, each module call has its four events, inner calls inside outer ones."""
    model = network()
    hook = Log()
    with hook as given:
        run(model)

    assert given is hook
    assert hook.events == [
        ("forward_pre", "Sequential"),
        ("forward_pre", "0"),
        ("forward", "0"),
        ("forward_pre", "1"),
        ("forward", "1"),
        ("forward_pre", "2"),
        ("forward", "2"),
        ("forward", "Sequential"),
        ("backward_pre", "Sequential"),
        ("backward_pre", "2"),
        ("backward", "2"),
        ("backward_pre", "1"),
        ("backward", "1"),
        ("backward_pre", "0"),
        ("backward", "0"),
        ("backward", "Sequential"),
    ]


def test_c1_nothing_is_seen_before_and_after():
    """Calls outside of the scope have no events."""
    model, hook = network(), Log()
    run(model)
    with hook:
        pass
    run(model)

    assert hook.events == []


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit])
def test_c1_the_scope_closes_on_any_exit(kind):
    """An error that leaves the block is the same object, and the hook is gone."""
    error = kind()
    with pytest.raises(kind) as caught, Log():
        raise error

    assert caught.value is error
    assert not get_module_hooks()


def test_c1_the_scope_closes_on_return():
    """Leaving the block by `return` closes the scope."""

    def inside():
        with Log():
            return list(get_module_hooks())

    assert inside() == ["Log"]
    assert not get_module_hooks()


def test_c1_another_thread_sees_nothing():
    """While a scope is open here, calls in another thread have no events."""
    model, hook = network(), Log()
    with hook, ThreadPoolExecutor(1) as pool:
        others = pool.submit(lambda: (run(model), dict(get_module_hooks()))[1]).result()

    assert others == {}
    assert hook.events == []


def test_c1_each_thread_has_its_own_scopes():
    """Scopes that are open in two threads at once see the calls of their own thread only."""
    models = {"a": nn.Sequential(nn.ReLU()), "b": nn.Sequential(nn.Tanh(), nn.Tanh())}
    hooks = {name: Log("same name", note=lambda _, call: call.type) for name in models}
    both_open = threading.Barrier(2, timeout=60)

    def work(name):
        with hooks[name]:
            both_open.wait()
            run(models[name], torch.ones(2, 3, requires_grad=True))
            both_open.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, models))

    for name, layers in (("a", ["ReLU"]), ("b", ["Tanh", "Tanh"])):
        assert names_at(hooks[name].events, "forward") == [*layers, "Sequential"]
        assert names_at(hooks[name].events, "backward") == [*layers, "Sequential"]


def test_c1_scopes_may_close_in_any_order():
    """The first scope closed first leaves the second one working."""
    events, model = [], nn.ReLU()
    first, second = named("first", events), named("second", events)
    with first:
        second.__enter__()
    model(torch.ones(1))
    second.__exit__(None, None, None)
    model(torch.ones(1))

    assert events == [("forward_pre", "second"), ("forward", "second")]


def test_c1_closing_a_scope_that_is_not_open_is_an_error():
    """A scope closed twice, or in a thread where it was not opened, is named in the error."""
    hook = Log("meter")

    with pytest.raises(HookNameError, match=r"^hook meter has no open scope in this thread$"):
        hook.__exit__(None, None, None)


# ---------------------------------------------------------------------------------- C2: names


def test_c2_a_name_can_be_used_once():
    """A second scope of one name is a `KeyError`; the first one stays and works on."""
    first, second = Log(), Log()
    with first:
        with pytest.raises(KeyError) as caught, second:
            pass
        nn.ReLU()(torch.ones(1))

    assert str(caught.value).startswith("hook Log already exists; ")
    assert isinstance(caught.value, HooklineError)
    assert [what for what, _ in first.events] == ["forward_pre", "forward"]
    assert second.events == []


def test_c2_the_name_is_free_again_afterwards():
    """The same hook, or another of its name, may be entered later."""
    hook = Log()
    for entered in (hook, hook, Log()):
        with entered:
            assert get_module_hooks() == {"Log": entered}


def test_c2_without_a_name_the_class_name_is_taken():
    """Each class that sets no name has its own name; a name that is set goes to subclasses."""

    class Plain(ModuleHook):
        pass

    class Derived(Plain):
        pass

    class Named(ModuleHook):
        name = "given"

    with Plain(), Derived(), Named():
        assert list(get_module_hooks()) == ["Plain", "Derived", "given"]


def test_c2_renamed_lets_two_of_one_class_nest():
    """`renamed` opens the scope under another name and gives the hook itself."""
    events = []
    outer, inner = named("Log", events), named("Log", events)
    inner.note = lambda hook, call: "inner"
    with outer, inner.renamed("b") as given:
        assert dict(get_module_hooks()) == {"Log": outer, "b": inner}
        nn.ReLU()(torch.ones(1))

    assert given is inner
    assert inner.name == "Log"
    assert names_at(events, "forward") == ["Log", "inner"]
    assert not get_module_hooks()


def test_c2_a_new_name_may_be_taken_too():
    """`renamed` meets the same check, with the new name in the error."""
    with Log().renamed("b"), pytest.raises(KeyError) as caught, Log().renamed("b"):
        pass

    assert str(caught.value) == (
        "hook b already exists; `with hook.renamed('another name'):` keeps both"
    )


def test_c2_one_hook_may_be_open_twice():
    """One object under two names gets each event twice; the inner scope closes first."""
    hook = Log()
    with hook:
        with hook.renamed("again"):
            nn.ReLU()(torch.ones(1))
        assert list(get_module_hooks()) == ["Log"]

    assert [what for what, _ in hook.events] == ["forward_pre"] * 2 + ["forward"] * 2


# --------------------------------------------------------------------- C3: added and deleted


class Told(ModuleHook):
    """Notes whom it was added to, and fails on demand."""

    def __init__(self, fail=None):
        self.told = []
        self.fail = fail

    def added(self, target):
        self._tell("added", target)

    def deleted(self, target):
        self._tell("deleted", target)

    def _tell(self, what, target):
        self.told.append((what, target))
        if self.fail == what:
            raise RuntimeError(what)


def test_c3_a_scope_tells_its_hook():
    """`added(None)` at the begin and `deleted(None)` at the end, also when the block raised."""
    hook = Told()
    with hook:
        assert hook.told == [("added", None)]
    with pytest.raises(ZeroDivisionError), hook:
        raise ZeroDivisionError

    assert hook.told == [("added", None), ("deleted", None)] * 2


def test_c3_a_module_tells_its_hook():
    """`added(module)` and `deleted(module)` for one module."""
    layer, hook = nn.ReLU(), Told()
    add_hook(layer, hook)
    delete_hook(layer, "Told")

    assert hook.told == [("added", layer), ("deleted", layer)]


def test_c3_if_added_raises_nothing_stays():
    """The error comes out of `with`, the block does not run, and the name is free."""
    with pytest.raises(RuntimeError, match="added"), Told(fail="added"):
        pytest.fail("the block ran")
    with pytest.raises(RuntimeError, match="added"):
        add_hook(layer := nn.ReLU(), Told(fail="added"))

    assert not get_module_hooks()
    assert hooks_of(layer) == []
    with Told():
        pass


def test_c3_if_deleted_raises_the_hook_is_gone_all_the_same():
    """The error comes out, but nothing stays registered."""
    layer = nn.ReLU()
    with pytest.raises(RuntimeError, match="deleted"), Told(fail="deleted"):
        pass
    add_hook(layer, Told(fail="deleted"))
    with pytest.raises(RuntimeError, match="deleted"):
        delete_hook(layer, "Told")

    assert not get_module_hooks()
    assert hooks_of(layer) == []


def test_c3_an_error_of_the_block_is_kept_when_deleted_raises():
    """What `deleted` raises carries the block's error as its context."""
    with pytest.raises(RuntimeError, match="deleted") as caught, Told(fail="deleted"):
        raise ZeroDivisionError

    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_c3_a_refused_scope_tells_nothing():
    """A hook whose name was taken was neither added nor deleted."""
    first, second = Told(), Told()
    with first, pytest.raises(KeyError), second:
        pass

    assert second.told == []


# ------------------------------------------------------------------- C4: hooks of one module


def test_c4_add_hook_watches_just_that_module():
    """Only calls of the one module have events, in all four phases; the handle ends that."""
    model, hook = network(), Log()
    handle = add_hook(model[1], hook)
    run(model)
    handle.remove()
    run(model)

    assert hook.events == [(phase, "1") for phase in PHASES]


def test_c4_a_local_hook_lives_until_its_backward():
    """Nothing but the registration keeps the hook; its backward comes for a kept output."""
    model, events = network(), []
    add_hook(model[1], Log("kept", events))
    out = model(torch.ones(2, 3))
    out.sum().backward()

    assert [what for what, _ in events] == list(PHASES)


def test_c4_a_local_hook_sees_calls_of_every_thread():
    """Registrations on a module belong to all threads."""
    layer = nn.ReLU()
    add_hook(layer, hook := Log())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, layer, torch.ones(2, requires_grad=True)).result()

    assert [what for what, _ in hook.events] == list(PHASES)


def test_c4_a_name_is_there_once_on_a_module():
    """The second hook of one name on one module is refused, the first stays; elsewhere it is free.

    A removed one frees the name.
    """
    first, second = nn.ReLU(), nn.ReLU()
    add_hook(first, kept := Log())
    with pytest.raises(KeyError) as caught:
        add_hook(first, Log())
    add_hook(second, Log())
    add_hook(first, Log(), name="other")

    assert str(caught.value) == (
        "Hook Log already exists on this ReLU; delete_hook(module, 'Log') removes it, "
        "add_hook(module, hook, 'another name') keeps both"
    )
    assert isinstance(caught.value, HookNameError)
    assert [row.hook for row in hooks_of(first)][:4] == [kept] * 4
    delete_hook(first, "Log")
    add_hook(first, Log())
    clear_hooks(first)
    clear_hooks(second)


def test_c4_deleting_what_is_not_there_is_an_error():
    """The error names the hook, and the ones that are there."""
    layer = nn.ReLU()
    with pytest.raises(KeyError) as caught:
        delete_hook(layer, "Log")
    assert str(caught.value).startswith("Hook Log does not exist")

    with add_hook(layer, Log("meter")), pytest.raises(KeyError) as caught:
        delete_hook(layer, "Log")
    assert str(caught.value) == "Hook Log does not exist; hooks here: meter"


@pytest.mark.parametrize("wrong", [print, Log, object(), None, "Log"])
def test_c4_only_module_hooks_are_taken(wrong):
    """Something else than a hook object is a `TypeError` that says what is wanted."""
    layer = nn.ReLU()
    with pytest.raises(TypeError, match=r"^Hook must be of type ModuleHook, not ") as caught:
        add_hook(layer, wrong)

    assert isinstance(caught.value, HookTypeError)
    assert ("did you mean an instance" in str(caught.value)) == isinstance(wrong, type)
    assert hooks_of(layer) == []


@pytest.mark.parametrize("wrong", [5, nn.ReLU, None])
def test_c4_hooks_go_on_modules(wrong):
    """Something else than a module is a `TypeError` from `add_hook` and `delete_hook`."""
    with pytest.raises(HookTypeError):
        add_hook(wrong, Log())
    with pytest.raises(HookTypeError):
        delete_hook(wrong, "Log")


# ---------------------------------------------------------------------------------- C5: order


def test_c5_scoped_hooks_come_before_local_ones_in_all_phases():
    """In each of the four phases: the thread's hooks as registered, then the module's own."""
    layer, events = nn.Linear(3, 2), []
    add_hook(layer, named("c", events))
    with named("a", events), named("b", events):
        add_hook(layer, named("d", events))
        run(layer)

    for phase in PHASES:
        assert names_at(events, phase) == ["a", "b", "c", "d"]


def test_c5_a_local_hook_takes_the_place_of_a_scoped_one_of_its_name():
    """At that module it is called in the scoped one's slot; other modules keep the scoped one."""
    model, events = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), []
    local = Log("b", events, lambda hook, call: "local b")
    add_hook(model[0], named("c", events))
    add_hook(model[0], local)
    with named("a", events), named("b", events), named("d", events):
        run(model)

    for phase in PHASES:
        order = names_at(events, phase)
        both = {"first": ["a", "local b", "d", "c"], "other": ["a", "b", "d"]}
        first, second = (
            (both["first"], both["other"])
            if phase in ("forward_pre", "forward")
            else (both["other"], both["first"])
        )
        outer_first = phase.endswith("pre")
        expected = [*first, *second]
        assert order == (["a", "b", "d", *expected] if outer_first else [*expected, "a", "b", "d"])


def test_c5_callbacks_are_called_positionally():
    """A callback may call its argument what it likes."""

    class Own(ModuleHook):
        def __init__(self):
            self.seen = []

        def forward_preprocess(self, begin, /):
            self.seen.append(begin.label)

        def backward_postprocess(self, *arguments):
            self.seen.append(len(arguments))

    with Own() as hook:
        run(nn.Linear(3, 2))

    assert hook.seen == ["Linear", 1]


# ----------------------------------------------------------------- C6: one object for one call


def test_c6_the_call_is_the_same_object_in_all_phases():
    """What a hook keeps on the call in forward is there in backward, call by call."""

    class Keeps(ModuleHook):
        def __init__(self):
            self.calls = []

        def forward_preprocess(self, call):
            call.mine = [call.path, call.index]

        def forward_postprocess(self, call):
            call.mine.append("forward")

        def backward_preprocess(self, call):
            call.mine.append("backward_pre")

        def backward_postprocess(self, call):
            self.calls.append([*call.mine, call.path, call.index])

    with Keeps() as hook:
        run(Twice())

    assert hook.calls == [
        ["layer", 1, "forward", "backward_pre", "layer", 1],
        ["layer", 0, "forward", "backward_pre", "layer", 0],
        ["", 0, "forward", "backward_pre", "", 0],
    ]


def test_c6_each_phase_knows_its_values():
    """`args`, `kwargs` in forward, `out` at its end, gradients in backward; all else is None."""

    class Scale(nn.Module):
        def forward(self, x, *, by):
            return x * by

    fields = ("args", "kwargs", "out", "grad_output", "grad_input")
    seen = []
    hook = Log(note=lambda _, call: seen.append({f: getattr(call, f) for f in fields}))
    layer, x, by = Scale(), torch.ones(2, requires_grad=True), torch.tensor(3.0)
    with hook:
        out = layer(x, by=by)
        out.sum().backward()

    pre, post, backward_pre, backward = seen
    assert [[f for f in fields if at[f] is not None] for at in seen] == [
        ["args", "kwargs"],
        ["args", "kwargs", "out"],
        ["grad_output"],
        ["grad_output"],
    ]
    for at in (pre, post):
        assert len(at["args"]) == 1
        assert at["args"][0] is x
        assert at["kwargs"] == {"by": by}
    assert post["out"] is out
    for at in (backward_pre, backward):
        assert len(at["grad_output"]) == 1
        assert torch.equal(at["grad_output"][0], torch.ones(2))


def test_c6_who_the_call_is():
    """Module, path, type, label, root, pass, step, mode and thread tell the call."""
    model, calls = network(), []
    hook = Log(note=lambda _, call: calls.append(call))
    with hook:
        for _ in range(2):
            model(torch.ones(2, 3))

    root, first = calls[0], calls[1]
    assert [call.pass_number for call in (calls[0], calls[-1])] == [0, 1]
    assert (root.path, root.label, root.type) == ("", "Sequential", "Sequential")
    assert (first.path, first.label, first.type, first.index) == ("0", "0", "Linear", 0)
    assert (first.root, first.mode, first.recomputing) == ("Sequential", "train", False)
    assert first.module is model[0]
    assert first.parent is root
    assert (root.phase, first.phase) == (None, None)


def test_c6_the_phase_is_told_while_the_event_runs():
    """`phase` is that of the running event."""
    seen = []
    with Log(note=lambda _, call: seen.append(call.phase)):
        run(nn.Linear(3, 2))

    assert seen == list(Phase)


def test_c6_a_model_inside_another_has_its_own_root():
    """A module that is no part of the running model has its root; calls after it have theirs."""

    class Helper(nn.Linear):
        pass

    helpers = [Helper(3, 3)]  # a list, so that it is no child

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.ReLU(), nn.Tanh()

        def forward(self, x):
            return self.after(helpers[0](self.before(x)))

    with Log(note=lambda _, call: (call.root, call.path)) as hook:
        Net()(torch.ones(2, 3))

    assert [note for what, note in hook.events if what == "forward"] == [
        ("Net", "before"),
        ("Helper", ""),
        ("Net", "after"),
        ("Net", ""),
    ]


def test_c6_arguments_by_name():
    """`arguments` gives the inputs by the names of the parameters, however they were passed."""
    layer = nn.Bilinear(2, 3, 4)
    one, two = torch.ones(1, 2), torch.ones(1, 3)
    seen = []
    with Log(note=lambda _, call: seen.append(call.arguments)):
        layer(one, input2=two)

    assert list(seen[0]) == ["input1", "input2"]
    assert seen[0]["input1"] is one
    assert seen[0]["input2"] is two


def test_c6_arguments_are_known_in_the_forward_only():
    """In the backward, asking for them is a clear error."""
    hook = doing("backward", lambda call: call.arguments)
    with hook, pytest.raises(HookValueError, match="known in the forward phases only"):
        run(nn.Linear(3, 2))


def test_c6_a_kept_call_keeps_no_tensor_and_no_module():
    """After its events a call holds no tensor, and its module only weakly."""
    model, calls = nn.Sequential(nn.Linear(3, 2)), []
    hook = Log(note=lambda _, call: calls.append(call))
    hook.needs_grad_input = True
    with hook:
        out = run(model)
    for call in calls:
        assert (call.args, call.kwargs, call.out) == (None, None, None)
        assert (call.grad_output, call.grad_input) == (None, None)
    kept = [weakref.ref(out), weakref.ref(model), weakref.ref(model[0])]
    gc.disable()
    try:
        del out, model
        assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match=r"the module of 0 \(Linear\), call 0 is gone"):
        _ = calls[1].module


# ------------------------------------------------------------------------ C8: which backward


def test_c8_forward_inside_backward_outside():
    """Backward events belong to the hooks that are registered when backward runs."""
    model, hook = network(), Log()
    with hook:
        out = model(torch.ones(2, 3))
    out.sum().backward()

    assert {what for what, _ in hook.events} == {"forward_pre", "forward"}


def test_c8_a_scope_opened_for_the_backward():
    """A hook entered after the forward has the backward of calls that hookline was watching."""
    model, watching, late = network(), Log("watching"), Log("late")
    with watching:
        out = model(torch.ones(2, 3))
    with late:
        out.sum().backward()

    assert {what for what, _ in watching.events} == {"forward_pre", "forward"}
    assert names_at(late.events, "backward") == ["2", "1", "0", "Sequential"]


def test_c8_hooks_are_those_of_the_thread_that_calls_backward():
    """Backward in another thread finds that thread's scopes, not those of the forward's."""
    model, here, there = network(), Log("here"), Log("there")

    def elsewhere(out):
        with there:
            out.sum().backward()

    with here, ThreadPoolExecutor(1) as pool:
        pool.submit(elsewhere, model(torch.ones(2, 3))).result()

    assert {what for what, _ in here.events} == {"forward_pre", "forward"}
    assert names_at(there.events, "backward_pre") == ["Sequential", "2", "1", "0"]
    assert names_at(there.events, "backward") == ["2", "1", "0", "Sequential"]


# ------------------------------------------------------------------------ C9: paired ends


def test_c9_a_call_that_raises_is_aborted():
    """Each call that the error passes through has `aborted` in place of its end, inner first."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(Boom(error := ValueError("no"))))
    with Log() as hook, pytest.raises(ValueError, match="no") as caught:
        model(torch.ones(1))

    assert caught.value is error
    assert hook.events == [
        ("forward_pre", "Sequential"),
        ("forward_pre", "0"),
        ("forward", "0"),
        ("forward_pre", "1"),
        ("forward_pre", "1.0"),
        ("aborted", "1.0"),
        ("aborted", "1"),
        ("aborted", "Sequential"),
    ]


def test_c9_aborted_gets_the_call_and_the_exception():
    """The call is that of the begin, the exception the one that comes out."""
    error, seen = ValueError("no"), []

    class Watches(ModuleHook):
        def forward_preprocess(self, call):
            self.begun = call

        def aborted(self, call, exception):
            seen.append((call is self.begun, exception is error, call.args[0].shape))

    with Watches(), pytest.raises(ValueError, match="no"):
        Boom(error)(torch.ones(2, 3))

    assert seen == [(True, True, (2, 3))]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_c9_a_raising_callback_ends_the_others(phase, kind):
    """Whichever callback raises, each other hook has one end for each begin that ran.

    A begin that itself raised counts as not run, and an end that raised as the end.
    """
    error, events = kind(), []

    def fail(call):
        raise error

    before, after = named("before", events), named("after", events)
    with before, doing(phase, fail), after, pytest.raises(kind) as caught:
        run(nn.Linear(3, 2))

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


def test_c9_the_hook_whose_callback_raised_in_between_is_ended_too():
    """A hook that had its begin at an outer call is told that this call was aborted."""

    class Picky(Log):
        def forward_postprocess(self, call):
            super().forward_postprocess(call)
            if call.label == "0":
                raise RuntimeError

    with Picky() as hook, pytest.raises(RuntimeError):
        network()(torch.ones(2, 3))

    assert hook.events == [
        ("forward_pre", "Sequential"),
        ("forward_pre", "0"),
        ("forward", "0"),
        ("aborted", "Sequential"),
    ]


def test_c9_in_backward_the_end_comes_before_the_error_leaves():
    """When `backward()` raises, all calls whose begin ran are aborted already, inner first."""
    model = network()
    with Log() as hook:
        out = model(torch.ones(2, 3))
        out.register_hook(lambda grad: None)

        def fail(call):
            raise RuntimeError

        add_hook(model[1], doing("backward_pre", fail))
        hook.events.clear()
        with pytest.raises(RuntimeError):
            out.sum().backward()
        at_the_error = list(hook.events)

    assert at_the_error == [
        ("backward_pre", "Sequential"),
        ("backward_pre", "2"),
        ("backward", "2"),
        ("backward_pre", "1"),
        ("aborted", "1"),
        ("aborted", "Sequential"),
    ]


def test_c9_the_first_error_wins():
    """What `aborted` raises becomes a note on the first error; other hooks still get theirs."""

    class Clumsy(Log):
        def aborted(self, call, exception):
            raise LookupError

    clumsy, careful = Clumsy("clumsy"), Log("careful")
    with clumsy, careful, pytest.raises(ValueError, match="no") as caught:
        Boom(ValueError("no"))(torch.ones(1))

    assert careful.events == [("forward_pre", "Boom"), ("aborted", "Boom")]
    assert "while cleaning up: clumsy raised LookupError()" in caught.value.__notes__


def test_c9_a_hook_without_aborted_is_left_alone():
    """Nothing is called in its place."""

    class Plain(ModuleHook):
        seen = ()

        def forward_preprocess(self, call):
            self.seen += ("begin",)

        def forward_postprocess(self, call):
            self.seen += ("end",)

    with Plain() as hook, pytest.raises(ValueError, match="no"):
        Boom(ValueError("no"))(torch.ones(1))

    assert hook.seen == ("begin",)


def directed(*phases):
    """A log that has the callbacks of some phases only."""
    body = {CALLBACKS[phase]: getattr(Log, CALLBACKS[phase]) for phase in phases}
    return type("Directed", (Noted, ModuleHook), {**body, "called": Log.called})


@pytest.mark.parametrize("failing", PHASES)
def test_c9_a_hook_of_one_direction_is_told_of_that_one(failing):
    """A hook without callbacks of the forward has no `aborted` for it, and so for the backward."""

    def fail(call):
        raise LookupError

    forward = directed("forward_pre", "forward")("forward")
    backward = directed("backward_pre", "backward")("backward")
    around = forward.renamed("a"), backward.renamed("b"), pytest.raises(LookupError)
    with forward, backward, doing(failing, fail), around[0], around[1], around[2]:
        run(nn.Linear(3, 2))

    begins = {"forward": forward.events.count(("forward_pre", "Linear"))}
    begins["backward"] = backward.events.count(("backward_pre", "Linear"))
    for name, hook in (("forward", forward), ("backward", backward)):
        ends = [what for what, _ in hook.events if what in (name, "aborted")]
        assert len(ends) == begins[name]


def test_c9_a_hook_that_only_has_aborted_sees_failed_forwards():
    """It needs no begin of its own."""
    hook = directed()("errors")
    with hook, pytest.raises(ValueError, match="no"):
        nn.Sequential(Boom(ValueError("no")))(torch.ones(1))

    assert hook.events == [("aborted", "0"), ("aborted", "Sequential")]


def test_c9_hooks_work_as_before_after_a_failure():
    """The next run has the events of a run without a failure before."""
    model = nn.Sequential(boom := Boom(), nn.Linear(3, 2))
    with Log() as expected:
        run(model)
    with Log() as hook:
        boom.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            run(model)
        boom.error = None
        hook.events.clear()
        run(model)

    assert hook.events == expected.events


# ---------------------------------------------------------------------------- C10: listings


def test_c10_get_module_hooks_lists_this_threads_hooks():
    """By name, in order, and read-only."""
    a, b = Log("a"), Log("b")
    with b, a:
        hooks = get_module_hooks()
        with pytest.raises(TypeError):
            hooks["c"] = a
        with ThreadPoolExecutor(1) as pool:
            assert dict(pool.submit(get_module_hooks).result()) == {}

    assert list(hooks.items()) == [("b", b), ("a", a)]
    assert dict(get_module_hooks()) == {}


def test_c10_hooks_of_lists_all_on_a_model():
    """One row for each hook and phase: path, phase, hook, handle; scopes are not on the model."""
    model, log = network(), Log()
    add_hook(model[2], log)

    def observe(module, args, output):
        pass

    handle = hookline.register_forward_hook(model, observe)
    with Log("scope"):
        rows = hooks_of(model)

    assert [(row.path, row.phase.value) for row in rows] == [
        ("", "forward"),
        *(("2", phase) for phase in PHASES),
    ]
    assert [row.hook for row in rows] == [observe, log, log, log, log]
    assert all(row.handle.active for row in rows)
    rows[0].handle.remove()
    assert not handle.active
    assert hooks_of(model[0]) == []


def test_c10_a_row_says_only_the_phases_of_a_hook():
    """A hook object is listed at the phases whose callbacks it has."""
    layer = nn.ReLU()
    add_hook(layer, doing("backward_pre", print))

    assert [row.phase for row in hooks_of(layer)] == [Phase.BACKWARD_PRE]


def test_c10_clear_hooks_removes_exactly_these():
    """Hooks of the model go; torch's own, another model's and the thread's scopes stay."""
    model, other, seen = network(), network(), []
    model[0].register_forward_hook(lambda *_: seen.append("torch"))
    add_hook(model[0], mine := Log())
    hookline.register_forward_hook(model[2], lambda module, args, output: seen.append("mine"))
    add_hook(other[0], others := Log())
    with Log("scope") as scope:
        clear_hooks(model)
        run(model)
        run(other)

    assert hooks_of(model) == []
    assert mine.events == []
    assert seen == ["torch"]
    assert [what for what, _ in others.events] == list(PHASES)
    assert len(scope.events) == 2 * 4 * 4


@pytest.mark.parametrize("ask", [hooks_of, clear_hooks])
def test_c10_only_models_have_hooks(ask):
    """Something else than a module is a clear `TypeError`."""
    with pytest.raises(HookTypeError, match=r"torch\.nn\.Module"):
        ask("model")


# ------------------------------------------------------------------------- C11: no recursion


@pytest.mark.parametrize("phase", PHASES)
def test_c11_a_callbacks_own_calls_fire_no_hooks(phase):
    """Modules that a callback calls, forward and backward, have no events at all."""
    helper = nn.Linear(3, 2)
    results = []

    def compute(call):
        with torch.enable_grad():
            x = torch.ones(1, 3, requires_grad=True)
            helper(x).sum().backward()
            results.append(x.grad)

    model = nn.Linear(3, 2)
    before, after, local = Log("before"), Log("after"), Log("local")
    with before, doing(phase, compute), after, add_hook(helper, local):
        run(model)

    assert [what for what, _ in before.events] == list(PHASES)
    assert [what for what, _ in after.events] == list(PHASES)
    assert local.events == []
    assert len(results) == 1
    assert torch.equal(results[0][0], helper.weight.sum(0))


def test_c11_a_hook_may_call_the_module_it_watches():
    """Its own call runs bare: no endless recursion, and the same result."""
    layer, again = nn.Linear(3, 2), []
    with doing("forward", lambda call: again.append(call.module(*call.args))):
        out = layer(torch.ones(1, 3))

    assert len(again) == 1
    assert torch.equal(again[0], out)


def test_c11_hooks_fire_again_after_a_callback_that_raised():
    """A failing callback leaves the thread ready for events."""

    def fail(call):
        raise ZeroDivisionError

    with doing("forward_pre", fail), pytest.raises(ZeroDivisionError):
        nn.ReLU()(torch.ones(1))
    with Log() as hook:
        nn.ReLU()(torch.ones(1))

    assert len(hook.events) == 2


# ----------------------------------------------------------------------------- C12: replace


@pytest.mark.parametrize("phase", PHASES)
def test_c12_return_values_are_ignored(phase):
    """What a callback returns changes nothing."""
    model, x = network(), torch.ones(2, 3)
    expected = model(x)
    expected.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with doing(phase, lambda call: torch.zeros(2, 2)):
        out = model(x)
        out.sum().backward()

    assert torch.equal(out, expected)
    assert all(map(torch.equal, grads, (p.grad for p in model.parameters())))


def test_c12_replace_the_inputs():
    """At `forward_pre`, a bare value, a tuple or `Inputs` takes the inputs' place."""
    layer, x, new = nn.Linear(3, 2), torch.ones(2, 3), torch.arange(6.0).view(2, 3)
    for value in (new, (new,), Inputs((new,)), Inputs((), {"input": new})):
        with doing("forward_pre", lambda call, value=value: call.replace(value)):
            out = layer(x)
        assert torch.equal(out, F.linear(new, layer.weight, layer.bias))


def test_c12_later_hooks_and_the_layer_see_the_new_inputs():
    """Each hook gets what the one before it left; so does the layer."""
    seen = []
    with (
        doing("forward_pre", lambda call: call.replace(call.args[0] + 1)).renamed("a"),
        doing("forward_pre", lambda call: call.replace(call.args[0] * 10)).renamed("b"),
        doing("forward", lambda call: seen.append(call.args[0])).renamed("c"),
    ):
        out = nn.Identity()(torch.ones(1))

    assert out.tolist() == [20]
    assert seen[0].tolist() == [20]


def test_c12_a_wrong_number_of_inputs_is_refused():
    """The error names the module and shows the form that may change their number."""
    layer = nn.Bilinear(2, 2, 1)
    x = torch.ones(1, 2)
    with doing("forward_pre", lambda call: call.replace(x)), pytest.raises(TypeError) as caught:
        layer(x, x)

    assert "Bilinear" in str(caught.value)
    assert "Inputs((first, second)" in str(caught.value)


def test_c12_replace_the_output():
    """At `forward`, the value takes the output's place; gradients flow through it."""
    layer, x = nn.Linear(3, 2), torch.ones(2, 3, requires_grad=True)
    with doing("forward", lambda call: call.replace(call.out * 5)):
        out = layer(x)
        out.sum().backward()

    plain = torch.ones(2, 3, requires_grad=True)
    expected = F.linear(plain, layer.weight, layer.bias) * 5
    expected.sum().backward()
    assert torch.equal(out, expected)
    assert torch.equal(x.grad, plain.grad)


def test_c12_an_output_replaced_by_a_tensor_of_others_has_its_own_gradient():
    """With the input in its place, the gradient seen and changed is that of the output alone."""
    x, seen = torch.ones(2, requires_grad=True), []

    def double(call):
        seen.append(call.grad_output[0].tolist())
        call.replace(call.grad_output[0] * 2)

    instead = doing("forward", lambda call: call.replace(call.args[0]))
    with instead, doing("backward_pre", double).renamed("double"):
        (nn.ReLU()(x) * 3 + x * 10).sum().backward()

    assert seen == [[3.0, 3.0]]
    assert x.grad.tolist() == [16.0, 16.0]


def test_c12_the_output_may_become_none_or_another_structure():
    """What replaces the output may be anything but a number or text in a tensor's place."""
    for value in (None, {"out": 1}, [1]):
        with doing("forward", lambda call, value=value: call.replace(value)):
            assert nn.ReLU()(torch.ones(1)) is value


@pytest.mark.parametrize("value", [0.5, True, "text", 3])
def test_c12_a_number_for_a_tensor_is_refused(value):
    """A number or text in the place of a tensor output is a `TypeError`."""
    hook = doing("forward", lambda call: call.replace(value))
    with hook, pytest.raises(HookTypeError, match="in place of float32"):
        nn.ReLU()(torch.ones(1))


@pytest.mark.parametrize("form", [lambda grad: grad, lambda grad: (grad,), lambda grad: [grad]])
def test_c12_replace_the_gradient_of_the_output(form):
    """At `backward_pre`, the gradient given flows on into the layer."""
    layer, x = nn.Linear(3, 2), torch.ones(2, 3, requires_grad=True)
    new = torch.arange(4.0).view(2, 2)
    with doing("backward_pre", lambda call: call.replace(form(new))):
        layer(x).sum().backward()

    assert torch.equal(x.grad, new @ layer.weight)
    assert torch.equal(layer.weight.grad, new.T @ torch.ones(2, 3))
    assert torch.equal(layer.bias.grad, new.sum(0))


def test_c12_later_hooks_see_the_new_gradient():
    """Each hook gets what the one before it left, at the begin and at the end."""
    layer, seen = nn.Linear(3, 2), []
    with (
        doing("backward_pre", lambda call: call.replace(call.grad_output[0] * 2)).renamed("a"),
        doing("backward_pre", lambda call: call.replace(call.grad_output[0] + 1)).renamed("b"),
        doing("backward", lambda call: seen.append(call.grad_output[0])).renamed("c"),
    ):
        run(layer)

    assert torch.equal(seen[0], torch.full((2, 2), 3.0))
    assert torch.equal(layer.bias.grad, torch.full((2,), 6.0))


class Pair(nn.Module):
    """Two inputs, a dict of two outputs that come from different nodes."""

    def forward(self, x, y):
        return {"sum": x + y, "product": x * y}


def pair_inputs():
    return [torch.tensor([2.0, 3.0], requires_grad=True) for _ in range(2)]


def test_c12_replace_gradients_in_the_outputs_structure():
    """With several outputs, the gradients are given in the output's structure."""
    x, y = pair_inputs()

    def double(call):
        grads = call.grad_output
        call.replace({k: None if g is None else g * 2 for k, g in grads.items()})

    with doing("backward_pre", double):
        out = Pair()(x, y)
        out["sum"].sum().backward()

    assert x.grad.tolist() == [2.0, 2.0]
    assert y.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("wrong", [torch.ones(2), [torch.ones(2)], {"sum": torch.ones(2)}, 5])
def test_c12_gradients_of_another_structure_are_refused(wrong):
    """The error shows the structure that is wanted."""
    x, y = pair_inputs()
    out = None
    with doing("backward_pre", lambda call: call.replace(wrong)):
        out = Pair()(x, y)
        with pytest.raises(HookTypeError, match="another structure") as caught:
            out["sum"].sum().backward()

    assert "{'sum': 'gradient', 'product': 'gradient'}" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [torch.ones(2, 3), torch.tensor(1.0), torch.ones(2, 2, dtype=torch.float64)],
    ids=["shape", "scalar", "dtype"],
)
@pytest.mark.parametrize("phase", ["backward_pre", "backward"])
def test_c12_a_gradient_that_does_not_fit_is_refused(phase, wrong):
    """Shape and dtype must be those of the gradient whose place it takes."""
    layer, x = nn.Linear(2, 2), torch.ones(2, 2, requires_grad=True)
    hook = doing(phase, lambda call: call.replace(wrong), needs_grad_input=True)
    with hook, pytest.raises(HookValueError, match="must stay") as caught:
        layer(x).sum().backward()

    assert "Linear, call 0" in str(caught.value)
    assert x.grad is None


def test_c12_replace_the_gradients_of_the_inputs():
    """At `backward`, with `needs_grad_input`, the gradients given flow on to the inputs."""
    layer = nn.Bilinear(2, 3, 1)
    x, y = torch.ones(1, 2, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    new = torch.tensor([[5.0, 6.0]]), torch.tensor([[7.0, 8.0, 9.0]])
    with doing("backward", lambda call: call.replace(new), needs_grad_input=True):
        layer(x, y).sum().backward()

    assert torch.equal(x.grad, new[0])
    assert torch.equal(y.grad, new[1])
    assert torch.equal(layer.weight.grad, torch.ones(1, 2, 3))


def test_c12_grad_input_is_there_for_who_asks():
    """With `needs_grad_input` it equals plain autograd's, keywords included; else it is None."""

    class Scale(nn.Module):
        def forward(self, x, flag, *, by):
            return x * by

    x, by = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    seen = {}

    def note(call):
        seen["asks"] = call.grad_input

    class Quiet(ModuleHook):
        def backward_postprocess(self, call):
            seen["quiet"] = call.grad_input

    with Quiet() as quiet:
        Scale()(x, True, by=by).sum().backward()
    assert quiet is not None
    assert seen["quiet"] is None

    with doing("backward", note, needs_grad_input=True):
        Scale()(x, True, by=by).sum().backward()
    got = seen["asks"]
    assert len(got) == 2
    assert got[0].tolist() == [3.0, 3.0]
    assert got[1] is None
    assert got.kwargs["by"].item() == 3.0  # the sum of x


def test_c12_replacing_grad_input_needs_the_flag():
    """Without `needs_grad_input`, replacing at `backward` is an error that says what to set."""
    hook = doing("backward", lambda call: call.replace(None))
    with hook, pytest.raises(HookValueError, match="set needs_grad_input = True on the hook"):
        run(nn.Linear(3, 2))


def test_c12_replace_outside_of_an_event_is_an_error():
    """After the events, and in `aborted`, there is nothing to replace."""
    calls = []

    class Late(ModuleHook):
        def forward_preprocess(self, call):
            calls.append(call)

        def aborted(self, call, exception):
            call.replace(1)

    message = "nothing of Boom, call 0 can be replaced outside of its events"
    with Late(), pytest.raises(ValueError, match="no") as caught:
        Boom(ValueError("no"))(torch.ones(1))
    assert any(message in note for note in caught.value.__notes__)

    with pytest.raises(HookValueError, match=message):
        calls[0].replace(1)


def test_c12_replacing_does_not_end_in_place_operations():
    """In-place operations before and after a layer whose gradients are watched stay legal."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with doing("backward", lambda call: None, needs_grad_input=True):
        watched = torch.autograd.grad(model(x).add_(1).sum(), list(model.parameters()))

    assert all(map(torch.equal, plain, watched))
