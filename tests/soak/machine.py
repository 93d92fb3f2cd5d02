"""Random programs of hooks on one model, whose every event is compared with the plain rules.

A step registers, removes, opens, leaves, copies, arms a hook to raise or to change what is
registered in the middle of an event, or runs the model forward or backward. After each step the
events must be those that `world` says, outputs and gradients those of the model without hooks, bit
for bit, and the listings must show what is registered.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import FunctionHook, FunctionNode, ModuleHook, Phase
from hookline.core.thread import local
from hookline.modules.places import everywhere, registry_of, table
from hookline.torch_base.private import torch_function_off
from tests.conftest import leftovers
from tests.soak.world import PATHS, Forward, Hook, RaisedError, Registration, Run, World

X = torch.linspace(-1, 1, 6).reshape(2, 3)
ONES = torch.ones(2, 3)
NAMES = ("one", "two", "three")

# The model that `world` describes.


class BoomError(Exception):
    """What hooks, the model and its backward raise."""


class Fault(torch.autograd.Function):
    """Nothing, but for a backward that fails when it is told to."""

    failing = None

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        error, Fault.failing = Fault.failing, None
        if error is not None:
            raise error
        return gradient


class Failing(nn.Module):
    """A module that fails when it has run, if it is told to."""

    failing: Exception | None = None

    def forward(self, x):
        y = self.run(x)
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        return y


class Linear(Failing, nn.Linear):
    def run(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class Act(Failing):
    def __init__(self):
        super().__init__()
        self.tanh = FunctionNode(torch.tanh)

    def run(self, x):
        return Fault.apply(self.tanh(x))


class Block(Failing):
    def __init__(self):
        super().__init__()
        self.lin = Linear(3, 3)
        self.act = Act()

    def run(self, x):
        return x + self.act(self.lin(x))


class Net(Failing):
    def __init__(self):
        super().__init__()
        self.a = Linear(3, 3)
        self.block = Block()
        self.checkpoint = ""

    def run(self, x):
        x = self.a(x)
        if self.checkpoint:
            x = checkpoint(self.block, x, use_reentrant=self.checkpoint == "reentrant")
        else:
            x = self.block(x)
        return self.a(x)


def new_net():
    torch.manual_seed(0)
    return Net()


def make_known(net):
    """Let it be known which root its modules have, also where a checkpoint calls one of them."""
    with hookline.watch(net, ModuleHook()):
        pass


def at(net, path):
    return net.get_submodule(path)


# Hooks that note what they are told.


class Callbacks:
    """One hook as the library has it: notes each event, and does what it was armed with."""

    def __init__(self, machine, hook):
        self.machine = machine
        self.hook = hook
        self.arms: dict[str, Callable[[], None]] = {}
        self.watched_phases = tuple(Phase(phase) for phase in Phase if phase in hook.phases)

    def note(self, phase, *told):
        self.machine.log.append((self.hook.number, phase, *told))
        arm = self.arms.pop(phase, None)
        if arm is not None:
            arm()

    def added(self, target):
        self.note("added", target is None)

    def deleted(self, target):
        self.note("deleted", target is None)

    def aborted(self, call, exception):
        self.tell("aborted", call)

    def torch_hook(self, phase):
        net_of = self.machine.path_of
        if phase == "forward":
            return lambda module, args, out: self.note(phase, net_of(module))
        if phase == "backward":
            return lambda module, grads, out: self.note(phase, net_of(module))
        return lambda module, values: self.note(phase, net_of(module))

    def value_hook(self, phase):
        return lambda *_: self.note(phase)


class OfModules(Callbacks, ModuleHook):
    def tell(self, phase, call):
        self.note(phase, call.path, call.index, call.recomputing)

    def forward_preprocess(self, call):
        self.tell("forward_pre", call)

    def forward_postprocess(self, call):
        self.tell("forward", call)

    def backward_preprocess(self, call):
        self.tell("backward_pre", call)

    def backward_postprocess(self, call):
        self.tell("backward", call)


class OfFunctions(Callbacks, FunctionHook):
    def tell(self, phase, call):
        self.note(phase, call.module_path, call.name, call.index, call.recomputing)

    def forward_preprocess(self, function, in_data):
        self.tell("forward_pre", function)

    def forward_postprocess(self, function, in_data):
        self.tell("forward", function)

    def backward_preprocess(self, function, in_data, out_grad):
        self.tell("backward_pre", function)

    def backward_postprocess(self, function, in_data, out_grad):
        self.tell("backward", function)


KINDS = {"module": OfModules, "function": OfFunctions, "torch": Callbacks, "value": Callbacks}
phases = st.frozensets(st.sampled_from([str(p.value) for p in Phase]), min_size=1)
torch_phases = st.sampled_from([str(p.value) for p in Phase])
value_phases = st.sampled_from(["forward_pre", "forward", "backward_pre"])
names = st.sampled_from(NAMES)
paths = st.sampled_from(PATHS)


@dataclass(eq=False)
class Both:
    """A registration on both sides, and how it is undone."""

    model: Registration
    real: Callbacks
    remove: Callable[[], None]

    def __repr__(self):
        hook, key = self.model.hook, self.model.key
        phases = ", ".join(sorted(hook.phases))
        return f"<{hook.number}: {hook.manner} {phases} in {self.model.place} as {key}>"


@dataclass(eq=False)
class Graph:
    """What a forward left: in the library an output, in the model its calls."""

    number: int
    net: Net
    out: torch.Tensor
    run: Run

    def __repr__(self):
        return f"<graph {self.number} {self.run.checkpoint}>"


class Machine(RuleBasedStateMachine):
    """Both sides, step by step."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.log: list[tuple[Any, ...]] = []
        self.both: list[Both] = []
        self.graphs: list[Graph] = []
        self.copies: list[Net] = []
        self.numbers = self.forwards = 0
        self.net = new_net()
        self.plain = results(new_net())
        self.net.block.lin, self.hooks = hookline.with_hooks(self.net.block.lin)
        make_known(self.net)

    def path_of(self, module):
        for net in (self.net, *self.copies):
            for path in PATHS:
                if at(net, path) is module:
                    return path
        return None

    # Registering.

    def hook(self, manner, phases, *, always=False):
        self.numbers += 1
        hook = Hook(self.numbers, manner, frozenset(phases), always)
        real = KINDS[manner](self, hook)
        return hook, real

    def put(self, hook, real, place, key, register, *, prepend=False):
        """Register on both sides, without callbacks."""
        registration = Registration(hook, place, key)
        self.world.add(registration, prepend=prepend)
        handle = register()
        self.both.append(Both(registration, real, handle.remove))
        return self.both[-1]

    @rule(phase=torch_phases, path=paths, prepend=st.booleans(), always=st.booleans())
    def register(self, phase, path, prepend, always):
        self.register_torch(phase, path, prepend=prepend, always=always)

    def register_torch(self, phase, path, *, prepend=False, always=False):
        name = {"backward_pre": "full_backward_pre", "backward": "full_backward"}.get(phase, phase)
        register = getattr(hookline, f"register_{name}_hook")
        options = {"prepend": prepend}
        if phase == "forward":
            options["always_call"] = always
        hook, real = self.hook("torch", {phase}, always=always and phase == "forward")
        self.put(
            hook,
            real,
            f"at {path}",
            None,
            lambda: register(at(self.net, path), real.torch_hook(phase), **options),
            prepend=prepend,
        )

    @rule(phase=torch_phases, prepend=st.booleans())
    def register_everywhere(self, phase, prepend):
        name = {"backward_pre": "full_backward_pre", "backward": "full_backward"}.get(phase, phase)
        register = getattr(hookline, f"register_module_{name}_hook")
        hook, real = self.hook("torch", {phase})
        self.put(
            hook,
            real,
            "all",
            None,
            lambda: register(real.torch_hook(phase), prepend=prepend),
            prepend=prepend,
        )

    @rule(phase=value_phases)
    def register_value(self, phase):
        hook, real = self.hook("value", {phase})
        kind = {"backward_pre": "backward"}.get(phase, phase)
        self.put(
            hook,
            real,
            "at block.lin",
            None,
            lambda: self.hooks.add(kind, real.value_hook(phase)),
        )

    @rule(phases=phases, path=paths, name=names)
    def add_to_module(self, phases, path, name):
        self.add_object("module", phases, f"at {path}", name)

    @rule(phases=phases, name=names)
    def add_to_node(self, phases, name):
        self.add_object("function", phases, "node", name)

    def add_object(self, manner, phases, place, name):
        hook, real = self.hook(manner, phases)
        node = self.net.block.act.tanh

        def add():
            if manner == "module":
                hookline.add_hook(at(self.net, place.removeprefix("at ")), real, name)
            else:
                node.add_hook(real, name)

        def delete():
            if manner == "module":
                hookline.delete_hook(at(self.net, place.removeprefix("at ")), name)
            else:
                node.delete_hook(name)

        self.try_object(Registration(hook, place, name), real, add, delete)

    @rule(phases=phases, name=names, manner=st.sampled_from(["module", "function"]))
    def enter(self, phases, name, manner):
        self.open_scope(*self.hook(manner, phases), f"{manner}s", name)

    def open_scope(self, hook, real, place, name):
        scope = real.renamed(name)
        self.try_object(
            Registration(hook, place, name),
            real,
            scope.__enter__,
            lambda: scope.__exit__(None, None, None),
        )

    @rule(data=st.data(), name=names)
    def enter_again(self, data, name):
        """The same hook object as a scope of another name."""
        open_ = [b for b in self.living() if b.model.place in ("modules", "functions")]
        if open_:
            both = pick(data, open_)
            self.open_scope(both.model.hook, both.real, both.model.place, name)

    def try_object(self, registration, real, enter, leave):
        """Register a hook object on both sides: the name may be taken, `added` may raise."""
        if registration.hook.number % 5 == 0:
            registration.hook.arms["added"], real.arms["added"] = self.arms_raise(None)
        told = registration.place in ("modules", "functions")
        both = Both(registration, real, leave)
        self.both.append(both)  # an action in `added` may mean it

        def in_world():
            if self.world.has(registration.place, registration.key):
                registration.alive = False
                msg = "taken"
                raise RaisedError(msg)
            self.world.enter(registration, told)

        expected = outcome(in_world, RaisedError)
        got = outcome(enter, (BoomError, KeyError))
        assert (got is None) == (expected is None), (got, expected)
        if expected is not None and expected.what == "taken":
            assert isinstance(got, hookline.HookNameError)

    # Removing.

    def living(self):
        return [b for b in self.both if b.model.alive]

    @precondition(lambda self: self.living())
    @rule(data=st.data(), fails=st.booleans())
    def remove(self, data, fails):
        both = pick(data, self.living())
        if fails and both.model.hook.paired:
            hook = both.model.hook
            hook.arms["deleted"], both.real.arms["deleted"] = self.arms_raise(data)
        self.undo(both)

    def undo(self, both):
        expected = outcome(lambda: self.undo_in_world(both.model), RaisedError)
        got = outcome(both.remove, BoomError)
        assert (got is None) == (expected is None), (got, expected)

    def undo_in_world(self, registration):
        place, hook = registration.place, registration.hook
        if place in ("modules", "functions"):  # a hook leaves its innermost scope
            same = [r for r in self.world.at(place) if r.hook is hook]
            self.world.leave(same[-1], True)
        elif hook.paired:
            self.world.leave(registration, False)
        else:
            self.world.remove(registration)

    @precondition(lambda self: len(self.living()) > 8)
    @rule()
    def clear(self):
        """All on the modules of the model goes, the last in the order of the listing first."""
        listed = dict.fromkeys(path for path, _ in self.net.named_modules())
        places = [f"at {path}" for path in listed]
        gone = [r for place in places for r in self.world.at(place)]
        hookline.clear_hooks(self.net)
        for registration in reversed(gone):
            self.discard_in_world(registration)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def handle_removed_twice(self, data):
        """A second `remove` of a handle does nothing."""
        gone = [b for b in self.both if not b.model.alive and not b.model.hook.paired]
        if gone:
            pick(data, gone).remove()

    # What happens in the middle of an event.

    def arm_some(self, data):
        """Let hooks raise, or change what is registered, in the middle of what is run next."""
        if self.living():
            for _ in range(data.draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
                self.arm(data)

    def arm(self, data):
        both = pick(data, self.living())
        hook = both.model.hook
        places = [*sorted(hook.phases), *(["aborted"] if hook.paired else [])]
        phase = data.draw(st.sampled_from(places))
        if phase not in hook.arms:
            what = data.draw(
                st.sampled_from(["raise", "remove", "remove", "add", "torch", "enter"])
            )
            # A hook of the same event is the one whose removal could be missed.
            others = [b for b in self.living() if phase in b.model.hook.phases and b is not both]
            if what == "remove" and others:
                hook.arms[phase], both.real.arms[phase] = self.removes(pick(data, others))
            else:
                hook.arms[phase], both.real.arms[phase] = getattr(self, f"arms_{what}")(data)

    def arms_raise(self, _):
        def in_world():
            msg = "hook"
            raise RaisedError(msg)

        def really():
            self.raised = BoomError("hook")
            raise self.raised

        return in_world, really

    def arms_remove(self, data):
        """Something registered is removed, perhaps the hook itself."""
        return self.removes(pick(data, self.living()))

    def removes(self, both):
        return lambda: self.discard_in_world(both.model), self.handle_of(both)

    def discard_in_world(self, registration):
        if registration.alive and registration.hook.paired:
            self.world.leave(registration, registration.place in ("modules", "functions"))
        else:
            self.world.remove(registration)

    def handle_of(self, both):
        """Takes just this registration off, not a later one of the same hook and name."""
        if not both.model.hook.paired:
            return both.remove
        found = (
            handle.remove
            for handle in self.registry(both.model.place)
            if handle.hook is both.real and handle.entry.key == both.model.key
        )
        return next(found, lambda: None)  # where the two have parted, the events tell

    def registry(self, place):
        thread = local.thread
        known = {
            "modules": thread.modules,
            "functions": thread.functions,
            "node": self.net.block.act.tanh.registry,
        }
        return known.get(place) or registry_of(at(self.net, place.removeprefix("at ")))

    def arms_torch(self, data):
        """Another hook is registered on some module."""
        phase, path = data.draw(torch_phases), data.draw(paths)
        name = {"backward_pre": "full_backward_pre", "backward": "full_backward"}.get(phase, phase)
        register = getattr(hookline, f"register_{name}_hook")
        hook, real = self.hook("torch", {phase})
        registration = Registration(hook, f"at {path}")
        registration.alive = False
        both = Both(registration, real, lambda: None)
        self.both.append(both)

        def really():
            both.remove = register(at(self.net, path), real.torch_hook(phase)).remove

        return lambda: self.world.add(registration), really

    def arms_add(self, data):
        """A hook object is added to some module or to the function; it may displace a scope."""
        place = data.draw(st.sampled_from(["node", *(f"at {path}" for path in PATHS)]))
        return self.arms_object(data, place)

    def arms_enter(self, data):
        """A scope is opened."""
        return self.arms_object(data, data.draw(st.sampled_from(["modules", "functions"])))

    def arms_object(self, data, place):
        manner = "function" if place in ("node", "functions") else "module"
        name = data.draw(names)
        hook, real = self.hook(manner, data.draw(phases))
        registration = Registration(hook, place, name, alive=False)
        both = Both(registration, real, lambda: None)
        self.both.append(both)
        told = place in ("modules", "functions")

        def in_world():
            if not self.world.has(place, name):
                self.world.enter(registration, told)

        def really():
            if place == "node":
                node = self.net.block.act.tanh
                enter, leave = lambda: node.add_hook(real, name), lambda: node.delete_hook(name)
            elif told:
                scope = real.renamed(name)
                enter, leave = scope.__enter__, lambda: scope.__exit__(None, None, None)
            else:
                module = at(self.net, place.removeprefix("at "))
                enter = lambda: hookline.add_hook(module, real, name)  # noqa: E731
                leave = lambda: hookline.delete_hook(module, name)  # noqa: E731
            both.remove = leave
            try:
                enter()
            except hookline.HookNameError:
                return

        return in_world, really

    # Running.

    @rule(
        data=st.data(),
        grad=st.booleans(),
        checkpointed=st.sampled_from(["", "", "reentrant", "plain"]),
        fault=st.one_of(st.none(), st.none(), paths),
    )
    def run(self, data, grad, checkpointed, fault):
        net = pick(data, [self.net, self.net, *self.copies])
        checkpointed = checkpointed if grad else ""
        self.arm_some(data)
        forward = Forward(grad, checkpointed, net is not self.net, fault)
        net.checkpoint = checkpointed
        self.forwards += 1
        if fault is not None:
            at(net, fault).failing = BoomError("model")
        calls = []
        expected = outcome(lambda: calls.append(self.world.forward(forward)), RaisedError)
        outputs = []
        with torch.set_grad_enabled(grad):
            got = outcome(lambda: outputs.append(net(X)), BoomError)
        for path in PATHS:
            at(net, path).failing = None
        self.compare(expected, got)
        if outputs:
            assert same(outputs[0], self.plain[0])
            if grad:
                run = Run(calls[0], False, checkpointed, net is not self.net)
                self.graphs.append(Graph(self.forwards, net, outputs[0], run))

    @precondition(lambda self: self.graphs)
    @rule(data=st.data(), retain=st.booleans(), fault=st.sampled_from([False, False, True]))
    def backward(self, data, retain, fault):
        graph = pick(data, self.graphs)
        self.arm_some(data)
        if not retain:
            self.graphs.remove(graph)
        run = Run(graph.run.top, fault, graph.run.checkpoint, graph.run.bare)
        Fault.failing = BoomError("backward") if fault else None
        expected = outcome(lambda: self.world.backward(run), RaisedError)
        net, out = graph.net, graph.out
        net.zero_grad()
        got = outcome(lambda: out.backward(ONES, retain_graph=retain), BoomError)
        Fault.failing = None
        self.compare(expected, got)
        if got is None:
            for parameter, plain in zip(net.parameters(), self.plain[1], strict=True):
                assert same(parameter.grad, plain)
        elif graph in self.graphs:
            self.graphs.remove(graph)  # torch gives no promise about it

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def drop(self, data):
        self.graphs.remove(pick(data, self.graphs))

    @precondition(lambda self: not self.world.at("functions"))  # copying calls functions
    @rule(by=st.sampled_from([copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))]))
    def copy(self, by):
        """Hooks do not travel: the copy has scopes and hooks on all modules, no more."""
        self.copies.append(by(self.net))
        assert hookline.hooks_of(self.copies[-1]) == []
        make_known(self.copies[-1])

    def compare(self, expected, got):
        assert (got is None) == (expected is None), (got, expected)
        if got is not None:
            assert str(got) == expected.what

    # After each step.

    @invariant()
    def events_are_those_of_the_rules(self):
        got, self.log = self.log, []
        expected, self.world.log = self.world.log, []
        got = [_as_far_as_known(g, *e) for g, *e in zip_longest(got, expected)]
        assert got == expected, "\n".join(f"{g} for {e}" for g, e in zip_longest(got, expected))

    @invariant()
    def listings_show_what_is_registered(self):
        scopes = {
            "modules": hookline.get_module_hooks(),
            "functions": hookline.get_function_hooks(),
        }
        for place, listed in scopes.items():
            here = [(r.key, r.hook.number) for r in self.world.at(place)]
            assert [(name, hook.hook.number) for name, hook in listed.items()] == here
        listed = [(f"at {row.path}", row.phase.value) for row in hookline.hooks_of(self.net)]
        for path in PATHS:
            here = [r.hook for r in self.world.at(f"at {path}")]
            assert [phase for place, phase in listed if place == f"at {path}"] == [
                phase.value for hook in here for phase in Phase if phase.value in hook.phases
            ]

    def teardown(self):
        for both in self.living():
            self.handle_of(both)()
        with FunctionHook():  # takes along the mode of one that was removed in its own event
            pass
        left = leftovers()
        thread = local.thread
        node = self.net.block.act.tanh.registry
        for registry in (*table.values(), everywhere, thread.modules, thread.functions, node):
            registry.clear()  # so that one program's fault is not the next one's
        Fault.failing = None
        assert left == []


def _as_far_as_known(got, expected=None):
    """The event without the call's index, where the rules do not lay it down."""
    if got is None or expected is None or len(got) < 5 or expected[-2] is not None:
        return got
    return (*got[:-2], None, got[-1])


def pick(data, values):
    """One of several; drawn by number, so that a failing program prints short."""
    return values[data.draw(st.integers(0, len(values) - 1))]


def outcome(work, errors):
    """What it raised, or None."""
    try:
        work()
    except errors as error:
        return error
    return None


def same(a, b):
    """Whether two tensors are bitwise the same; no function that scopes would see."""
    with torch_function_off():
        return torch.equal(a, b)


def results(net):
    """Output and gradients of a model that nobody watches."""
    out = net(X)
    out.backward(ONES)
    return out.detach(), [parameter.grad for parameter in net.parameters()]


def run_machine(*, seconds, steps=50, batch=200, number=None):
    """Run random programs for a time, in batches that can be run again by their number.

    Gives how many programs ran.
    """
    number = int(time.time()) if number is None else number
    end, programs = time.monotonic() + seconds, 0
    options = settings(max_examples=batch, stateful_step_count=steps, deadline=None, database=None)
    while time.monotonic() < end:
        print(f"batch {number}", flush=True)
        run_state_machine_as_test(seed(number)(type("Batch", (Machine,), {})), settings=options)
        number, programs = number + 1, programs + batch
    return programs
