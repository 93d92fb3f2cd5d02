"""Gradients that overflow under a loss scale, as they now and then must, and what became of them.

A scaler looks for the largest scale that does not overflow; where one does, it leaves the optimizer
step out and takes a smaller one. So such a gradient is no fault, unless an optimizer uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakMethod

from torch import Tensor

from hookline.core.calls import Call
from hookline.functions.call import FunctionCall
from hookline.hooks.amp import LossScale
from hookline.hooks.aside import StepWatch
from hookline.hooks.findings import Finding
from hookline.hooks.finite import seems_finite
from hookline.torch_base.optimizers import parameters_of


class Overflows:
    """The gradients of which it is not known yet whether the scaler caught them.

    Args:
        scale: the loss scale.
        missed: told of a finding with which an optimizer goes ahead, and of the optimizer.
    """

    def __init__(self, scale: LossScale, missed: Callable[[Finding, str], None]) -> None:
        self._scale: Final = scale
        self._missed: Final = WeakMethod(missed)
        self._open: dict[int, tuple[Finding, float]] = {}
        self._steps: Final = StepWatch(self._stepping)

    def expects(self, call: Call, direction: str) -> bool:
        """Whether a finding may be an overflow: in gradients, or in what is done with them."""
        if not self._scale.active:
            return False
        after = isinstance(call, FunctionCall) and call.module_path is None
        return direction == "backward" or (after and bool(self._open))

    def add(self, finding: Finding, scale: float) -> None:
        """Wait for what becomes of a finding."""
        self._open[id(finding)] = finding, scale

    def settle(self) -> None:
        """See whether the scaler has taken a smaller scale since."""
        if not self._open:
            return
        now = self._scale.now()
        for key, (finding, scale) in list(self._open.items()):
            if now < scale:
                finding.skipped = True
                del self._open[key]

    def clear(self) -> None:
        """Forget them."""
        self._open.clear()

    def open(self) -> None:
        """Watch the steps of optimizers, where there is a scaler."""
        if self._scale.given:
            self._steps.open()

    def close(self) -> None:
        """Watch no more steps."""
        self._steps.close()

    def _stepping(self, optimizer: Any, _closure: object) -> None:
        if not self._open or getattr(optimizer, "found_inf", None) is not None:
            return  # nothing is open, or the optimizer leaves out what overflowed by itself
        self.settle()
        if not self._open or all(map(seems_finite, _gradients(optimizer))):
            return
        findings = [finding for finding, _ in self._open.values()]
        self._open.clear()
        for finding in findings:
            finding.skipped = False
        missed = self._missed()
        if missed is not None:
            missed(findings[0], type(optimizer).__name__)


def _gradients(optimizer: Any) -> Iterator[Tensor]:
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            yield parameter.grad
