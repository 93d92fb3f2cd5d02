"""FLOPs of every module or function: forward and backward, and by which operators."""

from __future__ import annotations

from typing import Any, ClassVar

from hookline.core.records import FlopRow, UncountedRow
from hookline.hooks.brackets import FunctionBrackets, ModuleBrackets
from hookline.hooks.flop_meter import FlopMeter
from hookline.hooks.measuring import Measuring
from hookline.hooks.subject import subject_of
from hookline.torch_base.operators import OperatorMode


class Flops(Measuring[FlopRow, FlopMeter]):
    """What the FLOP hooks of both levels have in common."""

    _level: ClassVar[str]

    def __init__(self) -> None:
        self._meter = FlopMeter(self._level)
        self._end = self._meter.end
        self.operator_mode = OperatorMode(self._meter.ran)

    def opened(self) -> None:
        """In a scope, what runs outside of every call counts too."""
        self.operator_mode.put_on()
        self._meter.open()

    def closed(self) -> None:
        """From here on only calls count."""
        self._meter.close()
        self.operator_mode.take_out()

    def deleted(self, target: Any) -> None:
        """Where the hook is removed inside of calls, they have no end."""
        self._meter.drop_running()

    def total_flops(self) -> int:
        """All FLOPs that were counted, of forwards, backwards and repeated forwards."""
        return self._meter.total()

    def all_rows(self) -> list[FlopRow | UncountedRow]:
        """What was counted, and what could not be."""
        return [*self.rows(), *self.uncounted()]

    def uncounted(self) -> list[UncountedRow]:
        """Operators that do matrix work, or may do it, and for which there is no number.

        Returns:
            A row for each, with who ran it how often, and why it was not counted.
        """
        return self._meter.uncounted()

    def _begin(self, call: Any, direction: str) -> None:
        self._meter.begin(call, subject_of(call, direction))


class ModuleFlopHook(Flops, ModuleBrackets):
    """Counts the FLOPs of modules, forward and backward, by the shapes that operators get.

    The formulas are those of `torch.utils.flop_counter`, the program's own among them
    (`register_flop_formula`), and more for what counts as nothing there: attention on a CPU,
    recurrent layers, products with vectors. A multiplication and an addition count as two;
    element-by-element work does not count. Operators without a formula are in `uncounted()`.

    A row's `self_flops` are of operators that the module's own forward runs, its `total_flops`
    those of the modules inside too. A forward that activation checkpointing repeats is kept
    apart (`recompute`; it is a part of the total of the backward in which it runs), and so are
    passes in train, eval and no-grad mode. With the hook on chosen modules (`watch`), what others
    run belongs to the innermost chosen one around them. In a scope (`with`), what runs outside of
    every module counts too, in rows without a path.

    While the hook's calls run, and all through a scope, a dispatch mode is on. Each operator then
    takes some 20 to 60 microseconds more, which timers beside this hook measure too, and the
    first loads the compiler's package (about a second).

    Example:
        >>> import torch
        >>> from hookline.module_hooks import FlopHook
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> with FlopHook() as flops:
        ...     model(torch.randn(5, 8)).sum().backward()
        >>> [(row.path, row.self_flops) for row in flops.rows() if row.direction == "forward"]
        [('', 0), ('0', 320), ('1', 0)]
        >>> flops.total_flops()  # and 320 for the gradient of the weight
        640
    """

    name = "FlopHook"
    _level = "module"


class FunctionFlopHook(Flops, FunctionBrackets):
    """Counts the FLOPs of functions, forward and backward, by the shapes that operators get.

    Functions do not nest, so a row's `self_flops` and `total_flops` are the same. What
    [hookline.module_hooks.FlopHook][] says of formulas, checkpoints, modes, scopes and costs holds
    here too.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import FlopHook
        >>> with FlopHook() as flops:
        ...     _ = torch.relu(torch.ones(5, 8) @ torch.ones(8, 4))
        >>> [(row.name, row.self_flops) for row in flops.rows() if row.self_flops]
        [('matmul', 320)]
    """

    name = "FlopHook"
    _level = "function"
