"""Capturing what flows through a call, at both levels: inputs, outputs, gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypedDict
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from hookline.core.calls import Key
from hookline.core.notes import control_flow
from hookline.core.patterns import FunctionPattern, did_you_mean
from hookline.core.phases import Phase
from hookline.core.travel import MadeAnew
from hookline.errors import CaptureError, HookTypeError, HookValueError
from hookline.hooks.captured_call import KINDS, About, CapturedCall, What
from hookline.hooks.keep import Keep
from hookline.hooks.store import Calls, Captures, Overflow, Place, Store
from hookline.torch_base.given import Given

if TYPE_CHECKING:
    from hookline.core.calls import Call
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall

_numbers: Final = count()


class StopForward(BaseException):
    """Ends a forward when all that was wanted has been captured; `with capture(…)` swallows it.

    Attributes:
        goal: what had been wanted.
    """

    def __init__(self, goal: Goal) -> None:
        super().__init__("all that was to be captured has been captured")
        self.goal: Final = goal


control_flow.add(StopForward)


class Goal:
    """What is to be captured before the forward ends.

    Args:
        modules: the modules.
        functions: the functions, each with the module that calls it.
    """

    def __init__(
        self,
        modules: set[Key[nn.Module]],
        functions: set[tuple[Key[nn.Module], FunctionPattern]],
    ) -> None:
        self._modules = modules
        self._functions = functions

    def reached_module(self, call: ModuleCall) -> None:
        """A module was captured.

        Raises:
            StopForward: it was the last.
        """
        self._modules.difference_update(call.keys)
        self._stop()

    def reached_function(self, call: FunctionCall) -> None:
        """A function was captured.

        Raises:
            StopForward: it was the last.
        """
        caller: Any = call.parent
        for key, function in list(self._functions):
            if key in caller.keys and function.matches(call.name, call.index):
                self._functions.discard((key, function))
        self._stop()

    def _stop(self) -> None:
        if not self._modules and not self._functions:
            raise StopForward(self)


class HoldOptions(TypedDict, total=False):
    """What can be asked for of all that is held; see [attention][hookline.attention]."""

    calls: Calls
    reduce: Callable[[Tensor], Any] | None
    dtype: torch.dtype | None
    device: torch.device | str | None
    limit: int | None
    overflow: Overflow


class CaptureOptions(HoldOptions, total=False):
    """What can be asked for of every capture; see [capture][hookline.capture]."""

    what: What | Collection[What]
    copy: bool | None
    keep_graph: bool


def check_options(verb: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse options that there are not.

    Args:
        verb: what was called.
        given: the options.
        known: the names of those that there are.

    Raises:
        HookTypeError: there is no such option; the message gives near names, or all.
    """
    for name in given:
        if name not in known:
            near = did_you_mean(get_close_matches(name, known, 1))
            options = near or f"; its options are {', '.join(known)}"
            msg = f"{verb} takes no {name}={options}"
            raise HookTypeError(msg)


class Capturing(MadeAnew):
    """What the capture hooks of both levels have in common."""

    needs_grad_input: bool = False
    watched_phases: Collection[Phase] | None = None

    def __init__(  # noqa: PLR0913 - one keyword for each thing that may be asked for
        self,
        *,
        what: What | Collection[What] = ("output", "grad"),
        calls: Calls = "all",
        copy: bool | None = None,
        keep_graph: bool = False,
        reduce: Callable[[Tensor], Any] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        limit: int | None = None,
        overflow: Overflow = "error",
    ) -> None:
        self._what: Final = _checked(what)
        self._keep: Final = Keep(
            reduce=reduce, dtype=dtype, device=device, copy=copy, graph=keep_graph
        )
        self.store = Store(calls, limit, overflow)
        self._takes_input: Final = "input" in self._what
        self._takes_output: Final = "output" in self._what
        self._follows: Final = "grad" in self._what or "grad_input" in self._what
        self._mark: Final = f"_captured_{next(_numbers)}"
        self._pending: Final[WeakKeyDictionary[Call, Any]] = WeakKeyDictionary()
        self._goal: Goal | None = None
        self._given: Given | None = None
        self.needs_grad_input = "grad_input" in self._what
        self.watched_phases = _phases(self._what)

    @property
    def captured(self) -> Captures:
        """What was captured so far."""
        return Captures(self.store)

    def into(self, store: Store, goal: Goal | None, given: Given) -> None:
        """Share a store, end the forward once a goal is reached, and name what is in a model."""
        self._given = given
        self.store = store
        self._goal = goal

    def aborted(self, call: Any, exception: BaseException) -> None:
        """Forget the inputs of a call that raised."""
        self._pending.pop(call, None)

    def _place(self, call: Call, path: str | None, function: str | None = None) -> Place:
        """The root and the name under which a call is captured."""
        root, given = call.running.root, self._given
        if path is not None and given is not None and root is not given.root:
            root, path = given.place(root, path)
        if function is None:
            return root, path or ""
        return root, function if path is None else f"{path}:{function}"

    def _about(self, call: Any, place: Place) -> About:
        paths: tuple[str, ...] = getattr(call, "paths", ())
        root, given = call.running.root, self._given
        if given is not None and root is not given.root:
            inside = given.paths(root, paths)
            paths = inside if place[0] is given.root else (*paths, *inside)
        return About(place[1], call.type, paths)

    def _take_input(
        self, call: Call, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        entry = self.store.entries.get(place)
        over = self.store.calls == "first" and entry is not None and entry.held
        if not call.recomputing and not over:
            kept = self._kept((args, kwargs))
            self._pending[call] = kept, self._keep.versions(kept)

    def _take_output(self, call: Call, place: Place, out: Any) -> None:
        # Runs at every call, so what most calls need stands here and not in functions.
        store, running = self.store, call.running
        entry = store.entries.get(place)
        if entry is None:
            entry = store.entry(place[0], self._about(call, place))
        elif store.is_bounded and not store.accepts(entry):
            self._pending.pop(call, None)
            return
        bare = isinstance(out, Tensor)
        captured = CapturedCall(entry.about, running, call.index, bare=bare)
        if self._takes_input and call in self._pending:
            captured.put("input", *self._pending.pop(call))
        if self._takes_output:
            if type(out) is Tensor and self._keep.plain:
                captured.values["output"] = out.detach().clone()
            else:
                kept = self._kept(out)
                captured.put("output", kept, self._keep.versions(kept))
        entry.held.append(captured)
        if store.is_bounded:
            store.added(entry, captured)
        if self._follows:
            call.__dict__[self._mark] = ref(captured)

    def _take_gradient(self, call: Call, place: Place, what: What, gradient: Any) -> None:
        captured = self._captured_of(call, place)
        if captured is not None:
            if what == "grad" and captured.bare:
                gradient = gradient[0]
            kept = self._kept(gradient)
            captured.put(what, kept, self._keep.versions(kept))
            if self.store.is_bounded:
                self.store.grew(captured, what)

    def _captured_of(self, call: Call, place: Place) -> CapturedCall | None:
        """What was captured in the forward of a call whose backward this is."""
        mark = call.__dict__.get(self._mark)
        if mark is not None:
            return mark()
        entry = self.store.entries.get(place)
        if entry is None or not call.recomputing:
            return None
        # A reentrant checkpoint sends gradients to the call that it computed again.
        same = (c for c in entry if c.running is call.running and c.index == call.index)
        return next(same, None)

    def _kept(self, value: Any) -> Any:
        if self._keep.graph and torch.is_inference_mode_enabled():
            msg = "keep_graph=True cannot work in inference mode, where autograd records no graph"
            raise CaptureError(msg)
        return self._keep.value(value)


def _checked(what: Any) -> frozenset[str]:
    several = {what} if isinstance(what, str) else set(what) if _is_collection(what) else None
    if several is None:
        msg = f"what= takes one or several of {', '.join(map(repr, KINDS))}, not {what!r}"
        raise HookTypeError(msg)
    if not several or not several.issubset(KINDS):
        msg = f"what={what!r} is unknown; choose one or several of {', '.join(map(repr, KINDS))}"
        raise HookValueError(msg)
    return frozenset(several)


def gradients_in(what: Any) -> frozenset[str]:
    """The gradients among what is to be captured, if that is well formed."""
    several = {what} if isinstance(what, str) else set(what) if _is_collection(what) else set()
    return frozenset(several & {"grad", "grad_input"})


def _is_collection(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _phases(what: frozenset[str]) -> frozenset[Phase]:
    phases = {Phase.FORWARD}
    if "input" in what:
        phases.add(Phase.FORWARD_PRE)
    if "grad" in what:
        phases |= {Phase.BACKWARD_PRE, Phase.BACKWARD}
    if "grad_input" in what:
        phases.add(Phase.BACKWARD)
    return frozenset(phases)
