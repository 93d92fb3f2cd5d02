"""What the non-finite hooks of both levels have in common: looking, and what follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias
from weakref import ref

from torch import Tensor

from hookline.core.caller import caller_level
from hookline.core.calls import Call
from hookline.core.phases import Phase
from hookline.core.records import NonFiniteRow
from hookline.errors import HookValueError, NonFiniteError
from hookline.hooks.allowed import Allowance, allowance
from hookline.hooks.amp import LossScale
from hookline.hooks.blame import Judge, Why
from hookline.hooks.evidence import Remembered, State
from hookline.hooks.findings import Finding, Findings, in_words, row_of
from hookline.hooks.finite import Found, examine, is_finite
from hookline.hooks.looks import LateLook, Line, Look
from hookline.hooks.measuring import Measuring
from hookline.hooks.overflows import Overflows
from hookline.torch_base.readable import gradient_of, readable, version_of
from hookline.torch_base.tree import leaves, tensors

Action: TypeAlias = Literal["raise", "warn", "record"]


class Watcher(Measuring[NonFiniteRow, Findings]):
    """Looks at the tensors of calls, and tells what is not finite.

    Args: see the hooks.
    """

    def __init__(
        self,
        action: Action = "record",
        *,
        forward: bool = True,
        backward: bool = True,
        allow: Allowance | Iterable[Allowance] = (),
        allow_inf_mask: bool = True,
        scaler: Any = None,
    ) -> None:
        if action not in ("raise", "warn", "record"):
            msg = f"{action!r} is no action; choose 'raise', 'warn' or 'record'"
            raise HookValueError(msg)
        if not (forward or backward):
            msg = "forward=False and backward=False leave nothing to look at"
            raise HookValueError(msg)
        # The backward needs to know what each call was given.
        self.watched_phases = tuple(Phase) if backward else (Phase.FORWARD_PRE, Phase.FORWARD)
        self._action = action
        self._forward = forward
        self._backward = backward
        self._scale = LossScale(scaler)
        self._meter = Findings()
        self._overflows = Overflows(self._scale, self._missed)
        self._line = Line()
        self._judge = Judge(self._meter, self._report, masks=allow_inf_mask, allow=allowance(allow))
        self._bad_parameters = Remembered()
        self._met = Remembered()
        self._registered = 0
        self._direction = ""
        self._latest: Callable[[], Tensor | None] = lambda: None
        self._latest_version: int | None = None

    # What was found.

    @property
    def first(self) -> NonFiniteRow | None:
        """Where it came up first: the first producer or bad parameter.

        If nobody is to blame for what was found (the data was not finite, say), the first call
        that was given it; None if nothing was found.
        """
        rows = self.rows()
        origins = [row for row in rows if row.verdict != "propagator"]
        return next(iter(origins or rows), None)

    def rows(self) -> list[NonFiniteRow]:
        """All places where something was found, the first one first."""
        self._line.read()
        self._overflows.settle()
        return super().rows()

    def _why_empty(self) -> str:
        return ": nothing was found that is not finite"

    @property
    def times(self) -> int:
        """In how many calls something was found so far; waits for no device."""
        return self._meter.times

    def reset(self) -> None:
        """Forget what was found; the next is the first again."""
        self._line.clear()
        self._overflows.clear()
        self._meter.reset()
        self._bad_parameters.clear()
        self._met.clear()

    # Registration.

    def added(self, target: object) -> None:
        """Watch optimizer steps too, where a scaler is to be relied on."""
        self._registered += 1
        self._overflows.open()

    def deleted(self, target: object) -> None:
        """Read what is still in line."""
        self._registered -= 1
        if not self._registered:
            self._overflows.close()
        self._line.read()

    # Looking.

    def _waits(self, values: Tensor) -> bool:
        """Whether reading a number would wait for a device, where nobody asked for that."""
        return self._action != "raise" and not values.is_cpu

    def _turn(self, direction: str) -> bool:
        """Read what is in line where forward and backward alternate; gives whether they do."""
        if self._direction == direction:
            return False
        self._direction = direction
        self._line.read()
        return True

    def _look_before(self, given: Sequence[Tensor], state: State) -> None:
        """Look at what a call will overwrite."""
        values = [each for each in map(readable, given) if each is not None]
        if not any(map(self._waits, values)):
            state.before = all(map(is_finite, values))
            found = [] if state.before else [examine(tensor) for tensor in given]
            state.was_mask = any(each is not None and each.masks for each in found)

    def _look_at_outputs(self, call: Any, value: Any) -> None:
        """Look at the outputs of a forward."""
        late: list[LateLook] = []
        for place, tensor in enumerate(tensors(value)):
            version = version_of(tensor)
            if self._latest() is tensor and self._latest_version == version is not None:
                continue  # a container returns what the last one in it did, which was finite
            values = readable(tensor)
            if values is None:
                continue
            if self._waits(values):
                late.append(self._line.look(leaves(value)[place][0], tensor, values))
            elif is_finite(values):
                self._latest, self._latest_version = ref(tensor), version
            else:
                look = Look(leaves(value)[place][0], tensor, finite=False)
                if self._judge.output(call, look, partial(self._judge.inputs, call)):
                    break
        if late:
            given = self._late_inputs(call)
            waits = [*late, *(look for look in given if isinstance(look, LateLook))]
            self._line.add(waits, partial(self._judge_late, call, late, given))

    def _late_inputs(self, call: Any) -> list[Look]:
        """What a call was given, as far as that must be known later."""
        return [self._late_input(look) for look in self._judge.inputs(call)]

    def _late_input(self, look: Look) -> Look:
        tensor = look.tensor
        if tensor is None or look.overwritten:
            return look
        values = readable(tensor)
        if values is None or self._waits(values):
            return self._line.look(look.leaf, tensor, values)
        return Look(look.leaf, None, finite=look.finite)

    def _judge_late(self, call: Any, late: Sequence[LateLook], given: Sequence[Look]) -> None:
        for look in late:
            if not look.finite and self._judge.output(call, look, lambda: given):
                break

    def _look_at(self, leaf: str, tensor: Tensor, then: Callable[[Look], None]) -> None:
        """Look at a gradient; `then` is called with it if it is not finite."""
        if self._latest() is tensor and self._latest_version == version_of(tensor):
            return  # it was finite
        values = readable(tensor)
        if values is None:
            return
        if self._waits(values):
            look = self._line.look(leaf, tensor, values)
            self._line.add([look], lambda: None if look.finite else then(look))
        elif is_finite(values):
            self._latest, self._latest_version = ref(tensor), version_of(tensor)
        else:
            then(Look(leaf, tensor, finite=False))

    def _meet(self, call: Any, name: str | Callable[[], str], parameter: Tensor) -> None:
        """Look at the gradient that a parameter had before any backward that was watched."""
        if parameter in self._met:
            return
        self._met.add(parameter)
        gradient = gradient_of(parameter)
        values = None if gradient is None else readable(gradient)
        if values is not None and not self._waits(values) and not is_finite(values):
            self._bad_parameters.add(parameter)
            full = name if isinstance(name, str) else name()
            self._judge.old_gradient(call, full, Look("grad", gradient, finite=False))

    def _look_at_parameter(
        self, call: Any, name: str | Callable[[], str], parameter: Tensor
    ) -> None:
        """Look at the gradient that the backward of a call has left at a parameter."""
        gradient = parameter.grad
        if gradient is None:
            self._bad_parameters.discard(parameter)
            return
        known = parameter in self._bad_parameters
        if known:
            self._bad_parameters.discard(parameter)
        alive = ref(parameter)

        def bad(look: Look) -> None:
            there = alive()
            if there is not None:
                self._bad_parameters.add(there)
            if not known:  # nothing cures it until it is zeroed
                full = name if isinstance(name, str) else name()
                self._judge.parameter_gradient(call, full, look)

        self._look_at("grad", gradient, bad)

    # What follows.

    def _report(self, call: Call, direction: str, why: Why, leaf: str, found: Found) -> None:
        """Keep a finding, and do with it what was asked for."""
        expected = self._overflows.expects(call, direction)
        scale = self._scale.now() if expected else None
        row = row_of(call, direction, why, leaf, found, scale)
        finding, new = self._meter.add(call, row)
        if scale is not None:
            self._overflows.add(finding, scale)
        elif self._action == "raise":
            raise NonFiniteError(in_words(row), row)
        elif self._action == "warn" and new and (finding.is_origin or len(self._meter) == 1):
            warnings.warn(in_words(row), RuntimeWarning, stacklevel=caller_level())

    def _missed(self, finding: Finding, optimizer: str) -> None:
        """An optimizer goes ahead with gradients that the scaler was relied on to catch."""
        what = in_words(finding.row)
        msg = f"{optimizer} takes a step with gradients that are not finite: {what}"
        if self._action == "raise":
            raise NonFiniteError(msg, finding.row)
        if self._action == "warn":
            warnings.warn(msg, RuntimeWarning, stacklevel=caller_level())
