"""The rules of hooks once more, as plain loops over lists: what must be called, and when.

It knows neither hookline nor torch nor autograd. A model is a tree of calls; hooks are numbers
with phases; what comes out is the list of events that the real library must give, in order. Where
the identity of a call is not laid down (it repeats one that nobody watched), its index is None.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

PHASES = ("forward_pre", "forward", "backward_pre", "backward")
BACKWARD = {"backward_pre", "backward"}

# The model: what it calls, in order.


@dataclass(frozen=True)
class Function:
    """A function that a module calls: its name, and the names of the autograd nodes it makes."""

    name: str
    nodes: tuple[str, ...]
    own: bool = False  # carries hooks of its own
    faulty: bool = False  # may fail in its backward
    unpacks: bool = False  # needs a saved tensor, so here a checkpoint repeats its part


@dataclass(frozen=True)
class Module:
    """A module and what its forward calls, in order."""

    path: str
    calls: tuple[Module | Function, ...]
    checkpointed: bool = False


LINEAR = Function("linear", ("t", "addmm"))
A = Module("a", (LINEAR,))
ACT = Module(
    "block.act",
    (
        Function("tanh", ("tanh",), own=True, unpacks=True),
        Function("Fault", ("Fault",), faulty=True),
    ),
)
BLOCK = Module(
    "block",
    (Module("block.lin", (LINEAR,)), ACT, Function("add", ("add",))),
    checkpointed=True,
)
NET = Module("", (A, BLOCK, A))
PATHS = ("", "a", "block", "block.lin", "block.act")
WRAPPED = "block.lin"

# Hooks.


@dataclass(eq=False)
class Hook:
    """A hook: `manner` is torch, value, module or function."""

    number: int
    manner: str
    phases: frozenset[str]
    always: bool = False
    arms: dict[str, Any] = field(default_factory=dict)

    @property
    def paired(self):
        return self.manner in ("module", "function")

    @property
    def backward_only(self):
        return self.phases <= BACKWARD

    @property
    def watches_backward(self):
        return bool(self.phases & BACKWARD)


@dataclass(eq=False)
class Registration:
    """A hook at a place, under a name if it is a hook object."""

    hook: Hook
    place: str  # "modules" and "functions" are scopes, "all", "node", or "at " and a path
    key: str | None = None
    alive: bool = True


class RaisedError(Exception):
    """An error on its way out; `culprit` is the registration whose hook raised it, until used."""

    def __init__(self, what, culprit=None):
        super().__init__(what)
        self.what = what
        self.culprit = culprit

    def take(self):
        culprit, self.culprit = self.culprit, None
        return culprit


STOP = "the checkpoint has what it needs"


@dataclass(eq=False)
class Call:
    """A call that ran: what is needed for its backward."""

    of: Module | Function
    path: str | None
    index: int | None = None
    watched: bool = False
    marked: bool = False
    recomputing: bool = False
    calls: list[Call] = field(default_factory=list)
    checkpoint: str = ""


@dataclass(eq=False)
class Forward:
    """A forward that runs: how calls are counted, and what it repeats."""

    grad: bool
    checkpoint: str
    bare: bool  # a copy, on which nothing is registered
    fault: str | None
    repeats: dict[Any, Call] | None = None  # what ran first, in what a checkpoint runs again
    stops: bool = False
    counts: dict[Any, int] = field(default_factory=dict)

    def count(self, key):
        self.counts[key] = self.counts.get(key, -1) + 1
        return self.counts[key]


@dataclass(eq=False)
class Run:
    """A backward that runs."""

    top: Call
    fault: bool
    checkpoint: str
    bare: bool
    windows: set[Call] = field(default_factory=set)
    unrecorded: dict[tuple[Call, int], Call] | None = None
    repeated: bool = False


class World:
    """All that is registered, and the events so far."""

    def __init__(self):
        self.registrations: list[Registration] = []
        self.log: list[tuple[Any, ...]] = []

    # Registering.

    def at(self, place):
        return [r for r in self.registrations if r.place == place]

    def has(self, place, key):
        return any(r.key == key for r in self.at(place))

    def add(self, registration, *, prepend=False):
        if prepend:
            self.registrations.insert(0, registration)
        else:
            self.registrations.append(registration)
        registration.alive = True

    def remove(self, registration):
        if registration.alive:
            registration.alive = False
            self.registrations.remove(registration)

    def enter(self, registration, target, *, prepend=False):
        """Register a hook object and tell it; if `added` raises, nothing stays."""
        self.add(registration, prepend=prepend)
        try:
            self.call(registration, "added", (target,))
        except RaisedError:
            self.remove(registration)
            raise

    def leave(self, registration, target):
        """Tell a hook object and remove it, whatever `deleted` does."""
        try:
            self.call(registration, "deleted", (target,))
        finally:
            self.remove(registration)

    # Who hears of an event.

    def lineup(self, path, *, bare):
        outer = self.at("modules") + self.at("all")
        return _merged(outer, [] if bare else self.at(f"at {path}"))

    def function_lineup(self, function, *, bare):
        outer = self.at("functions")
        return _merged(outer, self.at("node") if function.own and not bare else [])

    def call(self, registration, phase, rest):
        """One callback; what the hook was armed with happens in it."""
        hook = registration.hook
        self.log.append((hook.number, phase, *rest))
        arm = hook.arms.pop(phase, None)
        if arm is not None:
            try:
                arm()
            except RaisedError as error:
                error.culprit = registration
                raise

    def fire(self, phase, registrations, call):
        for registration in registrations:
            if phase in registration.hook.phases and registration.alive:
                self.call(registration, phase, _told(registration, call))

    def abort(self, registrations, call):
        for registration in registrations:
            if registration.alive:
                with contextlib.suppress(RaisedError):
                    self.call(registration, "aborted", _told(registration, call))

    # Forward.

    def forward(self, run):
        """A forward of the whole model; gives its calls."""
        return self._module(NET, run)

    def _module(self, module, run):
        lineup = self.lineup(module.path, bare=run.bare)
        wrapper = module.path == WRAPPED and not run.bare
        seen = bool(lineup) or bool(self.at("functions"))
        call = Call(module, module.path, watched=seen or (wrapper and bool(self.registrations)))
        if call.watched:
            self._identify(call, run, module.path)

        def body():
            for part in module.calls:
                call.calls.append(self._part(part, module.path, run, call))
            if run.fault == module.path:
                msg = "model"
                raise RaisedError(msg)

        def current():
            return self.lineup(module.path, bare=run.bare)

        if not call.watched:
            body()
            return call

        def mark(at_begin, at_end):
            call.marked = run.grad and any(r.hook.watches_backward for r in at_begin + at_end)

        self._around(call, lineup, body, current, mark)
        return call

    def _part(self, part, path, run, above):
        if isinstance(part, Function):
            return self._function(part, path, run, above)
        if part.checkpointed and run.checkpoint and run.repeats is None:
            return self._checkpointed(part, run)
        return self._module(part, run)

    def _checkpointed(self, part, run):
        grad, run.grad = run.grad, run.grad and run.checkpoint != "reentrant"
        try:
            call = self._module(part, run)
        finally:
            run.grad = grad
        call.checkpoint = run.checkpoint if grad else ""
        return call

    def _function(self, function, path, run, above):
        lineup = self.function_lineup(function, bare=run.bare)
        call = Call(function, path, watched=bool(lineup))
        stops = run.stops and function.unpacks

        def body():
            if stops:
                raise RaisedError(STOP)

        if not lineup:
            body()
            return call
        self._identify(call, run, (path, function.name))

        def current():
            return self.function_lineup(function, bare=run.bare)

        def mark(at_begin, at_end):
            call.marked = run.grad and any(r.hook.watches_backward for r in at_begin)

        self._around(call, lineup, body, current, mark)
        return call

    def _identify(self, call, run, key):
        """Count the call, or take the number of the one that it repeats."""
        if run.repeats is None:
            call.index = run.count(key)
        else:
            call.recomputing = True
            call.index = run.repeats[key].index

    def _around(self, call, lineup, body, current, mark):
        """The events around a call, and one end for each begin if it raises."""
        begun = None
        try:
            self.fire("forward_pre", lineup, call)
            begun = [r for r in lineup if r.hook.paired and not r.hook.backward_only]
            at_begin = lineup
            body()
            lineup = _with_displaced(current(), begun)
            mark(at_begin, lineup)
            self.fire("forward", [r for r in lineup if not r.hook.paired or r in begun], call)
        except RaisedError as error:
            culprit = error.take()
            self._fail(call, lineup, begun, culprit)
            raise

    def _fail(self, call, lineup, begun, culprit):
        ended = lineup[: lineup.index(culprit) + 1] if culprit is not None else []
        if begun is None:
            pending = [r for r in ended[:-1] if r.hook.paired and not r.hook.backward_only]
        else:
            pending = [r for r in begun if r not in ended]
        self.abort(pending, call)
        ran = ended if begun is not None else []
        for registration in lineup:
            hook = registration.hook
            if hook.always and registration.alive and registration not in ran:
                with contextlib.suppress(RaisedError):
                    self.call(registration, "forward", _told(registration, call))

    # Backward.

    def backward(self, run):
        """The backward of a call and of what it called, in one run of autograd."""
        watched = any(r.hook.watches_backward for r in self.registrations)
        if watched:
            _find_windows(run.top, run.windows)
            if any(r.hook.watches_backward for r in self.at("functions")):
                run.unrecorded = {}
                _name_unrecorded(run.top, None, run, {})
        self._back(run.top, run)

    def _back(self, call, run):
        if call.checkpoint == "reentrant":
            self._back_reentrant(call, run)
        elif isinstance(call.of, Function):
            self._back_function(call, run)
        else:

            def body():
                for inner in reversed(call.calls):
                    self._back(inner, run)

            self._window(call, run, body)

    def _back_function(self, call, run):
        def work():
            if call.of.unpacks and run.checkpoint == "plain" and not run.repeated:
                run.repeated = True
                self._repeat(run, stops=True)
            if call.of.faulty and run.fault:
                msg = "backward"
                raise RaisedError(msg)

        if call in run.windows or run.unrecorded is None:
            self._window(call, run, work)
            return
        for place in reversed(range(len(call.of.nodes))):
            self._around_backward(run.unrecorded[call, place], run, work)

    def _repeat(self, run, *, stops):
        """What a checkpoint runs again."""
        first = next(call for call in all_calls(run.top) if call.checkpoint)
        repeats = {_key(call): call for call in all_calls(first)}
        again = Forward(True, run.checkpoint, run.bare, None, repeats=repeats, stops=stops)
        try:
            return self._module(first.of, again)
        except RaisedError as error:
            if error.what is not STOP:
                raise
            return None

    def _back_reentrant(self, call, run):
        again = self._repeat(run, stops=False)
        self.backward(replace(run, top=again, windows=set(), unrecorded=None))

    def _window(self, call, run, body):
        if call not in run.windows:
            body()
        else:
            self._around_backward(call, run, body)

    def _around_backward(self, call, run, body):
        bare = run.bare
        lineup = self._backward_lineup(call, bare)
        begun = [r for r in lineup if r.hook.paired and r.hook.watches_backward]
        objects = [r for r in lineup if r.hook.manner != "value"]
        # What they change is the gradient of an output, which only a call that marked it knows.
        values = [r for r in lineup if r.hook.manner == "value" and call.marked]
        try:
            self.fire("backward_pre", objects, call)
        except RaisedError as error:
            culprit = error.take()
            front = lineup[: lineup.index(culprit)]
            self.abort([r for r in begun if r in front], call)
            raise
        try:
            self.fire("backward_pre", values, call)
            body()
        except RaisedError as error:
            error.take()
            self.abort(begun, call)
            raise
        lineup = _with_displaced(self._backward_lineup(call, bare), begun)
        try:
            self.fire("backward", [r for r in lineup if not r.hook.paired or r in begun], call)
        except RaisedError as error:
            culprit = error.take()
            self.abort([r for r in begun if r not in lineup[: lineup.index(culprit) + 1]], call)
            raise

    def _backward_lineup(self, call, bare):
        if isinstance(call.of, Module):
            return self.lineup(call.path, bare=bare)
        own = call.of.own and call.watched
        return self.function_lineup(call.of, bare=bare or not own)


def _merged(outer, own):
    """The outer ones, then the module's own; one of its own takes the place of its namesake."""
    named = {r.key: r for r in own if r.key is not None}
    taken = {r.key for r in outer if r.key in named}
    front = [named[r.key] if r.key in taken else r for r in outer]
    return front + [r for r in own if r.key not in taken]


def _with_displaced(lineup, begun):
    """Whoever began gets the end, also if its place was taken meanwhile: there."""
    keys = {r.key: r for r in begun if r.alive and r not in lineup}
    result = []
    for registration in lineup:
        if registration.key in keys:
            result.append(keys.pop(registration.key))
        result.append(registration)
    return result


def _key(call):
    return (call.path, call.of.name) if isinstance(call.of, Function) else call.path


def all_calls(call):
    yield call
    for inner in call.calls:
        yield from all_calls(inner)


def _find_windows(call, found):
    """Calls that left a mark, and watched ones around them."""
    if call.checkpoint == "reentrant":
        return
    for inner in call.calls:
        _find_windows(inner, found)
    if call.marked or (call.watched and any(inner in found for inner in call.calls)):
        found.add(call)


def _name_unrecorded(call, around, run, counts):
    """Give each node that no window's function made a call of its own, counted as they ran."""
    if call.checkpoint == "reentrant":
        return
    if isinstance(call.of, Module):
        around = call if call in run.windows else around
        for inner in call.calls:
            _name_unrecorded(inner, around, run, counts)
    elif call not in run.windows:
        for place, name in enumerate(call.of.nodes):
            path = None if around is None else around.path
            index = counts[path, name] = counts.get((path, name), -1) + 1
            repeated = around is not None and around.recomputing
            of = Function(name, (name,))
            run.unrecorded[call, place] = Call(of, path, index, recomputing=repeated)


def _told(registration, call):
    """What a hook of its manner is told of a call."""
    manner = registration.hook.manner
    if manner == "value":
        return ()
    if manner == "torch":
        return (call.path,)
    if manner == "module":
        return (call.path, call.index, call.recomputing)
    return (call.path, call.of.name, call.index, call.recomputing)
