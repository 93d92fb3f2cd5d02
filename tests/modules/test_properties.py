"""Random models under random hooks of all manners, against a plain interpreter of the rules.

The interpreter knows neither hookline nor autograd: it runs a model with loops over lists of
hooks, and backward by the formulas of the layers. Whatever hooks there are, in whatever order, and
whichever of them are removed in between: the same hooks must be called, in the same order, with the
same values, and the same results must come out.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import hookline
from hookline import GradInput, Phase
from hookline.core.demand import demand
from hookline.core.thread import local, module_switch
from hookline.torch_base.tree import leaves, map_tensors, tensors

WIDTH = 4
PHASES = [phase.value for phase in Phase]

ORIGINALS = nn.Module.__call__, torch.autograd._engine_run_backward

# Each example checks for itself that nothing is left behind.
thorough = partial(
    settings, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_nothing_left():
    """No hook, patch or state of hookline is on."""
    thread = local.thread
    assert (nn.Module.__call__, torch.autograd._engine_run_backward) == ORIGINALS
    assert not module_switch
    assert (demand.backward, demand.clock) == (0, 0)
    assert not any((thread.stack, thread.runs, thread.busy, thread.culprit))


# Models.


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight


class Total(nn.Module):
    """The sum of what its parts make of one input."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return sum(part(x) for part in self.parts)


class Residual(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + self.part(x)


class Twice(nn.Module):
    """Calls one module two times."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(self.part(x))


LEAVES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH, dtype=torch.float64),
    "scale": Scale,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}
CONTAINERS = {"chain": nn.Sequential, "total": Total, "residual": Residual, "twice": Twice}


def _parts(kind, parts):
    return (kind, parts[:1]) if kind in ("residual", "twice") else (kind, parts)


specs = st.recursive(
    st.sampled_from(sorted(LEAVES)).map(lambda kind: (kind, [])),
    lambda inner: st.builds(
        _parts, st.sampled_from(sorted(CONTAINERS)), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


@dataclass
class Node:
    """A module of a random model.

    Attributes:
        kind: what it computes.
        parts: the modules in it.
        shells: the objects it can be called by: wrappers, outermost first, then the layer.
        wrappers: the `Hooks` of the wrappers.
        registries: what the interpreter has registered on each shell.
    """

    kind: str
    parts: list[Node]
    shells: list[nn.Module]
    wrappers: list[hookline.Hooks] = field(default_factory=list)
    registries: list[list[Hook]] = field(default_factory=list)
    index: int = -1

    def walk(self):
        yield self
        for part in self.parts:
            yield from part.walk()


def build(spec, wrapping):
    """A model for a spec; `wrapping` says how many wrappers each module gets."""
    kind, inner = spec
    parts = [build(each, wrapping) for each in inner]
    layer = LEAVES[kind]() if kind in LEAVES else CONTAINERS[kind](*(p.shells[0] for p in parts))
    node = Node(kind, parts, [layer])
    for _ in range(next(wrapping, 0)):
        shell, hooks = hookline.with_hooks(node.shells[0])
        node.shells.insert(0, shell)
        node.wrappers.insert(0, hooks)
    node.registries = [[] for _ in node.shells]
    return node


# Hooks.


@dataclass(eq=False)
class Hook:
    """One hook, for hookline and for the interpreter.

    What it does to a value is `value * factor + offset`, and `value * factor` to a gradient.
    """

    name: int
    manner: str
    phases: list[str]
    changes: bool
    prepend: bool
    scope: str
    target: int
    needs_grad_input: bool
    victim: Hook | None = None
    fired: bool = False
    remove: Callable[[], None] | None = None
    places: list[list[Hook]] = field(default_factory=list)

    @property
    def factor(self):
        return 0.5 + 0.25 * (self.name % 5)

    @property
    def offset(self):
        return 0.125 * self.name

    def changed(self, value, phase):
        if not self.changes:
            return None
        return value * self.factor + (self.offset if phase.startswith("forward") else 0)


@st.composite
def hook_lists(draw):
    """Hooks of all manners and places, some of which remove another when they first fire."""
    made = []
    for name in range(draw(st.integers(0, 7))):
        manner = draw(st.sampled_from(["value", "torch", "object"]))
        phases = draw(st.lists(st.sampled_from(PHASES), min_size=1, max_size=4, unique=True))
        scope = "local" if manner == "value" else draw(st.sampled_from(["local", "everywhere"]))
        made.append(
            Hook(
                name=name,
                manner=manner,
                phases=phases if manner == "object" else phases[:1],
                changes=draw(st.booleans()),
                prepend=manner == "torch" and draw(st.booleans()),
                scope=scope,
                target=draw(st.integers(0, 10)),
                needs_grad_input=draw(st.booleans()),
            )
        )
        if made[-1].manner == "value" and made[-1].phases == ["backward"]:
            made[-1].phases = ["backward_pre"]  # its `backward` is the gradient of the output
    for hook in made:
        if draw(st.integers(0, 3)) == 0:
            hook.victim = draw(st.sampled_from(made))
    return made


Record = tuple[int, str, int, list[Tensor]]


@dataclass
class Log:
    """What was called: hook, phase, module, values."""

    records: list[Record] = field(default_factory=list)

    def __call__(self, hook, phase, index, *values):
        self.records.append((hook.name, phase, index, [v.detach().clone() for v in values]))


class World:
    """A random model with its hooks, for hookline or for the interpreter."""

    def __init__(self, spec, wrapping, hooks):
        torch.manual_seed(0)
        self.log = Log()
        self.root = build(spec, iter(wrapping))
        self.nodes = list(self.root.walk())
        self.index_of = {}
        for index, node in enumerate(self.nodes):
            node.index = index
            self.index_of.update((id(shell), index) for shell in node.shells)
        self.hooks = copy.deepcopy(hooks)

    def target(self, hook):
        """The node and the shell that a local hook is for: value hooks need a wrapper."""
        wrapped = [node for node in self.nodes if node.wrappers]
        nodes = wrapped if hook.manner == "value" else self.nodes
        if not nodes:
            return None, 0
        node = nodes[hook.target % len(nodes)]
        inside = len(node.shells) - 1
        return node, hook.target % len(node.wrappers) if hook.manner == "value" else inside

    def note(self, hook, phase, index, *values):
        """One hook was called."""
        self.log(hook, phase, index, *values)
        if not hook.fired:
            hook.fired = True
            if hook.victim is not None and hook.victim.remove is not None:
                hook.victim.remove()


# Under hookline.


class Object(hookline.ModuleHook):
    """A hook object with just the callbacks of its phases."""

    def __init__(self, world, hook):
        self.name = f"hook {hook.name}"
        self.needs_grad_input = hook.needs_grad_input
        for phase in hook.phases:
            event = {"forward_pre": "forward_pre", "forward": "forward_post"}.get(
                phase, {"backward_pre": "backward_pre", "backward": "backward_post"}.get(phase)
            )
            setattr(self, f"{event}process", partial(self._event, world, hook, phase))

    def _event(self, world, hook, phase, call):
        index = world.index_of[id(call.module)]
        values = {
            "forward_pre": lambda: [call.args[0]],
            "forward": lambda: [call.args[0], call.out],
            "backward_pre": lambda: [call.grad_output[0]],
            "backward": lambda: (
                [call.grad_input[0], call.grad_output[0]]
                if self.needs_grad_input
                else [call.grad_output[0]]
            ),
        }[phase]()
        world.note(hook, phase, index, *values)
        if phase != "backward" or self.needs_grad_input:
            new = hook.changed(values[1] if phase == "forward" else values[0], phase)
            if new is not None:
                call.replace(new)


def torch_hook(world, hook):
    """A hook in torch's signature; the same under hookline and under torch."""
    (phase,) = hook.phases

    def run(module, *given):
        flat = [each[0] if isinstance(each, tuple) else each for each in given]
        world.note(hook, phase, world.index_of[id(module)], *flat)
        new = hook.changed(flat[-1] if phase == "forward" else flat[0], phase)
        return new if new is None or phase.startswith("forward") else (new,)

    def exact(module, first, second=None):
        return run(module, first) if second is None else run(module, first, second)

    return exact if phase in ("forward_pre", "backward_pre") else run


REGISTER = {
    "forward_pre": "forward_pre_hook",
    "forward": "forward_hook",
    "backward_pre": "full_backward_pre_hook",
    "backward": "full_backward_hook",
}


def attach(world, hook, stack):
    """Register a hook with hookline."""
    node, level = world.target(hook)
    if hook.scope == "local" and node is None:
        return
    if hook.manner == "value":
        kind = {"backward_pre": "backward"}.get(hook.phases[0], hook.phases[0])
        value = partial(_value, world, hook, node.index)
        hook.remove = node.wrappers[level].add(kind, value).remove
    elif hook.manner == "object" and hook.scope == "local":
        hook.remove = hookline.add_hook(node.shells[level], Object(world, hook)).remove
    elif hook.manner == "object":
        scope = Object(world, hook)
        leave = stack.enter_context(ExitStack())
        leave.enter_context(scope)
        hook.remove = leave.close
    else:
        name, with_hook = REGISTER[hook.phases[0]], torch_hook(world, hook)
        if hook.scope == "local":
            register = partial(getattr(hookline, f"register_{name}"), node.shells[level])
        else:
            register = getattr(hookline, f"register_module_{name}")
        hook.remove = register(with_hook, prepend=hook.prepend).remove


def _value(world, hook, index, *values):
    (phase,) = hook.phases
    world.note(hook, phase, index, *values)
    return hook.changed(values[-1], phase)


def run_hookline(world, x, gradient, removed):
    """Two rounds under hookline; the outputs, and the gradients of input and parameters."""
    results = []
    with ExitStack() as stack:
        for hook in world.hooks:
            attach(world, hook, stack)
        for _ in range(2):
            x = x.detach().clone().requires_grad_()
            out = world.root.shells[0](x)
            _remove(world, removed)
            out.backward(gradient)
            results += [out.detach(), x.grad]
        for hook in world.hooks:
            if hook.remove is not None:
                hook.remove()
    return results + [p.grad for p in world.root.shells[0].parameters()]


def _remove(world, removed):
    for hook in world.hooks:
        if hook.name in removed and hook.remove is not None:
            hook.remove()


# The interpreter.


class Interpreter:
    """The rules, in loops over lists."""

    def __init__(self, world):
        self.world = world
        self.scoped: list[Hook] = []
        self.everywhere: list[Hook] = []
        self.gradients: dict[int, list[Tensor]] = {}
        for hook in world.hooks:
            self._register(hook)

    def _register(self, hook):
        node, level = self.world.target(hook)
        if hook.scope == "everywhere":
            place = self.scoped if hook.manner == "object" else self.everywhere
        elif node is None:
            return
        else:
            place = node.registries[level]
        place.insert(0 if hook.prepend else len(place), hook)
        hook.places = [place]
        hook.remove = partial(self._discard, hook)

    def _discard(self, hook):
        for place in hook.places:
            place.remove(hook)
        hook.places = []

    def _lineup(self, node, level, phase):
        outer = self.scoped + self.everywhere if level == 0 else []
        return [hook for hook in outer + node.registries[level] if phase in hook.phases]

    def _fire(self, node, level, phase, value, *others):
        """Call the hooks of an event; give the value and the product of the factors."""
        product = 1.0
        for hook in self._lineup(node, level, phase):
            if not hook.places:
                continue
            sees_input = hook.manner != "object" or hook.needs_grad_input
            if phase == "backward" and not sees_input:
                self.world.note(hook, phase, node.index, *others)
                continue
            values = (*others, value) if phase == "forward" else (value, *others)
            self.world.note(hook, phase, node.index, *values)
            new = hook.changed(value, phase)
            if new is not None:
                value = new
                product *= hook.factor
        return value, product

    def call(self, node, x, level=0):
        """The output of a call, and the function that takes a gradient back through it."""
        x, before = self._fire(node, level, "forward_pre", x)
        inner = level + 1 < len(node.shells)
        out, back = self.call(node, x, level + 1) if inner else self.compute(node, x)
        out, after = self._fire(node, level, "forward", out, x)

        def backward(gradient):
            gradient, _ = self._fire(node, level, "backward_pre", gradient)
            below = back(gradient * after)
            below, _ = self._fire(node, level, "backward", below, gradient)
            return below * before

        return out, backward

    def compute(self, node, x):
        """What a module computes, and its derivative, by the formulas."""
        return getattr(self, f"_{node.kind}")(node, x)

    def _linear(self, node, x):
        layer = node.shells[-1]
        weight = layer.weight.detach()

        def backward(gradient):
            self._add(layer, gradient.T @ x, gradient.sum(0))
            return gradient @ weight

        return x @ weight.T + layer.bias.detach(), backward

    def _scale(self, node, x):
        layer = node.shells[-1]
        weight = layer.weight.detach()

        def backward(gradient):
            self._add(layer, (gradient * x).sum(0))
            return gradient * weight

        return x * weight, backward

    def _tanh(self, node, x):
        out = x.tanh()
        return out, lambda gradient: gradient * (1 - out * out)

    def _identity(self, node, x):
        return x, lambda gradient: gradient

    def _chain(self, node, x):
        backs = []
        for part in node.parts:
            x, back = self.call(part, x)
            backs.insert(0, back)

        def backward(gradient):
            for back in backs:
                gradient = back(gradient)
            return gradient

        return x, backward

    def _total(self, node, x):
        outs, backs = zip(*(self.call(part, x) for part in node.parts), strict=True)
        return sum(outs), lambda gradient: sum([back(gradient) for back in reversed(backs)])

    def _residual(self, node, x):
        out, back = self.call(node.parts[0], x)
        return x + out, lambda gradient: gradient + back(gradient)

    def _twice(self, node, x):
        middle, first = self.call(node.parts[0], x)
        out, second = self.call(node.parts[0], middle)
        return out, lambda gradient: first(second(gradient))

    def _add(self, layer, *gradients):
        known = self.gradients.get(id(layer))
        new = list(gradients)
        if known is not None:
            new = [one + other for one, other in zip(known, new, strict=True)]
        self.gradients[id(layer)] = new


def run_interpreter(world, x, gradient, removed):
    """The same two rounds in plain Python."""
    interpreter, results = Interpreter(world), []
    for _ in range(2):
        out, backward = interpreter.call(world.root, x)
        _remove(world, removed)
        results += [out, backward(gradient)]
    layers = {}
    for node in world.nodes:
        layers.update(
            {id(p): (node.shells[-1], p) for p in node.shells[-1].parameters(recurse=False)}
        )
    found = []
    for parameter in world.root.shells[0].parameters():
        layer, _ = layers[id(parameter)]
        names = [id(p) for p in layer.parameters(recurse=False)]
        found.append(interpreter.gradients[id(layer)][names.index(id(parameter))])
    return results + found


def assert_same_records(found, expected):
    """The same hooks in the same order with the same values."""
    assert [record[:3] for record in found] == [record[:3] for record in expected]
    for one, other in zip(found, expected, strict=True):
        assert len(one[3]) == len(other[3])
        for value, reference in zip(one[3], other[3], strict=True):
            torch.testing.assert_close(value, reference)


def data():
    """An input and a gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(3, WIDTH, dtype=torch.float64, generator=generator),
        torch.randn(3, WIDTH, dtype=torch.float64, generator=generator),
    )


wrappings = st.lists(st.integers(0, 2), max_size=12)
removals = st.sets(st.integers(0, 6), max_size=2)


@thorough(max_examples=150)
@given(spec=specs, wrapping=wrappings, hooks=hook_lists(), removed=removals)
def test_any_hooks_on_any_model_do_what_the_rules_say(spec, wrapping, hooks, removed):
    """Order, values, outputs and gradients are those of the interpreter; nothing is left."""
    x, gradient = data()
    ours, reference = World(spec, wrapping, hooks), World(spec, wrapping, hooks)

    found = run_hookline(ours, x, gradient, removed)
    expected = run_interpreter(reference, x, gradient, removed)

    assert_same_records(ours.log.records, reference.log.records)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert hookline.hooks_of(ours.root.shells[0]) == []
    assert_nothing_left()


# Against torch's own hooks.


def attach_torch(world, hook, _):
    """Register a hook with torch itself; on all modules it knows no `prepend`."""
    name = REGISTER[hook.phases[0]]
    if hook.scope == "local":
        register = getattr(world.target(hook)[0].shells[-1], f"register_{name}")
        hook.remove = register(torch_hook(world, hook), prepend=hook.prepend).remove
    else:
        register = getattr(torch_module, f"register_module_{name}")
        hook.remove = register(torch_hook(world, hook)).remove


def torch_hooks_only(hooks):
    """The hooks that torch has too, each for itself."""
    kept = [hook for hook in hooks if hook.manner == "torch"]
    for hook in kept:
        hook.victim = None
        hook.prepend = hook.prepend and hook.scope == "local"
    return kept


@thorough(max_examples=100)
@given(spec=specs, hooks=hook_lists().map(torch_hooks_only))
def test_hooks_in_torchs_signatures_do_what_torchs_own_do(spec, hooks):
    """On all that torch can do: no removal in between, no wrappers."""
    x, gradient = data()
    worlds = [World(spec, [], hooks) for _ in range(2)]
    results = []
    for world, register in zip(worlds, (attach, attach_torch), strict=True):
        with ExitStack() as stack:
            for hook in world.hooks:
                register(world, hook, stack)
            a = x.clone().requires_grad_()
            out = world.root.shells[0](a)
            out.backward(gradient)
            for hook in world.hooks:
                hook.remove()
        results.append([out, a.grad, *(p.grad for p in world.root.shells[0].parameters())])

    assert_same_records(worlds[0].log.records, worlds[1].log.records)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert_nothing_left()


# Against plain autograd, for inputs and outputs of any structure.


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Answer:
    logits: object
    extra: object


# Names stand for tensors; all else stays as it is.
structures = st.recursive(
    st.sampled_from(["a", "b", "plain", None, 3]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Answer, inner, inner),
    ),
    max_leaves=6,
)


def fill(structure, make):
    """The structure with `make(name)` in place of each name."""
    match structure:
        case str():
            return make(structure)
        case Pair():
            return Pair(*(fill(each, make) for each in structure))
        case list() | tuple():
            return type(structure)(fill(each, make) for each in structure)
        case dict():
            return {key: fill(each, make) for key, each in structure.items()}
        case Answer():
            return Answer(fill(structure.logits, make), fill(structure.extra, make))
    return structure


class Mixes(nn.Module):
    """Makes an output of a given structure from all tensors of its inputs.

    In it, `a` is a new tensor each time, `b` the first input, and `plain` one without gradient.
    """

    def __init__(self, structure):
        super().__init__()
        self.structure = structure
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, *args, **kwargs):
        given = tensors((args, kwargs))
        total = sum((t * (i + 1) for i, t in enumerate(given)), self.weight * 1)
        numbers = itertools.count(1)

        def make(name):
            if name == "a":
                return (total * next(numbers)).sin()
            return (given or [total])[0] if name == "b" else torch.ones_like(total).detach()

        return fill(self.structure, make)


def weighted_sum(value):
    """A loss in which each place of a structure has its own weight."""
    found = [t * (i + 2) for i, t in enumerate(tensors(value)) if t.requires_grad]
    return sum((t.exp().sum() for t in found), torch.zeros((), dtype=torch.float64))


def separate(value):
    """The value with an alias of its own at every place."""
    return map_tensors(lambda t: t.view_as(t) if t.requires_grad else t, value)


def gradients_by_path(value, found):
    """The gradients that there are, by the paths of the tensors."""
    paths = [path for path, _ in leaves(value)]
    return {path: g for path, g in zip(paths, found, strict=True) if g is not None}


def plain_gradients(outputs, inputs, weights=None):
    """What autograd gives for each of the inputs, None where it gives none."""
    wanted = [t for t in inputs if t.requires_grad]
    pairs = [
        (o, w)
        for o, w in zip(outputs, weights or [None] * len(outputs), strict=True)
        if o.requires_grad and (weights is None or w is not None)
    ]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            wanted,
            [w for _, w in pairs],
            allow_unused=True,
            retain_graph=True,
        )
        if pairs and wanted
        else [None] * len(wanted)
    )
    return [next(found) if t.requires_grad else None for t in inputs]


def assert_same_by_path(found, expected):
    assert found.keys() == expected.keys()
    for path, gradient in found.items():
        torch.testing.assert_close(gradient, expected[path])


@thorough(max_examples=150)
@given(
    args=st.lists(structures, max_size=2),
    kwargs=st.dictionaries(st.sampled_from(["k", "l"]), structures, max_size=2),
    structure=structures,
    factors=st.tuples(st.sampled_from([None, 2.0]), st.sampled_from([None, 3.0])),
)
def test_p5_gradients_of_any_structures_are_those_of_plain_autograd(
    args, kwargs, structure, factors
):
    """Seen by the hooks, and after they were scaled: at every place, and at the leaves."""
    module = Mixes(structure)
    pool = {name: torch.rand(2, dtype=torch.float64, requires_grad=True) for name in "ab"}
    pool["plain"] = torch.rand(2, dtype=torch.float64)
    args, kwargs = fill((tuple(args), kwargs), pool.__getitem__)
    seen = []

    def scale_out(module, grad_output):
        seen.append((grad_output,))
        return factors[0] and map_tensors(lambda g: g * factors[0], grad_output)

    def scale_in(module, grad_input, grad_output):
        seen.append((grad_input, grad_output))
        whole = (tuple(grad_input), grad_input.kwargs)
        return factors[1] and GradInput.of(*map_tensors(lambda g: g * factors[1], whole))

    with (
        hookline.register_full_backward_pre_hook(module, scale_out),
        hookline.register_full_backward_hook(module, scale_in),
    ):
        loss = weighted_sum(module(*args, **kwargs))
        if loss.requires_grad:
            loss.backward()
    assert_nothing_left()

    inside = separate((args, kwargs))
    before = module(*inside[0], **inside[1])
    after = separate(before)
    grad_out = plain_gradients([weighted_sum(after)], tensors(after))
    scaled_out = [g if g is None else g * (factors[0] or 1) for g in grad_out]
    grad_in = plain_gradients(tensors(before), tensors(inside), scaled_out)
    if not any(g is not None for g in grad_out):
        assert seen == []
        return
    (begin,), (grad_input, end) = seen
    whole = (after,) if isinstance(after, Tensor) else after
    assert_same_by_path(dict(leaves(begin)), gradients_by_path(whole, grad_out))
    assert_same_by_path(dict(leaves(end)), gradients_by_path(whole, scaled_out))
    found = dict(leaves((tuple(grad_input), grad_input.kwargs)))
    assert_same_by_path(found, gradients_by_path(inside, grad_in))
    for leaf in (pool["a"], pool["b"]):
        parts = [
            gradient * (factors[1] or 1)
            for tensor, gradient in zip(tensors((args, kwargs)), grad_in, strict=True)
            if tensor is leaf and gradient is not None
        ]
        assert (leaf.grad is None) == (not parts)
        if parts:
            torch.testing.assert_close(leaf.grad, sum(parts))


# Observers.


@thorough(max_examples=80)
@given(spec=specs, wrapping=wrappings, hooks=hook_lists())
def test_r2_observers_of_all_manners_change_no_bit(spec, wrapping, hooks):
    """Outputs and gradients are bitwise those of the bare model."""
    for hook in hooks:
        hook.changes = hook.needs_grad_input = False
        if hook.manner == "torch" and hook.phases == ["backward"]:
            hook.phases = ["backward_pre"]  # the other asks for the gradients of inputs
    x, gradient = data()

    found = run_hookline(World(spec, wrapping, hooks), x, gradient, set())
    expected = run_hookline(World(spec, [], []), x, gradient, set())

    assert all(map(torch.equal, found, expected))
    assert_nothing_left()


# Errors.


class Stop(Exception):  # noqa: N818 - it is no error here
    pass


class Paired(hookline.ModuleHook):
    """Counts what it was told of each call, and raises when its time has come."""

    def __init__(self, name, budget):
        self.name = name
        self.budget = budget
        self.calls: dict[tuple[Any, str], list[str]] = {}

    def _note(self, call, direction, what):
        self.calls.setdefault((id(call), direction), []).append(what)
        call.kept = call  # so that no other call gets its id
        self.budget.spend()

    def forward_preprocess(self, call):
        self._note(call, "forward", "begin")

    def forward_postprocess(self, call):
        self._note(call, "forward", "end")

    def backward_preprocess(self, call):
        self._note(call, "backward", "begin")

    def backward_postprocess(self, call):
        self._note(call, "backward", "end")

    def aborted(self, call, exception):
        direction = "forward" if call.args is not None else "backward"
        self.calls.setdefault((id(call), direction), []).append("aborted")


class Budget:
    """Lets so many callbacks pass and raises in the next."""

    def __init__(self, left):
        self.left = left
        self.error = Stop("stop")

    def spend(self):
        self.left -= 1
        if self.left == -1:
            raise self.error


@thorough(max_examples=100)
@given(
    spec=specs,
    wrapping=wrappings,
    budget=st.integers(0, 60),
    counts=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_c9_wherever_an_error_comes_every_begin_has_one_end(spec, wrapping, budget, counts):
    """For scoped hooks and those on one module; the error is the same object; nothing is left."""
    x, gradient = data()
    world, budget = World(spec, wrapping, []), Budget(budget)
    scoped = [Paired(f"scoped {n}", budget) for n in range(counts[0])]
    own = [Paired(f"own {n}", budget) for n in range(counts[1])]
    caught = None
    with ExitStack() as stack:
        for hook in scoped:
            stack.enter_context(hook)
        for number, hook in enumerate(own):
            node = world.nodes[number % len(world.nodes)]
            hookline.add_hook(node.shells[-1], hook)
        try:
            world.root.shells[0](x.requires_grad_()).backward(gradient)
        except Stop as error:
            caught = error
        hookline.clear_hooks(world.root.shells[0])

    assert (caught is budget.error) == (budget.left < 0)
    if caught is not None:
        assert len(caught.__notes__) == 1
    told = [events for hook in scoped + own for events in hook.calls.values()]
    ended = [events for events in told if events in (["begin", "end"], ["begin", "aborted"])]
    # The begin that raised counts as not run.
    assert [events for events in told if events not in ended] in ([], [["begin"]])
    assert caught is not None or len(ended) == len(told)
    assert_nothing_left()
