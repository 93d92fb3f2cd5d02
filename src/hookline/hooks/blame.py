"""Who made what is not finite: the verdicts.

A call is the *producer* if what it was given and its parameters were finite, and no call inside it
is to blame; it has a *bad parameter* if that is why; else it is a *propagator*. Where a call is
given something that no call made, it came up in the code of the call around it: of the nearest one
that was itself given finite values. That one is then the producer.

Forward, a call is given inputs and gives outputs. Backward, it is given the gradients of its
outputs and gives those of its inputs and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakMethod

from torch import Tensor, nn

from hookline.core.calls import Call
from hookline.functions.call import FunctionCall
from hookline.hooks.evidence import (
    State,
    bad_parameter,
    calls_around,
    name_around,
    named_inputs,
)
from hookline.hooks.findings import BAD_PARAMETER, PRODUCER, PROPAGATOR, Findings
from hookline.hooks.finite import Found
from hookline.hooks.looks import Look
from hookline.hooks.meant import Meant
from hookline.modules.call import ModuleCall
from hookline.torch_base.peek import Peek
from hookline.torch_base.readable import version_of

Why: TypeAlias = tuple[str, str]
Report: TypeAlias = Callable[[Call, str, Why, str, Found], None]
Looks: TypeAlias = Callable[[], Sequence[Look]]


class Judge:
    """Gives verdicts on calls of one hook.

    Args:
        findings: what was found before.
        report: a method, held weakly; told of each verdict: call, direction, why, leaf, what was
            found.
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
        self._reporter: Final = WeakMethod(report)
        self._meant: Final = Meant(on=masks)
        self._allow: Final = allow
        self._slot: Final = f"nonfinite {id(self)}"

    def state(self, call: Call) -> State:
        """What is known of a call."""
        # Not through `call.__dict__`: an object whose dictionary was asked for is slower for good.
        known: State | None = getattr(call, self._slot, None)
        if known is None:
            known = State()
            setattr(call, self._slot, known)
        return known

    # Forward.

    def output(self, call: Any, look: Look, given: Looks) -> bool:
        """Judge an output that is not finite; gives whether it is a finding."""
        found, state = look.examine(), self.state(call)
        if found is None or self._allow(call, look.leaf, look.tensor):
            return False
        if found.masks and self._meant.gives(call, look, found, given(), state):
            return False
        state.found = True
        if "forward" not in state.blamed:
            self._meant.report(look)
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
        bad = [look for look in given if not look.finite and not self._meant.given(call, look)]
        for look in bad:
            if look.tensor is None or not isinstance(look.tensor, nn.Parameter | nn.Buffer):
                named = name_around(call, look.tensor)
                return (BAD_PARAMETER, named) if named else (PROPAGATOR, look.leaf)
        if bad:
            return BAD_PARAMETER, name_around(call, bad[0].tensor) or bad[0].leaf
        return self._own(call)

    def _own(self, call: Any) -> Why:
        """Why a call made it that was given finite values."""
        name = bad_parameter(call) if isinstance(call, ModuleCall) else None
        return (PRODUCER, "") if name is None else (BAD_PARAMETER, name)

    def _blame_around(self, call: Any, leaf: str, found: Found) -> None:
        """Find the call around in whose own code the input came up."""
        above: Any = call.parent if isinstance(call, ModuleCall) else None
        while above is not None and above.args is not None:
            state = self.state(above)
            if state.inside.get("forward") or "forward" in state.blamed:
                return
            given = self.inputs(above)
            if all(look.finite or self._meant.given(above, look) for look in given):
                if not any(look.unsure for look in given):
                    self._blame(above, "forward", self._own(above), leaf, found)
                return
            above = above.parent

    def inputs(self, call: Any) -> list[Look]:
        """The inputs of a call, with what is known of those that it has overwritten."""
        state = self.state(call)
        looks: list[Look] = []
        for leaf, tensor in named_inputs(call.args or (), call.kwargs or {}):
            version = state.versions.get(id(tensor))
            if version is None or version == version_of(tensor):
                looks.append(Look(leaf, tensor))
            elif state.before is not None:
                looks.append(Look(leaf, tensor, finite=state.before, overwritten=True))
            else:
                # Nobody looked: it was as finite as what was found before.
                clean = self._findings.latest.get("forward") is not call.running
                looks.append(Look(leaf, tensor, finite=clean, overwritten=True, unsure=True))
        return looks

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
        above: Any = call.parent if isinstance(call, ModuleCall) else None
        while above is not None:
            state = self.state(above)
            if state.inside.get("backward"):
                return state.inside["backward"]
            if "backward" in state.blamed or state.given_bad:
                return above.label if "backward" in state.blamed else ""
            if state.given_bad is False:
                self._blame(above, "backward", self._own_backward(above), leaf, found)
                return above.label
            above = above.parent
        return ""

    def peeked(self, peek: Peek, look: Look) -> None:
        """Judge the gradient of an input, by the calls that the input was given to."""
        ran = [use for use in peek.uses if self.state(use[0]).given_bad is not None]
        if ran and not any(self.state(call).given_bad for call, _ in ran):
            call, name = max(ran, key=lambda use: use[0].start)  # the innermost, the last
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
            for user in list(ran)  # another thread may add to them
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

    def old_gradient(self, call: Any, name: str, look: Look) -> None:
        """Judge a gradient of a parameter that no backward made which was watched."""
        leaf, found = f"{name}.grad", look.examine()
        if found is not None and not self._allow(call, leaf, look.tensor):
            self._report(call, "backward", (PROPAGATOR, "an earlier backward"), leaf, found)

    def parameter_gradient(self, call: Any, name: str, look: Look) -> None:
        """Judge a gradient that a backward has left at a parameter."""
        self._made(call, f"{name}.grad", look)

    def _made(self, call: Any, leaf: str, look: Look) -> None:
        """Judge a gradient that a backward made."""
        state, found = self.state(call), look.examine()
        explained = state.given_bad or {"backward"} & {*state.inside, *state.blamed}
        if found is None or explained or self._allow(call, leaf, look.tensor):
            return
        self._blame(call, "backward", self._own_backward(call), leaf, found)

    def _own_backward(self, call: Any) -> Why:
        """Why a call made it that was given finite gradients."""
        return (PROPAGATOR, "its forward") if self.state(call).found else self._own(call)

    def _blame(self, call: Any, direction: str, why: Why, leaf: str, found: Found) -> None:
        state = self.state(call)
        state.blamed += (direction,)
        state.found = state.found or direction == "forward"
        self._tell_above(call, direction)
        self._report(call, direction, why, leaf, found)

    def _report(self, call: Call, direction: str, why: Why, leaf: str, found: Found) -> None:
        report = self._reporter()
        if report is not None:
            report(call, direction, why, leaf, found)

    def _tell_above(self, call: Any, direction: str) -> None:
        for above in calls_around(call):
            state = self.state(above)
            state.inside.setdefault(direction, call.label)
            state.found = state.found or direction == "forward"


def _grad_input(name: str) -> str:
    """The path of an input's gradient: `grad_input[0]` for `args[0]`."""
    if name.startswith("args"):
        return "grad_input" + name.removeprefix("args")
    return f"grad_input.{name}"
