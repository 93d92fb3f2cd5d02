"""Who made what is not finite: the verdicts.

A call is the *producer* if what it was given and its parameters were finite, and no call inside it
is to blame; it has a *bad parameter* if that is why; else it is a *propagator*. Where a call is
given something that no call made, it came up in the code of the call around it: of the nearest one
that was itself given finite values. That one is then the producer.

Forward, a call is given inputs and gives outputs. Backward, it is given the gradients of its
outputs and gives those of its inputs and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias
from weakref import ref

import torch
from torch import Tensor, nn

from hookline.core.calls import Call
from hookline.functions.call import FunctionCall
from hookline.hooks.findings import BAD_PARAMETER, PRODUCER, PROPAGATOR, Findings
from hookline.hooks.finite import Found, seems_finite
from hookline.hooks.looks import Look
from hookline.hooks.masks import GIVEN, MOVES, explained, is_mask, makes_mask
from hookline.torch_base.peek import Peek
from hookline.torch_base.private import node_number
from hookline.torch_base.readable import version_of
from hookline.torch_base.tree import leaves

Why: TypeAlias = tuple[str, str]
Report: TypeAlias = Callable[[Call, str, Why, str, Found], None]
Looks: TypeAlias = Callable[[], Sequence[Look]]


class State:
    """What one hook knows of one call.

    Attributes:
        versions: how often each input had been written to when the call began, by identity.
        before: whether what the call overwrites was finite then; None if nobody looked.
        was_mask: whether what it overwrites was a mask.
        edges: the numbers of the autograd nodes that made its inputs; None for other inputs.
        inside: for each direction, the call inside it that is to blame.
        blamed: the directions in which it was blamed itself.
        given_bad: whether the gradients of its outputs were not finite; None before the backward.
        seen: the gradients of its outputs that were looked at.
    """

    __slots__ = (
        "before",
        "blamed",
        "edges",
        "given_bad",
        "inside",
        "seen",
        "versions",
        "was_mask",
    )

    def __init__(self) -> None:
        self.versions: dict[int, int | None] = {}
        self.before: bool | None = None
        self.was_mask = False
        self.edges: tuple[int | None, ...] = ()
        self.inside: dict[str, str] = {}
        self.blamed: tuple[str, ...] = ()
        self.given_bad: bool | None = None
        self.seen: tuple[str, ...] = ()


class Remembered:
    """Tensors known by identity, held weakly."""

    def __init__(self) -> None:
        self._refs: dict[int, ref[Tensor]] = {}

    def add(self, tensor: Tensor) -> None:
        key = id(tensor)
        refs = self._refs
        refs[key] = ref(tensor, lambda _: refs.pop(key, None) and None)

    def discard(self, tensor: Tensor) -> None:
        self._refs.pop(id(tensor), None)

    def clear(self) -> None:
        self._refs.clear()

    def __contains__(self, tensor: Tensor) -> bool:
        found = self._refs.get(id(tensor))
        return found is not None and found() is tensor


class Judge:
    """Gives verdicts on calls of one hook.

    Args:
        findings: what was found before.
        report: told of each verdict: call, direction, why, leaf, what was found.
        masks: whether -inf that are meant raise no alarm.
        allow: whether a call's tensor may be as it is.
    """

    def __init__(
        self,
        findings: Findings,
        report: Report,
        *,
        masks: bool,
        allow: Callable[[Any, str, Tensor | None], bool],
    ) -> None:
        self._findings: Final = findings
        self._report: Final = report
        self._masks: Final = masks
        self._allow: Final = allow
        self._slot: Final = f"nonfinite {id(self)}"
        self._passed = Remembered()
        self._reported = Remembered()

    def state(self, call: Call) -> State:
        """What is known of a call."""
        known = call.__dict__.get(self._slot)
        if known is None:
            known = call.__dict__[self._slot] = State()
        return known

    # Forward.

    def output(self, call: Any, look: Look, given: Looks) -> bool:
        """Judge an output that is not finite; gives whether it is a finding."""
        found = look.examine()
        if found is None or self._let_through(call, look, found, given):
            return False
        if "forward" not in self.state(call).blamed:
            if look.tensor is not None:
                self._reported.add(look.tensor)
            self._judge_output(call, look.leaf, found, given())
        return True

    def _judge_output(self, call: Any, leaf: str, found: Found, given: Sequence[Look]) -> None:
        why = self._why(call, given)
        if why[0] == PROPAGATOR and "forward" not in self.state(call).inside:
            self._blame_around(call, f"{why[1]} of {call.label}[{call.index}]", found)
        elif why[0] != PROPAGATOR:
            self._tell_above(call, "forward")
        self._report(call, "forward", why, leaf, found)

    def _why(self, call: Any, given: Sequence[Look]) -> Why:
        inside = self.state(call).inside.get("forward")
        if inside is not None:
            return PROPAGATOR, inside
        bad = [look for look in given if not look.finite and not self._is_mask(look)]
        for look in bad:
            if look.tensor is None or not isinstance(look.tensor, nn.Parameter | nn.Buffer):
                named = name_around(call, look.tensor)
                return (BAD_PARAMETER, named) if named else (PROPAGATOR, look.leaf)
        if bad:
            return BAD_PARAMETER, name_around(call, bad[0].tensor) or bad[0].leaf
        name = None if isinstance(call, FunctionCall) else bad_parameter(call)
        return (PRODUCER, "") if name is None else (BAD_PARAMETER, name)

    def _is_mask(self, look: Look) -> bool:
        """Whether an input that is not finite is meant to be so."""
        tensor = look.tensor
        if not self._masks or isinstance(tensor, nn.Parameter):
            return False
        if tensor is None:
            return look.masks
        return tensor not in self._reported and is_mask(tensor, look.leaf)

    def _blame_around(self, call: Any, leaf: str, found: Found) -> None:
        """Find the call around in whose own code the input came up."""
        if isinstance(call, FunctionCall):
            return
        above: Any = call.parent
        while above is not None and above.args is not None:
            state = self.state(above)
            if state.inside.get("forward") or "forward" in state.blamed:
                return
            if all(look.finite or self._is_mask(look) for look in self.inputs(above)):
                name = bad_parameter(above)
                why = (PRODUCER, "") if name is None else (BAD_PARAMETER, name)
                self._blame(above, "forward", why, leaf, found)
                return
            above = above.parent

    def inputs(self, call: Any) -> list[Look]:
        """The inputs of a call, with what is known of those that were overwritten since."""
        named = named_inputs(call.args or (), call.kwargs or {})
        return [Look(leaf, tensor, finite=self.before(call, tensor)) for leaf, tensor in named]

    def before(self, call: Call, tensor: Tensor) -> bool | None:
        """Whether an input that is overwritten was finite; None for one that can be looked at."""
        state = self.state(call)
        version = state.versions.get(id(tensor))
        if version is None or version == version_of(tensor):
            return None
        if state.before is not None:
            return state.before
        return self._findings.latest.get("forward") is not call.running

    def _let_through(self, call: Any, look: Look, found: Found, given: Looks) -> bool:
        if self._allow(call, look.leaf, look.tensor):
            return True
        if not (self._masks and found.masks):
            return False
        tensor = look.tensor
        if tensor is None:
            meant = any(i.masks or getattr(i.tensor, "dtype", 0) is torch.bool for i in given())
        else:
            meant = tensor in self._passed or self._is_meant(call, tensor, given())
            if meant:
                self._passed.add(tensor)
        return meant

    def _is_meant(self, call: Any, tensor: Tensor, given: Sequence[Look]) -> bool:
        """Whether each -inf of an output is there on purpose; see `masks`."""
        if isinstance(call, FunctionCall) and call.name in GIVEN:
            return True
        state = self.state(call)
        inputs = [look.tensor for look in given if look.tensor is not None]
        others = [t for t in inputs if self.before(call, t) is None and t is not tensor]
        others = [t for t in others if not isinstance(t, nn.Parameter)]
        if state.was_mask or explained(tensor, others):
            return True
        if not isinstance(call, FunctionCall):
            return makes_mask(tensor, inputs)
        return call.name in MOVES and _are_masks(given)

    # Backward.

    def grad_output(self, call: Any, look: Look, cause: str = "") -> None:
        """Judge a gradient of an output: what a backward is given; `cause` is who made it."""
        state = self.state(call)
        found = look.examine()
        if found is None or self._allow(call, look.leaf, look.tensor):
            state.given_bad = bool(state.given_bad)
            return
        state.given_bad = True
        cause = cause or self._made_around(
            call, f"{look.leaf} of {call.label}[{call.index}]", found
        )
        self._report(call, "backward", (PROPAGATOR, cause), look.leaf, found)

    def _made_around(self, call: Any, leaf: str, found: Found) -> str:
        """Which call around made the gradient in its own code, or has one inside that did."""
        above: Any = None if isinstance(call, FunctionCall) else call.parent
        while above is not None:
            state = self.state(above)
            if state.inside.get("backward"):
                return state.inside["backward"]
            if "backward" in state.blamed or state.given_bad:
                return above.label if "backward" in state.blamed else ""
            if state.given_bad is False:
                self._blame(above, "backward", (PRODUCER, ""), leaf, found)
                return above.label
            above = above.parent
        return ""

    def peeked(self, peek: Peek, look: Look) -> None:
        """Judge the gradient of an input, by the calls that the input was given to."""
        ran = [(c, name) for c, name in peek.uses if self.state(c).given_bad is not None]
        around = {id(above) for call, _ in ran for above in _above(call)}
        inner = [(call, name) for call, name in ran if id(call) not in around]
        if inner and not any(self.state(call).given_bad for call, _ in inner):
            call, name = max(inner, key=lambda use: use[0].start)
            self._made(call, _grad_input(name), look)

    def between(self, call: FunctionCall, ran: Iterable[FunctionCall], look: Look) -> None:
        """Judge a gradient that a function is given, by the functions that use what it gave.

        Args:
            call: the function.
            ran: the functions whose backward has begun, in that order.
            look: the gradient.
        """
        uses = [
            (user, place)
            for user in ran
            if user.thread == call.thread
            for place, edge in enumerate(self.state(user).edges)
            if edge is not None and call.start <= edge < call.stop
        ]
        given_bad = [user for user, _ in uses if self.state(user).given_bad]
        if uses and not given_bad:
            user, place = uses[-1]
            self._made(user, f"grad_input[{place}]", look)
        cause = (given_bad or [user for user, _ in uses])[-1:]
        self.grad_output(call, look, cause[0].label if cause else "")

    def parameter_gradient(self, call: Any, name: str, look: Look) -> None:
        """Judge a gradient that a backward has left at a parameter."""
        self._made(call, f"{name}.grad", look)

    def _made(self, call: Any, leaf: str, look: Look) -> None:
        """Judge a gradient that a backward made."""
        state, found = self.state(call), look.examine()
        explained = state.given_bad or {"backward"} & {*state.inside, *state.blamed}
        if found is None or explained or self._allow(call, leaf, look.tensor):
            return
        name = None if isinstance(call, FunctionCall) else bad_parameter(call)
        why = (PRODUCER, "") if name is None else (BAD_PARAMETER, name)
        self._blame(call, "backward", why, leaf, found)

    def _blame(self, call: Any, direction: str, why: Why, leaf: str, found: Found) -> None:
        self.state(call).blamed += (direction,)
        self._tell_above(call, direction)
        self._report(call, direction, why, leaf, found)

    def _tell_above(self, call: Any, direction: str) -> None:
        for above in _above(call):
            self.state(above).inside.setdefault(direction, call.label)


def _above(call: Call) -> Iterator[Call]:
    above = call.parent
    while above is not None:
        yield above
        above = above.parent


def _are_masks(given: Sequence[Look]) -> bool:
    """Whether some are not finite, and all that are not hold no NaN and no +inf."""
    found = [look.examine() for look in given if not look.finite]
    return bool(found) and all(each is not None and each.masks for each in found)


def _grad_input(name: str) -> str:
    """The path of an input's gradient: `grad_input[0]` for `args[0]`."""
    if name.startswith("args"):
        return "grad_input" + name.removeprefix("args")
    return f"grad_input.{name}"


def bad_parameter(call: Any) -> str | None:
    """The full name of a parameter or buffer of a module call that is not finite."""
    for name, tensor in _parameters(call.module):
        if not seems_finite(tensor):
            return _joined(call.path, name)
    return None


def _parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those of the module itself first."""
    for recurse in (False, True):
        yield from module.named_parameters(recurse=recurse)
        yield from module.named_buffers(recurse=recurse)


def name_around(call: Call, tensor: Tensor | None, other: str = "") -> str:
    """The full name of a parameter or buffer of the modules that are running, if it is one."""
    for above in _above(call) if tensor is not None else ():
        module = getattr(above, "module", None)
        if isinstance(module, nn.Module):
            for name, known in _parameters(module):
                if known is tensor:
                    return _joined(getattr(above, "path", ""), name)
    return other


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def named_inputs(args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a call is given, each with its path; not those that it is to write into."""
    named: list[tuple[str, Tensor]] = []
    for place, value in enumerate(args):
        if isinstance(value, Tensor):
            named.append((f"args[{place}]", value))
        elif value is not None:
            named += leaves(value, f"args[{place}]")
    for name, value in kwargs.items() if kwargs else ():
        if name != "out":
            named += leaves(value, f"kwargs[{name!r}]")
    return named


def edges_of(tensors: Sequence[Tensor | None]) -> tuple[int | None, ...]:
    """The numbers of the autograd nodes that made tensors; None for those that have none."""
    nodes = [None if tensor is None else tensor.grad_fn for tensor in tensors]
    return tuple([None if node is None else node_number(node) for node in nodes])
