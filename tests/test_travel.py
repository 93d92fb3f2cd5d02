"""What leaves the process or the model carries nothing of hookline, and nothing is kept.

Copies, pickles and state dicts (R4); forked and spawned processes (R12); freed models (R5).
"""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import prune

import hookline
from hookline import ModuleHook, add_hook, hooks_of, with_hooks
from hookline.core.thread import module_switch
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.module_hooks import TimerHook
from hookline.record.measures import Measures
from hookline.record.run import Recorder

DIGITS = torch.tensor(load_digits().data[:8], dtype=torch.float32) / 16


def build():
    """A model that a process without this file can unpickle."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 10)]
    return nn.Sequential(nn.Sequential(*layers[:3]), nn.Dropout(0.1), layers[3])


class Seen(ModuleHook):
    """Counts its events; it holds what cannot be pickled or copied."""

    needs_grad_input = True

    def __init__(self):
        self.count, self.lock = 0, threading.Lock()

    def note(self, call):
        self.count += 1

    def pass_on(self, value):
        self.count += 1
        return value

    forward_preprocess = forward_postprocess = note
    backward_preprocess = backward_postprocess = note


def value_hooks(model, stack, seen):
    """Every layer wrapped, with hooks of all kinds."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            wrapper, hooks = with_hooks(layer)
            setattr(parent, name, wrapper)
            hooks.add_forward_pre_hook(seen.note)
            hooks.add_forward_hook(lambda x, out: seen.note(x))
            hooks.add_backward_hook(seen.note)
            stack.callback(hooks.registry.clear)


def called(model):
    return [module for module in model.modules() if not isinstance(module, nn.ModuleDict)]


def torch_style(model, stack, seen):
    """All four registrations on every module that is called."""
    for module in called(model):
        for register in (
            hookline.register_forward_pre_hook,
            hookline.register_forward_hook,
            hookline.register_full_backward_pre_hook,
            hookline.register_full_backward_hook,
        ):
            stack.enter_context(register(module, lambda *args: seen.note(args)))


def on_all_modules(model, stack, seen):
    """All four registrations for all modules."""
    for register in (
        hookline.register_module_forward_pre_hook,
        hookline.register_module_forward_hook,
        hookline.register_module_full_backward_pre_hook,
        hookline.register_module_full_backward_hook,
    ):
        stack.enter_context(register(lambda *args: seen.note(args)))


def hook_objects(model, stack, seen):
    """A hook object on every module that is called."""
    for module in called(model):
        stack.enter_context(add_hook(module, seen))


def scope(model, stack, seen):
    """A scope around everything."""
    stack.enter_context(seen)


def timers(model, stack, seen):
    """Timers of both levels."""
    stack.enter_context(seen)
    stack.enter_context(TimerHook())
    stack.enter_context(FunctionTimer())


def recorder(model, stack, seen):
    """A run that watches all threads."""
    stack.enter_context(seen)
    stack.enter_context(Recorder(Measures(time=True, level="both")))


def ready_made(model, stack, seen):
    """The ready-made hooks of both levels, watching the model."""
    homes = (hookline.module_hooks, hookline.function_hooks)
    kinds = ("TimerHook", "StatsHook", "NonFiniteHook", "RangeHook", "CaptureHook")
    hooks = [getattr(home, kind)() for home in homes for kind in kinds]
    prints = [home.PrintHook(file=io.StringIO()) for home in homes]
    stack.enter_context(hookline.watch(model, seen.renamed("watched"), *hooks, *prints))


def edits(model, stack, seen):
    """Patches of outputs and gradients, and captures."""
    change = [hookline.edits.scale(1.0, on=on) for on in ("input", "output", "grad")]
    stack.enter_context(hookline.patch(model, {"0.0": [seen.pass_on, *change]}))
    stack.enter_context(hookline.patch(model, {"2": change}, first=True))
    stack.enter_context(hookline.capture(model, "**", "0.0:linear", what=("input", "output")))


MANNERS = [value_hooks, torch_style, on_all_modules, hook_objects, scope, timers, recorder]
"""Those that hold no tensor; see `hook` for all."""


@pytest.fixture
def model():
    """A model that has been trained a step."""
    model = build()
    model(DIGITS).sum().backward()
    return model


@pytest.fixture(params=[*MANNERS, ready_made, edits], ids=lambda manner: manner.__name__)
def hook(request, model):
    """Puts hooks on the model in one manner; they have run once when it is done."""
    seen = Seen()
    with ExitStack() as stack:

        def hook():
            request.param(model, stack, seen)
            model.eval()(DIGITS).sum().backward()
            model.train()
            assert seen.count

        yield hook


def saved(thing, **options):
    buffer = io.BytesIO()
    torch.save(thing, buffer, **options)
    return buffer.getvalue()


# ------------------------------------------------------------------------------- R4: copies

WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": lambda model: torch.load(io.BytesIO(saved(model)), weights_only=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_r4_a_copy_is_the_bare_model(model, hook, way):
    """It has nothing of the hooks on it, and computes the same."""
    expected = [copy.deepcopy(module) for module in model.modules()]
    hook()
    clone = WAYS[way](model)

    # A shallow copy has the very children of the original, and these keep their hooks.
    own = [row for row in hooks_of(clone) if row.path == "" or way != "copy"]
    assert own == []
    assert [type(module) for module in clone.modules()] == [type(module) for module in expected]
    assert [*map(list, map(vars, clone.modules()))] == [*map(list, map(vars, expected))]
    assert all(map(torch.equal, clone.state_dict().values(), expected[0].state_dict().values()))
    assert torch.equal(clone.eval()(DIGITS), expected[0].eval()(DIGITS))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
@pytest.mark.parametrize("manner", [value_hooks, torch_style, hook_objects])
def test_r4_hooks_on_the_original_do_not_see_the_copy(way, manner):
    """Hooks on modules stay with those modules, and handles remove them there."""
    model, seen = build(), Seen()
    with ExitStack() as stack:
        manner(model, stack, seen)
        clone = WAYS[way](model)
        clone(DIGITS).sum().backward()
        assert seen.count == 0

        with hookline.register_forward_hook(clone, lambda *_: None):
            assert len(hooks_of(clone)) == 1
            assert len(hooks_of(model)) > 10
        model(DIGITS).sum().backward()
        assert seen.count > 10


def test_r4_pickles_are_those_of_the_bare_model(model, hook):
    """By any protocol, byte by byte."""
    model.zero_grad()
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    expected = [pickle.dumps(model, protocol) for protocol in protocols]
    hook()
    model.zero_grad()

    assert [pickle.dumps(model, protocol) for protocol in protocols] == expected


def test_r4_saved_files_are_those_of_the_bare_model(model, hook):
    """Whole models and state dicts, byte by byte."""
    model.zero_grad()
    expected = [saved(model), saved(model.state_dict())]
    hook()
    model.zero_grad()

    assert [saved(model), saved(model.state_dict())] == expected


def test_r4_a_state_dict_goes_both_ways(model, hook):
    """A checkpoint of the hooked model loads into a bare one with `weights_only`, and back."""
    hook()
    bare = build()
    state = torch.load(io.BytesIO(saved(model.state_dict())), weights_only=True)

    assert list(state) == list(bare.state_dict())
    bare.load_state_dict(state, strict=True)
    model.load_state_dict(torch.load(io.BytesIO(saved(bare.state_dict())), weights_only=True))
    assert all(map(torch.equal, model.state_dict().values(), state.values()))


def test_r4_a_pickle_loads_where_hookline_is_not_installed(model, hook, tmp_path):
    """Neither loading nor running it needs hookline."""
    expected = copy.deepcopy(model).eval()(DIGITS).sum().item()
    hook()
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    torch.save(DIGITS, tmp_path / "digits.pt")
    code = """
import pickle, sys
sys.modules["hookline"] = None  # importing it raises
import torch

digits = torch.load("digits.pt")
with open("model.pickle", "rb") as file:
    models = [torch.load("model.pt", weights_only=False), pickle.load(file)]
for model in models:
    print(model.eval()(digits).sum().item())
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert result.stdout.split() == [str(expected)] * 2


def parametrized(model):
    nn.utils.parametrizations.weight_norm(model[0][0])
    return model


def pruned(model):
    return prune.l1_unstructured(model[2], "weight", 0.5) and model


def lazy(model):
    model.append(nn.LazyLinear(3))
    return model


WRAPPED = {
    "parametrized": parametrized,
    "pruned": pruned,
    "lazy": lazy,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "data parallel": nn.DataParallel,
    "checkpointed": checkpoint_wrapper,
    "averaged": torch.optim.swa_utils.AveragedModel,
}


def copied_or_told(copy, model):
    """A copy's class, keys and bytes; of what torch itself does not copy, the error."""
    try:
        made = copy(model)
    except Exception as error:  # noqa: BLE001 - whatever torch says
        return repr(error)
    return type(made).__name__, repr(made), list(made.state_dict()), saved(made.state_dict())


# While something is compiled, no other module with hooks may be collected; see docs/limits.md.
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [True, False])
def test_r4_models_that_others_changed_or_wrapped(wrap, way, before):
    """Hooked before or after that: a copy is what it would be without hooks."""
    bare = wrap(build())
    bare(DIGITS)
    expected = copied_or_told(WAYS[way], bare)
    seen, model = Seen(), build()
    with ExitStack() as stack:
        wrapped = model if before else wrap(model)
        for manner in (torch_style, hook_objects, ready_made):
            manner(wrapped, stack, seen)
        wrapped = wrap(model) if before else wrapped
        wrapped(DIGITS)
        is_copy = before and wrap is torch.optim.swa_utils.AveragedModel
        assert bool(seen.count) != is_copy

        assert copied_or_told(WAYS[way], wrapped) == expected


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_r4_optimizers_and_schedules(kind):
    """Their state, and the objects themselves, are saved as without the hooks that watch steps."""

    def trained(stack):
        model = build().eval()
        optimizer = kind(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        if stack is not None:
            ready_made(model, stack, Seen())
            stack.enter_context(hookline.module_hooks.StatsHook(every=1).renamed("scope"))
        for _ in range(3):
            model(DIGITS).square().sum().backward()
            optimizer.step()
            schedule.step()
        state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        return saved(state), saved(optimizer), saved(schedule)

    expected = trained(None)
    with ExitStack() as stack:
        assert trained(stack) == expected


def test_r4_shared_memory(model, hook):
    """The tensors move, in this process as in another; the hooks stay on here."""
    hook()
    weight = model.state_dict()["0.0.weight"].clone()
    assert model.share_memory() is model
    assert all(tensor.is_shared() for tensor in model.state_dict().values())
    assert torch.equal(model.state_dict()["0.0.weight"], weight)
    assert module_switch


def test_r4_saving_inside_a_hook():
    """A hook that saves the model, as training loops do, saves the bare model."""
    model, files = build(), []

    class Saves(ModuleHook):
        def forward_postprocess(self, call):
            files.append(saved(call.module))
            files.append(pickle.dumps(copy.deepcopy(call.module)))

    with Saves(), hookline.register_forward_hook(model, lambda *args: files.append(saved(args[0]))):
        model(DIGITS)

    assert len(files) == 2 * len(list(model.modules())) + 1
    assert not any(b"hookline" in file for file in files)


def test_r4_a_model_that_keeps_its_handles():
    """Handles and `Hooks` objects as attributes: a copy has None there, and counts stay right."""

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.hooks = with_hooks(nn.Linear(2, 2))
            self.fired = 0
            self.hooks.add_forward_hook(self.fire)
            self.handle = hookline.register_full_backward_hook(self.layer, self.fire)

        def fire(self, *_):
            self.fired += 1

        def forward(self, x):
            return self.layer(x)

    model = Keeps()
    clone = copy.deepcopy(model)
    assert clone.hooks is clone.handle is None
    del clone
    gc.collect()
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert model.fired == 2

    hookline.clear_hooks(model)
    assert not module_switch


def keeps(make):
    """A model with something of ours as an attribute, and what that is."""
    model = build()
    model.ours = make(model)
    return model, model.ours


OPTIONS = {
    "TimerHook": {"history": 7},
    "CaptureHook": {"what": "input", "calls": "last"},
    "AttentionHook": {"calls": "first"},
    "NonFiniteHook": {"action": "warn", "allow": ["0.*"]},
    "StatsHook": {"every": 1},
    "PrintHook": {"file": io.StringIO()},
}
READY_MADE = [
    pytest.param(getattr(home, name), id=f"{home.__name__.rpartition('.')[2]}-{name}")
    for home in (hookline.module_hooks, hookline.function_hooks)
    for name in home.__all__
]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "copy"])
@pytest.mark.parametrize("kind", READY_MADE)
def test_r4_a_model_that_keeps_a_ready_made_hook(way, kind):
    """The copy has one with the same options and name, registered nowhere, with nothing measured.

    Also while it is registered, and inside of its own calls.
    """
    arguments = (torch.clone,) if kind.__name__.endswith("PatchHook") else ()
    hook = kind(*arguments, **OPTIONS.get(kind.name, {}))
    hook.name = "mine"
    model, _ = keeps(lambda _: hook)
    clones = []
    with hook, hookline.register_forward_hook(model[2], lambda *_: clones.append(WAYS[way](model))):
        model(DIGITS).sum().backward()
    clones.append(WAYS[way](model))

    for clone in clones:
        copied = clone.ours
        assert type(copied) is type(hook)
        assert copied is not hook
        assert copied.name == "mine"
        assert copied.watched_phases == hook.watched_phases
        assert not hasattr(copied, "rows") or copied.rows() == []
        with copied:
            clone(DIGITS).sum().backward()
    if isinstance(hook, TimerHook | FunctionTimer):
        assert len(clones[-1].ours.call_history) == 7
    if kind.name == "CaptureHook":
        captured = clones[-1].ours.captured.values()
        assert {(len(each), *each.last.kinds) for each in captured} == {(1, "input")}
    assert not module_switch


def test_r4_copies_of_a_users_hook_are_pythons_own():
    """With all its attributes, and registered nowhere."""

    class Counts(ModuleHook):
        def __init__(self):
            self.count = 0

        def forward_postprocess(self, call):
            self.count += 1

    model, hook = keeps(lambda model: Counts())
    with add_hook(model[2], hook):
        clone = copy.deepcopy(model)
        model(DIGITS)
        clone(DIGITS)
    assert (hook.count, clone.ours.count) == (1, 0)
    assert copy.deepcopy(model).ours.count == copy.copy(hook).count == 1


REGISTERED = {
    "watch": lambda model: hookline.watch(model, TimerHook()),
    "watch-own": lambda model: hookline.watch(model, Seen()),
    "patch": lambda model: hookline.patch(model, {"0.0": lambda value: value * 2}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", REGISTERED.values(), ids=REGISTERED)
def test_r4_a_model_that_keeps_what_is_registered(way, make):
    """A copy has None there, and the original's hooks stay on, whatever becomes of the copy."""
    model, ours = keeps(make)
    clone = WAYS[way](model)
    assert clone.ours is (ours if way == "copy" else None)
    assert WAYS[way](ours) is None
    del clone
    gc.collect()
    assert not ours.closed
    assert hooks_of(model)
    ours.close()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "copy"])
@pytest.mark.parametrize("options", [{}, {"copy": False}, {"keep_graph": True}], ids=str)
def test_r4_a_model_that_keeps_its_captures(way, options):
    """What was captured is in the copy, and nothing is being captured there."""
    model, acts = keeps(lambda model: hookline.capture(model, "0.0", "2", **options))
    model(DIGITS)
    clone = WAYS[way](model)
    expected = {name: each.output.detach().clone() for name, each in acts.items()}
    model(DIGITS)
    clone(DIGITS)
    acts.close()

    assert type(clone.ours) is hookline.Captures
    assert list(clone.ours) == list(expected) == ["0.0", "2"]
    for name, each in clone.ours.items():
        assert torch.equal(each.output, expected[name])
        assert not each.output.requires_grad
        assert each.output.data_ptr() != acts[name].first.output.data_ptr()
        assert (each.root, each.passes) == (acts[name].root, acts[name].passes[:1])
    assert len(acts["2"].outputs) == 2


@pytest.mark.parametrize("way", WAYS)
def test_r4_a_model_that_keeps_its_recording(way):
    """What was recorded is in the copy, also while it goes on; only the original goes on."""
    model, recording = keeps(lambda model: hookline.record(None, model))
    with recording:
        model(DIGITS)
        kept = WAYS[way](recording)
        clone = WAYS[way](model)
        model(DIGITS)

    assert type(kept) is hookline.Run
    assert [row["calls"] for row in kept.to_rows()] == [1] * 7
    assert [row["calls"] for row in recording.to_rows()] == [2] * 7
    assert type(clone.ours) is (hookline.Run if way != "copy" else type(recording))


def test_r4_repr_and_attributes_are_those_of_the_bare_model(model, hook):
    """What prints or lists the model sees nothing of its hooks."""
    expected = repr(model), dir(model), [vars(module).copy() for module in model.modules()]
    hook()
    children = (nn.Module, dict)
    found = repr(model), dir(model), [vars(module).copy() for module in model.modules()]

    assert found[:2] == expected[:2]
    for a, b in zip(found[2], expected[2], strict=True):
        assert a.keys() == b.keys()
        assert all(a[name] is b[name] for name in a if not isinstance(a[name], children))
        assert not any(a[name] for name in a if name.endswith("_hooks"))


# ---------------------------------------------------------------------------- R12: processes

FORK = """
import os, sys, warnings
import torch
from torch import nn
import hookline
from hookline import ModuleHook, function_hooks, module_hooks
from hookline.core.demand import demand
from hookline.core.thread import module_switch
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.core.records import TimeRow
from hookline.record.measures import Measures
from hookline.record.run import Recorder

CALL, RUN = nn.Module.__call__, torch.autograd._engine_run_backward
calls = []


class Hook(ModuleHook):
    def forward_preprocess(self, call):
        calls.append("begin")

    def forward_postprocess(self, call):
        calls.append("end")

    def backward_preprocess(self, call):
        calls.append("backward")

    def aborted(self, call, exception):
        calls.append("aborted")

    def deleted(self, target):
        calls.append("deleted")


def step(model):
    model(torch.tensor([[1.0, torch.inf]])).sum().backward()


def is_bare():
    return (
        nn.Module.__call__ is CALL
        and torch.autograd._engine_run_backward is RUN
        and torch._C._len_torch_function_stack() == 0
        and torch.backends.mha.get_fastpath_enabled()
        and not torch.nn.modules.module._global_module_registration_hooks
        and not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
        and not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
        and (demand.backward, demand.clock) == (0, 0)
        and not module_switch
        and not hookline.get_module_hooks()
    )


def in_child(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run_fork(tmp_path, code):
    """What a program prints that forks; it runs alone, as forks and our threads do not mix."""
    (tmp_path / "program.py").write_text(FORK + code)
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stderr, result.returncode) == ("", 0)
    return result.stdout


def test_r12_in_a_forked_child_nothing_is_on(tmp_path):
    """No hook of any manner fires, nothing is patched; in the parent all goes on."""
    code = """
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
fires = lambda *_: calls.append("hook")
manners = [
    Hook,
    FunctionTimer,
    lambda: Recorder(Measures(time=True, level="both")),
    lambda: hookline.register_forward_hook(model, fires),
    lambda: hookline.register_module_full_backward_hook(fires),
    lambda: hookline.add_hook(model[0], Hook()),
    lambda: hookline.capture(model, "0", "0:linear"),
    lambda: hookline.patch(model, {"0": lambda value: calls.append("patch") or value}),
    lambda: hookline.watch(model, Hook(), FunctionTimer()),
    lambda: module_hooks.StatsHook(every=1),
    lambda: function_hooks.StatsHook(every=1),
    lambda: module_hooks.NonFiniteHook(),
    lambda: function_hooks.NonFiniteHook(),
]
def bare():
    calls.clear()
    step(model)
    return is_bare() and not calls and not hookline.hooks_of(model)
for manner in manners:
    with manner() as on:
        child = in_child(bare)
        was_on = not is_bare()
        step(model)
        seen = on.tables() if isinstance(on, Recorder) else calls
        seen = on.rows() if hasattr(on, "rows") else seen or [*on]
        print(child, was_on, len(seen) > 0, end=" ")
    print(is_bare())
    calls.clear()
"""
    assert run_fork(tmp_path, code) == "0 True True True\n" * 13


def test_r12_a_scope_can_be_left_in_the_child(tmp_path):
    """Leaving, in the child, the scope that the parent opened does nothing and is no error."""
    code = """
child = None
hook = Hook()
handle = hookline.register_forward_hook(nn.Linear(2, 2), print)
with hook, FunctionTimer(), hook.renamed("again"), Recorder(Measures(time=True)):
    child = os.fork()
    calls.clear()
handle.remove()
if child == 0:
    sys.exit(0 if is_bare() and calls == [] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), calls, is_bare())
"""
    assert run_fork(tmp_path, code) == "0 ['deleted', 'deleted'] True\n"


def test_r12_a_child_can_use_hooks_of_its_own(tmp_path):
    """After the fork, hooks work in the child as in any process."""
    code = """
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
def use():
    calls.clear()
    with Hook(), FunctionTimer() as timer:
        step(model)
    counted = calls.count("begin"), calls.count("end"), calls.count("backward")
    return counted == (3, 3, 3) and timer.summary()["linear"]["occurrence"] == 2 and is_bare()
with Hook():
    step(model)
    print(in_child(use))
"""
    assert run_fork(tmp_path, code) == "0\n"


def test_r12_a_fork_in_the_middle_of_a_call(tmp_path):
    """A forward or a hook that forks: the child comes out of the call, without events."""
    code = """
class Forks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.child = nn.Linear(2, 2), None
    def forward(self, x):
        self.child = os.fork()
        calls.append(self.child == 0)
        return self.layer(x)
model = nn.Sequential(Forks())
with Hook():
    y = model(torch.ones(1, 2))
    y.sum().backward()
child = model[0].child
if child == 0:
    sys.exit(0 if calls == ["begin", "begin", True] and is_bare() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_bare(), len(calls))
"""
    assert run_fork(tmp_path, code).split()[:2] == ["0", "True"]


def test_r12_scopes_of_other_threads_do_not_come_along(tmp_path):
    """The child has the forking thread only; scopes that others had open leave no trace."""
    code = """
import threading
warnings.simplefilter("error")  # a warning about the lost scope would be told by nobody's process
opened, go = threading.Event(), threading.Event()
def work():
    with Hook(), FunctionTimer():
        opened.set()
        go.wait()
thread = threading.Thread(target=work)
thread.start()
opened.wait()
print(in_child(is_bare))
go.set()
thread.join()
print(is_bare())
"""
    assert run_fork(tmp_path, code) == "0\nTrue\n"


LOADER = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import hookline
from hookline import ModuleHook

CALL = nn.Module.__call__


class Hook(ModuleHook):
    def __init__(self):
        self.events = 0

    def forward_preprocess(self, call):
        self.events += 1


class Rows(Dataset):
    '''Runs a hooked model in the worker, and tells whether anything is on there.'''

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 2))
        hookline.register_forward_hook(self.model, lambda *_: sys.exit("fired in a worker"))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        from hookline.core.thread import module_switch

        out = self.model(torch.ones(1, 2))
        bare = nn.Module.__call__ is CALL and not module_switch
        bare = bare and torch._C._len_torch_function_stack() == 0
        return bare and not hookline.hooks_of(self.model) and out.shape == (1, 2)


if __name__ == "__main__":
    from hookline.function_hooks import TimerHook

    torch.set_num_threads(1)
    rows, hook = Rows(), Hook()
    with hook, TimerHook():
        loader = DataLoader(rows, num_workers=1, multiprocessing_context=sys.argv[1])
        print([bool(row) for row in loader])
        nn.Linear(2, 2)(torch.ones(1, 2))
    print(hook.events)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_r12_workers_of_a_data_loader_carry_nothing(tmp_path, method):
    """However workers are started, no hook runs there, and those of the parent go on."""
    (tmp_path / "loader.py").write_text(LOADER)
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "loader.py", method],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.stdout, result.returncode) == ("[True, True, True, True]\n1\n", 0), result.stderr


# ------------------------------------------------------------------------------- R5: freed


class Box:
    """Holds a tensor saved for the backward, and counts how many are alive."""

    alive = made = 0

    def __init__(self, tensor):
        self.tensor = tensor
        Box.alive += 1
        Box.made += 1

    def __del__(self):
        Box.alive -= 1


def nothing(model, x):
    """Only the forward."""
    return model(x)


def backward(model, x):
    y = model(x)
    y.sum().backward()
    return y


def partial_backward(model, x):
    y = model(x)
    torch.autograd.grad(y.sum(), list(model.parameters())[:1], allow_unused=True)
    return y


def second_order(model, x):
    y = model(x)
    torch.autograd.grad(y.square().sum(), list(model.parameters()), create_graph=True)
    return y


def failing_forward(model, x):
    y = model(x)
    with pytest.raises(RuntimeError):
        model(x[:, 1:])
    return y


def failing_backward(model, x):
    y = model(x)
    y.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    return y


USES = [nothing, backward, partial_backward, second_order, failing_forward, failing_backward]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: manner.__name__)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_r5_graph_and_model_are_freed(manner, use):
    """With hooks on, dropping the output frees the graph, and dropping the model its modules."""
    seen = Seen()
    with ExitStack() as stack:
        model = build()
        manner(model, stack, seen)
        Box.alive = Box.made = 0
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Box(tensor.detach()), lambda box: box.tensor
        ):
            y = use(model, DIGITS.clone().requires_grad_())
        assert Box.made > 0
        output, modules = weakref.ref(y), [weakref.ref(module) for module in model.modules()]
        model.zero_grad()
        del y
        gc.collect() if use in (failing_forward, failing_backward) else None  # pytest's own cycles
        assert Box.alive == 0
        assert output() is None

        del model
        assert [module() for module in modules] == [None] * len(modules)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "manner", [value_hooks, torch_style, hook_objects], ids=lambda manner: manner.__name__
)
def test_r5_hooks_on_a_model_go_with_it(manner):
    """A model dropped with its hooks on it frees them, and the engine is off."""
    seen, model = Seen(), build()
    hook = weakref.ref(seen)
    with ExitStack() as stack:
        manner(model, stack, seen)
        stack.pop_all()  # nobody removes them
    backward(model, DIGITS)
    assert module_switch

    del model, seen
    assert hook() is None
    assert not module_switch


@pytest.mark.usefixtures("no_collector")
def test_r5_calls_that_a_hook_keeps_hold_no_tensor():
    """A call object may be kept; inputs, outputs, gradients and modules are not kept with it."""
    kept, tensors = [], []

    class Keeps(Seen):
        def note(self, call):
            kept.append(call)
            values = [call.out, *(call.args or call.grad_output), *(call.grad_input or ())]
            tensors.extend(weakref.ref(value) for value in values if value is not None)

        forward_preprocess = forward_postprocess = note
        backward_preprocess = backward_postprocess = note

    model = build()
    modules = [weakref.ref(module) for module in model.modules()]
    with Keeps():
        backward(model, DIGITS.clone().requires_grad_())
    del model

    assert len(tensors) > 20
    assert not [tensor for tensor in tensors if tensor() is not None]
    assert [module() for module in modules] == [None] * len(modules)
    call = kept[0]
    assert (call.args, call.kwargs, call.out, call.grad_input, call.grad_output) == (None,) * 5
    with pytest.raises(ReferenceError, match=r"the module of 0\.0 \(Linear\), call 0 is gone"):
        next(call for call in kept if call.path == "0.0").module  # noqa: B018


@pytest.mark.usefixtures("no_collector")
def test_r5_a_removed_hook_leaves_no_trace():
    """A hook that is removed is freed, though others stay registered and scopes are open."""
    model = build()
    with Seen().renamed("other"), hookline.register_forward_hook(model[0], lambda *_: None):
        for manner in (torch_style, on_all_modules, hook_objects, scope, timers):
            seen = Seen()
            hook = weakref.ref(seen)
            with ExitStack() as stack:
                manner(model, stack, seen)
                backward(model, DIGITS)
                del seen
                assert hook() is not None
            assert hook() is None, manner


@pytest.mark.usefixtures("no_collector")
def test_r5_memory_is_flat_over_passes():
    """Passes leave nothing behind: no object is kept for each of them."""
    model = build()
    hook = Seen()
    with hook:
        counts = []
        for _ in range(4):
            for _ in range(100):
                backward(model, DIGITS)
            counts.append(len(gc.get_objects()))

    assert counts[3] - counts[2] < 50


def test_r5_a_thread_that_ends_inside_of_a_scope():
    """The hooks of a thread go with it, with a warning, and the engine is off."""
    seen = Seen()

    def work():
        seen.__enter__()
        build()(DIGITS)

    thread = threading.Thread(target=work)
    thread.start()
    with pytest.warns(ResourceWarning, match="a thread ended inside of `with` for Seen"):
        thread.join()

    assert seen.count == 14
    assert not module_switch
    build()(DIGITS)
    assert seen.count == 14
