"""The distribution of activations and gradients, and what training does to parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor

from hookline.core.calls import Pass
from hookline.core.phases import Phase
from hookline.core.records import ParameterRow, StatsRow
from hookline.errors import HookValueError
from hookline.functions.call import FunctionCall, Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.amp import LossScale
from hookline.hooks.measuring import Measuring
from hookline.hooks.subject import Subject, subject_of
from hookline.hooks.tally import Looked, Tally
from hookline.hooks.updates import Updates
from hookline.modules.call import ModuleCall
from hookline.modules.hook import ModuleHook
from hookline.torch_base.readable import readable
from hookline.torch_base.tree import leaves


class Statistics(Measuring[StatsRow, Tally]):
    """What the statistics hooks of both levels have in common."""

    _updates: Updates | None = None

    def __init__(
        self,
        every: int = 100,
        *,
        activations: bool = True,
        gradients: bool = True,
        histogram: bool = True,
        scaler: Any = None,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            msg = f"every={every!r}: give a whole number of passes, 1 for all of them"
            raise HookValueError(msg)
        forward = activations or self._updates is not None
        wanted = {Phase.FORWARD: forward, Phase.BACKWARD: gradients}
        self.watched_phases = tuple(phase for phase, is_wanted in wanted.items() if is_wanted)
        if not self.watched_phases:
            msg = "everything is switched off; leave something to measure"
            raise HookValueError(msg)
        self.every: Final = every
        self._activations = activations
        self._meter = Tally(histogram=histogram)
        self._scale = LossScale(scaler)
        self._scaled: tuple[Pass | None, float] = None, 1.0

    def _why_empty(self) -> str:
        if self.every == 1:
            return super()._why_empty()
        return (
            f": every={self.every} measures passes 0, {self.every}, {2 * self.every} …, counted "
            "for each root since hookline first saw it, and none of these was seen; every=1 "
            "measures all"
        )

    def _is_due(self, call: Any) -> bool:
        return not call.running.number % self.every

    def listen(self, listener: Callable[[Subject, str, int, Looked], None]) -> None:
        """Give what each look at a tensor finds to a listener too, with the number of its pass."""
        self._meter.listener = listener

    def _add_outputs(self, call: Any, outputs: Any) -> None:
        if self._activations and self._is_due(call) and not call.recomputing:
            self._add(call, "forward", leaves(outputs, "output"))

    def _add_gradients(self, call: Any, gradients: Any) -> None:
        if self._is_due(call):
            scale = self._scale_in(call.running)
            self._add(call, "backward", leaves(gradients, "grad_output"), scale)

    def _add(
        self, call: Any, direction: str, found: Iterable[tuple[str, Tensor]], scale: float = 1.0
    ) -> None:
        for leaf, tensor in found:
            values = readable(tensor)
            if values is not None:
                what = subject_of(call, direction)
                self._meter.add(what, leaf, values, scale, call.running.number)

    def _scale_in(self, running: Pass) -> float:
        """The loss scale of a pass; asked for once, since a scaler may wait for its device."""
        if self._scaled[0] is not running:
            self._scaled = running, self._scale.now()
        return self._scaled[1]


class ModuleStatsHook(Statistics, ModuleHook):
    """Measures the outputs of modules and their gradients, and parameters at optimizer steps.

    Of each output, and of the gradient of each, every k-th pass: mean, standard deviation,
    extremes, L2 norm, share of zeros, NaN and Inf counted, and a histogram of magnitudes from a
    sample. All is added up as it comes, so that memory does not grow with the number of passes; on
    a device nothing waits for it until `rows()` is called. Forwards that activation checkpointing
    repeats are left out.

    Of each parameter, every k-th step of its optimizer: the norm of the weights, of the gradient
    that the optimizer used (so with gradient accumulation the whole one, once), and how large the
    update was against the weights. A copy of up to 262,144 of its weights is kept for the duration
    of these steps. Sharded and empty parameters are told as such, and measured as far as they are
    here.

    Args:
        every: which passes: those whose number it divides, from 0.
        activations: measure outputs.
        gradients: measure gradients of outputs.
        parameters: measure parameters.
        histogram: count magnitudes too; the bins are given by `hookline.core.magnitudes.edges()`.
        scaler: the `torch.amp.GradScaler` in use, or a function that gives the loss scale:
            gradients are divided by it.

    Raises:
        HookValueError: `every` is no whole number from 1 up, or there is nothing to measure.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hookline.module_hooks import StatsHook
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with StatsHook(every=1) as stats:
        ...     for _ in range(3):
        ...         model(torch.randn(16, 4)).sum().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> row = stats.rows()[1]
        >>> row.path, row.direction, row.leaf, row.calls, row.count
        ('1', 'forward', 'output', 3, 384)
        >>> 0 < row.zero_share < 1, row.minimum
        (True, 0.0)
        >>> [(row.name, row.steps, row.update_ratio > 0) for row in stats.parameter_rows()]
        [('0.weight', 3, True), ('0.bias', 3, True)]
    """

    name = "StatsHook"

    def __init__(
        self,
        every: int = 100,
        *,
        activations: bool = True,
        gradients: bool = True,
        parameters: bool = True,
        histogram: bool = True,
        scaler: Any = None,
    ) -> None:
        self._updates = Updates(every) if parameters else None
        self._registered = 0
        super().__init__(
            every,
            activations=activations,
            gradients=gradients,
            histogram=histogram,
            scaler=scaler,
        )

    def all_rows(self) -> list[StatsRow | ParameterRow]:
        """What was measured of outputs, gradients and parameters."""
        return [*self.rows(), *self.parameter_rows()]

    def parameter_rows(self) -> list[ParameterRow]:
        """What was measured of parameters, a row for each."""
        return [] if self._updates is None else self._updates.rows()

    def reset(self) -> None:
        """Forget what was measured."""
        super().reset()
        if self._updates is not None:
            self._updates.clear()

    def added(self, target: object) -> None:
        """Watch optimizer steps."""
        self._registered += 1
        if self._updates is not None:
            self._updates.open()

    def deleted(self, target: object) -> None:
        """Watch them no longer."""
        self._registered -= 1
        if self._updates is not None and not self._registered:
            self._updates.close()

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Measure the outputs."""
        if self._updates is not None:
            self._updates.see(call.key, call.root, call.path)
        self._add_outputs(call, call.out)

    def backward_postprocess(self, call: ModuleCall) -> None:
        """Measure the gradients of the outputs."""
        self._add_gradients(call, call.grad_output)


class FunctionStatsHook(Statistics, FunctionHook):
    """Measures the outputs of functions and their gradients, every k-th pass.

    What [hookline.module_hooks.StatsHook][] says of these holds here too; parameters are measured
    there. Functions are told apart by the module that calls them and their name.

    Args:
        every: which passes: those whose number it divides, from 0.
        activations: measure outputs.
        gradients: measure gradients of outputs.
        histogram: count magnitudes too.
        scaler: the `torch.amp.GradScaler` in use, or a function that gives the loss scale.

    Raises:
        HookValueError: `every` is no whole number from 1 up, or there is nothing to measure.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import StatsHook
        >>> with StatsHook(every=1) as stats:
        ...     _ = torch.tensor([3.0, -4.0]).relu()
        >>> [(row.name, row.mean, row.norm, row.zero_share) for row in stats.rows()]
        [('tensor', -0.5, 5.0, 0.0), ('relu', 1.5, 3.0, 0.5)]
    """

    name = "StatsHook"

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Measure the outputs."""
        self._add_outputs(function, function.result)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Measure the gradients of the outputs."""
        self._add_gradients(function, out_grad)
