"""The engine: nothing left on, errors and notes, paired ends, foreign patches, live lookup."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import ModuleHook, add_hook, clear_hooks, delete_hook, hooks_of, with_hooks
from hookline.core.thread import local
from hookline.modules.call import ModuleCall
from hookline.torch_base import backward

ORIGINAL = nn.Module.__call__, torch.autograd._engine_run_backward


def state_of_torch():
    """Everything of torch's that the engine may touch, as far as it is process-wide."""
    return (
        nn.Module.__call__,
        torch.autograd._engine_run_backward,
        dict(torch_module._global_module_registration_hooks),
        dict(torch_optimizer._global_optimizer_post_hooks),
        torch.backends.mha.get_fastpath_enabled(),
    )


class Log(ModuleHook):
    """Notes every event, in a list that several hooks may share."""

    def __init__(self, name="Log", events=None):
        self.name = name
        self.events = [] if events is None else events

    def forward_preprocess(self, call):
        self.events.append(("begin", "forward", self.name, call.path, call.index))

    def forward_postprocess(self, call):
        self.events.append(("end", "forward", self.name, call.path, call.index))

    def backward_preprocess(self, call):
        self.events.append(("begin", "backward", self.name, call.path, call.index))

    def backward_postprocess(self, call):
        self.events.append(("end", "backward", self.name, call.path, call.index))

    def aborted(self, call, exception):
        self.events.append(("aborted", None, self.name, call.path, call.index))


def assert_paired(events):
    """Each begin has exactly one end, by the same hook for the same call, properly nested."""
    open_calls = {}
    for what, direction, name, path, index in events:
        calls = open_calls.setdefault(name, [])
        if what == "begin":
            calls.append((direction, path, index))
        else:
            begun, *who = calls.pop()
            assert who == [path, index]
            assert direction in (begun, None)
    assert not any(open_calls.values())


class Failing(torch.autograd.Function):
    """Hands on; its backward raises what its module says."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.module.in_backward is not None:
            raise ctx.module.in_backward
        return grad, None


class Boom(nn.Module):
    """Raises in its forward or its backward, on demand."""

    def __init__(self, error=None, in_backward=None):
        super().__init__()
        self.error = error
        self.in_backward = in_backward

    def forward(self, x, scale=1.0):
        if self.error is not None:
            raise self.error
        return Failing.apply(x * scale, self)


def network(boom=None):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 3), boom or Boom())
    return nn.Sequential(nn.Linear(3, 3), inner, nn.Linear(3, 2))


def run(model, x=None):
    out = model(torch.ones(2, 3) if x is None else x)
    out.sum().backward()
    return out


def gradients(model):
    return [p.grad for p in model.parameters()]


def our_notes(error):
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("hookline: ")]


def note_of(error):
    (note,) = our_notes(error)
    return note.removeprefix("hookline: ")


# ------------------------------------------------------------------------------ R1: nothing on


def test_r1_everything_of_torchs_is_back_after_the_last_hook():
    """While hooks are on the engine stands in two functions; afterwards all is as before."""
    before = state_of_torch()
    model = network()
    with Log():
        assert nn.Module.__call__ is not ORIGINAL[0]
        assert torch.autograd._engine_run_backward is not ORIGINAL[1]
        with Log("inner"):
            pass
        assert nn.Module.__call__ is not ORIGINAL[0]
        run(model)

    assert state_of_torch() == before


REGISTRATIONS = {
    "object": lambda model: add_hook(model[0], Log()),
    "pre": lambda model: hookline.register_forward_pre_hook(model[0], lambda *_: None),
    "forward": lambda model: hookline.register_forward_hook(model[0], lambda *_: None),
    "backward_pre": lambda m: hookline.register_full_backward_pre_hook(m[0], lambda *_: None),
    "backward": lambda model: hookline.register_full_backward_hook(model[0], lambda *_: None),
    "every": lambda _: hookline.register_module_forward_hook(lambda *_: None),
    "every backward": lambda _: hookline.register_module_full_backward_hook(lambda *_: None),
    "value": lambda model: with_hooks(model[0])[1].add_backward_hook(lambda grad: None),
}


@pytest.mark.parametrize("register", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_r1_each_kind_of_registration_leaves_nothing(register):
    """Registered, run and removed: torch is as before, and nothing was ever put on the module."""
    before = state_of_torch()
    model = network()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = {
        name: {k: dict(v) for k, v in vars(m).items() if k.endswith("_hooks")}
        for name, m in model.named_modules()
    }
    handle = register(model)
    assert nn.Module.__call__ is not ORIGINAL[0]
    run(model)

    for name, module in model.named_modules():
        assert set(vars(module)) == attributes[name]
        assert {k: dict(v) for k, v in vars(module).items() if k in hooks[name]} == hooks[name]
    assert all(not p._backward_hooks for p in model.parameters())
    handle.remove()
    assert state_of_torch() == before


def test_r1_the_engine_goes_off_with_the_last_module():
    """Hooks go with their module: no handle needs to be removed."""
    before = state_of_torch()
    model = nn.ReLU()
    add_hook(model, Log())
    assert nn.Module.__call__ is not ORIGINAL[0]
    del model

    assert state_of_torch() == before


def test_r1_modules_that_nobody_watches_get_no_call():
    """Beside a hooked module, others are only noted on the stack; also once a scope was open."""
    stacks = []

    class Looks(nn.Module):
        def forward(self, x):
            stacks.append(list(local.thread.stack))
            return x

    looks, hooked = Looks(), nn.ReLU()
    with Log():
        looks(torch.ones(1))
    add_hook(hooked, Log())
    handle = add_hook(looks, Log())
    handle.remove()
    looks(torch.ones(1))

    watched, unwatched = stacks
    assert [type(frame) for frame in watched] == [ModuleCall]
    assert unwatched == [looks]


def test_r1_a_failing_setup_leaves_nothing(monkeypatch):
    """If the engine can't be turned on, the error comes out and nothing is registered."""
    before = state_of_torch()

    def fail():
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(backward.patch, "install", fail)
        with pytest.raises(OSError, match=r"^$"), Log():
            pytest.fail("the block ran")
        with pytest.raises(OSError, match=r"^$"):
            add_hook(layer := nn.ReLU(), Log())

    assert state_of_torch() == before
    assert hooks_of(layer) == []
    with Log() as hook:
        layer(torch.ones(1))
    assert len(hook.events) == 2


# ----------------------------------------------------------- R3: errors keep their identity


def test_r3_an_error_of_the_model_gets_one_note():
    """The same object comes out, with one note: the innermost call, and its inputs' shapes."""
    error = ValueError("no")
    with Log(), pytest.raises(ValueError, match="no") as caught:
        network(Boom(error))(torch.ones(2, 3))

    assert caught.value is error
    assert note_of(error) == "raised in 1.1 (Boom), call 0, inputs (float32[2, 3],)"


def test_r3_the_innermost_watched_call_speaks():
    """Modules in between that nobody watches change nothing; outer watched calls add nothing."""
    model = nn.Sequential(nn.Sequential(nn.Sequential(boom := Boom(ValueError("no")))))
    add_hook(model, Log())
    handle = add_hook(boom, Log())
    with pytest.raises(ValueError, match="no") as caught:
        model(torch.ones(1))
    assert note_of(caught.value) == "raised in 0.0.0 (Boom), call 0, inputs (float32[1],)"

    handle.remove()
    with pytest.raises(ValueError, match="no") as caught:
        model(torch.ones(1))
    assert note_of(caught.value) == "raised in Sequential, call 0, inputs (float32[1],)"
    clear_hooks(model)


def test_r3_the_note_tells_call_index_and_keywords():
    """The failing call is told from others of the same module, and keyword inputs are shown."""

    class Thrice(nn.Module):
        def __init__(self):
            super().__init__()
            self.boom = Boom()

        def forward(self, x):
            x = self.boom(self.boom(x))
            self.boom.error = ValueError("no")
            return self.boom(x, scale=torch.ones(3, dtype=torch.float64))

    with Log(), pytest.raises(ValueError, match="no") as caught:
        Thrice()(torch.ones(2, 3))

    assert note_of(caught.value) == (
        "raised in boom (Boom), call 2, inputs (float32[2, 3],), scale=float64[3]"
    )


def test_r3_notes_of_others_stay():
    """The error's own notes and arguments are kept."""
    error = ValueError("no", 5)
    error.add_note("mine")
    with Log(), pytest.raises(ValueError, match="no") as caught:
        Boom(error)(torch.ones(1))

    assert caught.value.args == ("no", 5)
    assert caught.value.__notes__[0] == "mine"
    assert len(caught.value.__notes__) == 2


def test_r3_an_error_that_refuses_notes_comes_out_all_the_same():
    """Nothing is raised in its place."""

    class Mute(Exception):  # noqa: N818 - a stand-in
        def add_note(self, note):
            raise TypeError

    error = Mute()
    with Log() as hook, pytest.raises(Mute) as caught:
        Boom(error)(torch.ones(1))

    assert caught.value is error
    assert_paired(hook.events)


class Swallows(nn.Module):
    """Calls its layers, catches what they raise, and raises the last error itself."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        last = None
        for layer in self.layers:
            try:
                layer(x)
            except ValueError as error:
                last = error
        if last is not None:
            raise last
        return x


def test_r3_one_object_raised_a_thousand_times_has_one_note():
    """The note is replaced each time: it tells the latest place."""
    error = ValueError("no")
    model = Swallows(*(Boom(error) for _ in range(4)))
    with Log() as hook:
        for count in range(250):
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(1))
            assert len(error.__notes__) == 1
            assert note_of(error).startswith("raised in layers.3 (Boom), call 0")
            if count == 0:
                model.layers[0].error = None

    assert_paired(hook.events)


def test_r3_an_error_raised_again_elsewhere_is_noted_there():
    """A later call that raises the same object replaces the note, whatever is watched."""
    error = ValueError("no")
    first, second = Boom(error), Boom(error)
    model = nn.Sequential(nn.Sequential(first), second)
    add_hook(first, Log())
    add_hook(second, Log())
    with pytest.raises(ValueError, match="no"):
        model(torch.ones(1))
    assert note_of(error).startswith("raised in 0.0 (Boom)")

    first.error = None
    with pytest.raises(ValueError, match="no"):
        model(torch.ones(1))
    assert note_of(error).startswith("raised in 1 (Boom)")
    clear_hooks(model)


def test_r3_calls_made_while_an_error_passes_change_no_note():
    """A `finally` that calls modules leaves the note of the innermost call."""

    class Tidy(nn.Module):
        def __init__(self):
            super().__init__()
            self.boom = Boom(ValueError("no"))
            self.clean = nn.ReLU()

        def forward(self, x):
            try:
                return self.boom(x)
            finally:
                self.clean(x)

    with Log() as hook, pytest.raises(ValueError, match="no") as caught:
        Tidy()(torch.ones(1))

    assert note_of(caught.value).startswith("raised in boom (Boom)")
    assert_paired(hook.events)


def test_r3_a_call_inside_an_except_block_is_no_failure():
    """While an error is being handled, calls that return have their ordinary end."""
    with Log() as hook:
        try:
            raise_in(error := LookupError())()
        except LookupError:
            run(network())
            handled = sys.exc_info()[1]

    assert handled is error
    assert our_notes(error) == []
    assert_paired(hook.events)
    assert "aborted" not in {event[0] for event in hook.events}


def test_r3_control_flow_of_checkpoints_gets_no_note():
    """The exception by which a checkpoint ends its recomputation stays as it is."""
    seen = []

    class Watch(ModuleHook):
        def forward_preprocess(self, call):
            pass

        def aborted(self, call, exception):
            seen.append(exception)

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    with Watch():
        checkpoint(model, torch.ones(2, 3), use_reentrant=False).sum().backward()

    assert len(seen) == 2  # the last layer, and the model around it
    assert all(our_notes(error) == [] for error in seen)


def test_r3_an_error_in_backward_is_noted():
    """An error of a custom Function's backward: the same object, and whose backward it was."""
    error = ValueError("no")
    with Log() as hook:
        out = network(Boom(in_backward=error))(torch.ones(2, 3))
        with pytest.raises(ValueError, match="no") as caught:
            out.sum().backward()

    assert caught.value is error
    assert note_of(error) == "in the backward of 1.1 (Boom), call 0"
    assert_paired(hook.events)


def test_r3_an_error_of_torchs_own_in_backward_is_noted():
    """So is an error that torch raises from C++."""
    with Log():
        x = torch.ones(2, 3)
        model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
        out = model(x)
        with torch.no_grad():
            out.zero_()
        with pytest.raises(RuntimeError, match="inplace") as caught:
            out.sum().backward()

    assert note_of(caught.value) == "in the backward of 1 (Sigmoid), call 0"


def raise_in(error):
    def hook(*_):
        raise error

    return hook


def in_object(phase):
    """A hook object that raises at one phase."""

    def register(layer, error):
        body = {phase: lambda self, call: raise_in(error)(), "name": "bad"}
        return layer, add_hook(layer, type("Bad", (ModuleHook,), body)())

    return register


def in_torch_style(kind):
    def register(layer, error):
        return layer, getattr(hookline, f"register_{kind}")(layer, raise_in(error))

    return register


def in_everywhere(kind):
    def register(layer, error):
        def hook(module, *_):
            if module is layer:
                raise error

        return layer, getattr(hookline, f"register_module_{kind}")(hook)

    return register


def in_wrapper(kind):
    def register(layer, error):
        twin, hooks = with_hooks(layer)
        return twin, getattr(hooks, f"add_{kind}")(raise_in(error))

    return register


CALLBACKS = ("forward_preprocess", "forward_postprocess")
BACKWARD_CALLBACKS = ("backward_preprocess", "backward_postprocess")
KINDS = ("forward_pre_hook", "forward_hook")
BACKWARD_KINDS = ("full_backward_pre_hook", "full_backward_hook")
PHASE_OF = {
    "forward_preprocess": "forward_pre",
    "forward_postprocess": "forward",
    "backward_preprocess": "backward_pre",
    "backward_postprocess": "backward",
    "forward_pre_hook": "forward_pre",
    "forward_hook": "forward",
    "full_backward_pre_hook": "backward_pre",
    "full_backward_hook": "backward",
    "backward_hook": "backward_pre",
}
MANNERS = [
    *((in_object, kind) for kind in CALLBACKS + BACKWARD_CALLBACKS),
    *((in_torch_style, kind) for kind in KINDS + BACKWARD_KINDS),
    *((in_everywhere, kind) for kind in KINDS + BACKWARD_KINDS),
    *((in_wrapper, kind) for kind in (*KINDS, "backward_hook")),
]
each_manner = pytest.mark.parametrize(
    ("manner", "kind"), MANNERS, ids=[f"{m.__name__}-{kind}" for m, kind in MANNERS]
)


@each_manner
def test_r3_an_error_in_a_hook_names_the_hook(manner, kind):
    """Whatever the manner and phase: the same object, and one note with hook, phase and call."""
    error, model = ValueError("no"), network()
    model[1][1], handle = manner(kind)(model[1][1], error)
    with handle, pytest.raises(ValueError, match="no") as caught:
        run(model)

    assert caught.value is error
    name = "bad" if manner is in_object else ".hook"
    note = note_of(error)
    assert note.startswith(f"raised by {PHASE_OF[kind]} hook ")
    assert note.endswith(f"{name} of 1.1 (Boom), call 0")


@each_manner
@pytest.mark.parametrize("kind_of_error", [ValueError, KeyboardInterrupt, SystemExit])
def test_c9_an_error_in_any_hook_ends_every_call(manner, kind, kind_of_error):
    """Around a failing hook of any manner, each begin has one end, and a retry is as usual."""
    expected = network()
    run(expected)
    error, events, model = kind_of_error("no"), [], network()
    layer = model[1][1]
    model[1][1], handle = manner(kind)(layer, error)
    with Log("scope", events), add_hook(model[1], Log("local", events)):
        with handle, pytest.raises(kind_of_error) as caught:
            run(model)
        assert caught.value is error
        assert_paired(events)
        thread = local.thread
        assert (thread.stack, thread.runs, thread.busy, thread.culprit) == ([], [], False, None)

        events.clear()
        model.zero_grad()
        run(model)
        assert_paired(events)
        assert len(events) == 2 * (2 * 6 + 2)

    assert all(map(torch.equal, gradients(expected), gradients(model)))


@pytest.mark.parametrize("where", ["error", "in_backward"])
@pytest.mark.parametrize("kind_of_error", [ValueError, KeyboardInterrupt, SystemExit])
def test_c9_an_error_of_the_model_ends_every_call(where, kind_of_error):
    """The model fails in forward or backward: ends are paired, nothing stays, a retry works."""
    expected = network()
    run(expected)
    error = kind_of_error("no")
    boom = Boom(**{where: error})
    events, model = [], network(boom)
    with Log("scope", events), add_hook(boom, Log("local", events)):
        with pytest.raises(kind_of_error) as caught:
            run(model)
        assert caught.value is error
        assert len(our_notes(error)) == 1
        assert_paired(events)

        events.clear()
        setattr(boom, where, None)
        model.zero_grad()
        run(model)
        assert_paired(events)
        assert len(events) == 2 * (2 * 6 + 2)

    assert all(map(torch.equal, gradients(expected), gradients(model)))


def test_c9_a_real_interrupt():
    """Ctrl-C in the middle of a forward ends the open calls."""

    class Pressed(nn.Module):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            return x

    with Log() as hook, pytest.raises(KeyboardInterrupt) as caught:
        nn.Sequential(Pressed())(torch.ones(1))

    assert note_of(caught.value).startswith("raised in 0 (Pressed), call 0")
    assert [event[0] for event in hook.events] == ["begin", "begin", "aborted", "aborted"]


def test_c9_a_failed_backward_can_be_run_again():
    """With a retained graph, the second backward has all events and the right gradients."""
    expected = network()
    run(expected)
    error, model = ValueError("no"), network()
    with Log() as hook:
        out = model(torch.ones(2, 3))
        handle = hookline.register_full_backward_pre_hook(model[1], raise_in(error))
        with pytest.raises(ValueError, match="no"):
            out.sum().backward(retain_graph=True)
        handle.remove()
        model.zero_grad()
        hook.events.clear()
        out.sum().backward()

    assert_paired(hook.events)
    assert len(hook.events) == 2 * 6
    assert all(map(torch.equal, gradients(expected), gradients(model)))


def test_c9_an_error_in_a_backward_inside_a_forward():
    """The backward's calls and the forward's around it are all ended, with one note."""
    error = ValueError("no")

    class Penalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Boom(in_backward=error)

        def forward(self, x):
            return torch.autograd.grad(self.inner(x).sum(), x)[0]

    with Log() as hook, pytest.raises(ValueError, match="no") as caught:
        Penalised()(torch.ones(2, requires_grad=True))

    assert note_of(caught.value) == "in the backward of inner (Boom), call 0"
    assert_paired(hook.events)
    assert hook.events[-1] == ("aborted", None, "Log", "", 0)


# --------------------------------------------------------------- R6: other people's patches


class Foreign:
    """Somebody else's patch over one of the two functions that the engine stands in."""

    def __init__(self, owner, name, direction):
        self.owner, self.name, self.direction = owner, name, direction
        self.calls = 0
        self.below = None
        self.function = None

    def install(self):
        below = self.below = getattr(self.owner, self.name)

        def foreign(*args, **kwargs):
            self.calls += 1
            return below(*args, **kwargs)

        self.function = foreign
        setattr(self.owner, self.name, foreign)

    def uninstall(self):
        setattr(self.owner, self.name, self.below)

    @property
    def current(self):
        return getattr(self.owner, self.name)


@pytest.fixture(
    params=[
        (nn.Module, "__call__", "forward"),
        (torch.autograd, "_engine_run_backward", "backward"),
    ],
    ids=["module call", "backward"],
)
def foreign(request):
    """A foreign patch, with the direction whose events go through it."""
    owner, name, _ = request.param
    original = getattr(owner, name)
    yield Foreign(*request.param)
    setattr(owner, name, original)


def seen(hook, foreign):
    """The calls a hook has seen, which must be the one there was, exactly once."""
    return [event[0] for event in hook.events if event[1] == foreign.direction]


def test_r6_a_patch_that_was_there_before_is_put_back(foreign):
    """Both work while hooks are on; then theirs is back, the very object."""
    foreign.install()
    layer = nn.Linear(3, 2)
    with Log() as hook:
        run(layer)
    assert seen(hook, foreign) == ["begin", "end"]
    assert foreign.calls == 1
    assert foreign.current is foreign.function

    run(layer)
    assert foreign.calls == 2


def test_r6_a_patch_that_comes_and_goes_inside_a_scope(foreign):
    """Put over ours and taken off again, it changes nothing."""
    layer = nn.Linear(3, 2)
    before = foreign.current
    with Log() as hook:
        foreign.install()
        run(layer)
        foreign.uninstall()
        run(layer)

    assert seen(hook, foreign) == ["begin", "end"] * 2
    assert foreign.calls == 1
    assert foreign.current is before


def test_r6_a_patch_over_ours_stays(foreign):
    """Ours stays under it as a mere pass-through; hooks that come later work, and see calls once.

    Once the other patch is gone too, the next scope leaves torch as it was.
    """
    layer, before = nn.Linear(3, 2), foreign.current
    with Log() as first:
        foreign.install()
    assert foreign.current is foreign.function

    passes, backwards = len(local.thread.passes), local.thread.backwards
    run(layer)
    assert foreign.calls == 1
    assert first.events == []
    thread = local.thread
    assert (thread.stack, len(thread.passes), thread.backwards) == ([], passes, backwards)

    with Log() as second:
        run(layer)
    assert seen(second, foreign) == ["begin", "end"]
    assert foreign.current is foreign.function

    foreign.uninstall()
    run(layer)
    with Log() as third:
        run(layer)
    assert seen(third, foreign) == ["begin", "end"]
    assert foreign.current is before


def test_r6_patches_that_cross_again_and_again_do_not_pile_up(foreign):
    """However often another patch outlives our scope, the same pass-through stays."""
    before, layer = foreign.current, nn.Linear(3, 2)
    left = set()
    for _ in range(5):
        with Log() as hook:
            foreign.install()
            run(layer)
        with Log() as again:
            run(layer)
        foreign.uninstall()
        assert seen(hook, foreign) == seen(again, foreign) == ["begin", "end"]
        left.add(foreign.current)
    with Log():
        pass

    assert len(left) == 1
    assert foreign.current is before


def test_r6_ours_stands_outside_torchs_own_hooks():
    """Our begin comes before torch's pre-hook, and our end after torch's forward hook."""
    layer, seen = nn.ReLU(), []
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.register_forward_hook(lambda module, args, output: output * 10)

    class Watch(ModuleHook):
        def forward_preprocess(self, call):
            seen.append(call.args[0].item())

        def forward_postprocess(self, call):
            seen.append((call.args[0].item(), call.out.item()))

    with Watch():
        layer(torch.ones(1))

    assert seen == [1.0, (1.0, 20.0)]
    assert len(layer._forward_hooks) == len(layer._forward_pre_hooks) == 1


# ----------------------------------------------- P6: registrations while an event is running


def test_p6_a_hook_removed_by_an_earlier_one_is_not_called():
    """Removing takes effect within the running event, in each phase."""
    layer, called = nn.Linear(3, 2), []
    kinds = KINDS + BACKWARD_KINDS
    later = {}
    for kind in kinds:
        register = getattr(hookline, f"register_{kind}")
        register(layer, lambda *_, kind=kind: later[kind].remove())
        later[kind] = register(layer, lambda *_, kind=kind: called.append(kind))
    run(layer)

    assert called == []
    assert not any(handle.active for handle in later.values())


def test_p6_a_hook_may_remove_itself():
    """The others of the event are called all the same."""
    layer, called = nn.Linear(3, 2), []
    for kind in KINDS + BACKWARD_KINDS:
        register = getattr(hookline, f"register_{kind}")
        handles = {}

        def once(*_, kind=kind, handles=handles):
            called.append((kind, "once"))
            handles["own"].remove()

        handles["own"] = register(layer, once)
        register(layer, lambda *_, kind=kind: called.append((kind, "always")))
    run(layer)
    run(layer)

    assert called == [
        *((kind, who) for kind in KINDS + BACKWARD_KINDS for who in ("once", "always")),
        *((kind, "always") for kind in KINDS + BACKWARD_KINDS),
    ]


def test_p6_a_hook_added_in_an_event_waits_for_the_next():
    """A pre-hook added by a pre-hook is called from the next call on; a forward hook now."""
    layer, called = nn.ReLU(), []

    def add(module, args):
        if not called:
            hookline.register_forward_pre_hook(module, lambda *_: called.append("pre"))
            hookline.register_forward_hook(module, lambda *_: called.append("forward"))
            called.append("added")

    hookline.register_forward_pre_hook(layer, add)
    layer(torch.ones(1))
    assert called == ["added", "forward"]
    layer(torch.ones(1))
    assert called == ["added", "forward", "pre", "forward"]


def test_p6_a_hook_object_added_inside_a_call_has_no_end_for_it():
    """Only calls that it saw begin are ended, well or not."""
    late, boom = Log("late"), Boom()

    class Opens(ModuleHook):
        def forward_preprocess(self, call):
            if call.path == "" and not late.events:
                late.__enter__()

    model = nn.Sequential(nn.ReLU(), boom)
    with Opens():
        run(model, torch.ones(1, requires_grad=True))
        assert late.events[:2] == [
            ("begin", "forward", "late", "0", 0),
            ("end", "forward", "late", "0", 0),
        ]
        assert ("end", "forward", "late", "", 0) not in late.events
        late.__exit__(None, None, None)


def test_p6_a_hook_object_added_inside_a_backward_has_no_end_for_it():
    """Nor in the backward: only calls whose begin it saw."""
    late, model = Log("late"), network()

    def open_late(module, grad_output):
        add_hook(model, late)
        add_hook(model[0], late)

    with Log():
        out = model(torch.ones(2, 3))
        with hookline.register_full_backward_pre_hook(model[1], open_late):
            out.sum().backward()
        clear_hooks(model)

    assert late.events == [
        ("begin", "backward", "late", "0", 0),
        ("end", "backward", "late", "0", 0),
    ]


def test_p6_a_hook_object_removed_inside_a_call_has_no_end():
    """Removed means never called again: neither its end nor `aborted`."""
    for error in (None, ValueError("no")):
        hook, boom = Log(), Boom(error)
        model = nn.Sequential(boom)
        handle = add_hook(model, hook)
        hookline.register_forward_pre_hook(boom, lambda *_, handle=handle: handle.remove())
        if error is None:
            model(torch.ones(1))
        else:
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(1))
        assert [event[0] for event in hook.events] == ["begin"]
        clear_hooks(model)


def test_p6_hooks_of_a_backward_are_looked_up_when_it_happens():
    """Removed or added after the forward, or while the backward runs, counts at once."""
    torch.manual_seed(0)
    model, called = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), []

    def note(name):
        return lambda module, *_: called.append((name, int(name)))

    handles = [hookline.register_full_backward_hook(m, note(str(i))) for i, m in enumerate(model)]
    out = model(torch.ones(1, 3))
    handles[3].remove()

    def in_the_backward_of_2(module, *_):
        handles[1].remove()
        hookline.register_full_backward_pre_hook(model[0], lambda *_: called.append(("late", 0)))

    with hookline.register_full_backward_pre_hook(model[2], in_the_backward_of_2):
        out.sum().backward()

    assert called == [("2", 2), ("late", 0), ("0", 0)]


def test_p6_a_removed_hook_object_is_not_told_of_the_failure():
    """`delete_hook` inside of the call: no `aborted` for it."""
    hook, boom = Log(), Boom(ValueError("no"))
    add_hook(boom, hook)
    hookline.register_forward_pre_hook(boom, lambda module, args: delete_hook(module, "Log"))
    with pytest.raises(ValueError, match="no"):
        boom(torch.ones(1))

    assert [event[0] for event in hook.events] == ["begin"]
    clear_hooks(boom)


def test_r11_registries_may_change_from_any_thread():
    """While one thread runs a model, others add and remove hooks: no error, nothing left."""
    model, stop = network(), threading.Event()

    def change():
        count = 0
        while not stop.is_set() or not count:
            handles = [hookline.register_forward_hook(m, lambda *_: None) for m in model]
            add_hook(model[0], Log(), name=str(threading.get_ident()))
            for handle in handles:
                handle.remove()
            delete_hook(model[0], str(threading.get_ident()))
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool, Log() as hook:
        changing = [pool.submit(change) for _ in range(2)]
        for _ in range(30):
            run(model)
        stop.set()
        assert all(future.result() for future in changing)

    assert_paired(hook.events)
    assert len(hook.events) == 30 * 24
    assert hooks_of(model) == []


# ------------------------------------------------------------------------------- always_call


def test_always_call_runs_where_the_call_raised():
    """It gets the inputs and None as output; what it returns is ignored; other hooks do not run."""
    boom, seen, x = Boom(ValueError("no")), [], torch.ones(2)

    def always(module, args, kwargs, output):
        seen.append((module, args[0], dict(kwargs), output))
        return torch.zeros(2)

    hookline.register_forward_hook(boom, always, always_call=True)
    hookline.register_forward_hook(boom, lambda *_: seen.append("ordinary"))
    with pytest.raises(ValueError, match="no"):
        boom(x, scale=2.0)
    clear_hooks(boom)

    ((module, arg, kwargs, output),) = seen
    assert (module, kwargs, output) == (boom, {"scale": 2.0}, None)
    assert arg is x


def test_always_call_runs_once_where_the_call_returns():
    """Without an error it is an ordinary forward hook, with the output."""
    layer, seen = nn.ReLU(), []
    hookline.register_forward_hook(layer, lambda *given: seen.append(given[2]), always_call=True)
    out = layer(torch.ones(1))

    assert len(seen) == 1
    assert seen[0] is out


@pytest.mark.parametrize("kind_of_error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_always_call_runs_for_any_exception(kind_of_error):
    """`BaseException` too."""
    boom, seen = Boom(kind_of_error()), []
    always = hookline.register_forward_hook(boom, lambda *_: seen.append(1), always_call=True)
    with always, pytest.raises(kind_of_error):
        boom(torch.ones(1))

    assert seen == [1]


def test_always_call_runs_once_when_another_hook_raises():
    """Hooks in front of the one that raised have run; those behind it run now; none runs twice."""
    layer, seen = nn.ReLU(), []

    def always(name):
        hookline.register_forward_hook(layer, lambda *_: seen.append(name), always_call=True)

    always("before")
    hookline.register_forward_hook(layer, raise_in(ValueError("no")))
    always("after")
    with pytest.raises(ValueError, match="no"):
        layer(torch.ones(1))
    assert seen == ["before", "after"]

    seen.clear()
    hookline.register_forward_pre_hook(layer, raise_in(LookupError()))
    with pytest.raises(LookupError):
        layer(torch.ones(1))
    assert seen == ["before", "after"]
    clear_hooks(layer)


def test_always_call_errors_become_notes_on_the_first():
    """The first error wins; what the hook raises is kept as a note, and the next one still runs."""
    boom, seen = Boom(error := ValueError("no")), []
    hookline.register_forward_hook(boom, raise_in(LookupError("late")), always_call=True)
    hookline.register_forward_hook(boom, lambda *_: seen.append(1), always_call=True)
    with pytest.raises(ValueError, match="no") as caught:
        boom(torch.ones(1))

    assert caught.value is error
    assert seen == [1]
    assert any("raised LookupError('late')" in note for note in error.__notes__)
    assert len(our_notes(error)) == 1
    clear_hooks(boom)


def test_always_call_works_for_all_modules():
    """The hook for every module runs at each call that the error passes through."""
    model, seen = network(Boom(ValueError("no"))), []
    handle = hookline.register_module_forward_hook(
        lambda module, args, kwargs, output: seen.append((type(module).__name__, output is None)),
        always_call=True,
    )
    with handle, pytest.raises(ValueError, match="no"):
        model(torch.ones(2, 3))

    assert seen == [
        ("Linear", False),
        ("Linear", False),
        ("Boom", True),
        ("Sequential", True),
        ("Sequential", True),
    ]
