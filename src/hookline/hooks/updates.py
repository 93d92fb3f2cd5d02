"""What optimizer steps do to parameters: norms of weights, gradients and updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite, nan, sqrt
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hookline.core.calls import Key
from hookline.core.names import around, joined
from hookline.core.records import ParameterRow
from hookline.hooks.amp import applied_scale
from hookline.hooks.aside import StepWatch
from hookline.hooks.moments import sample_of, square_sum
from hookline.hooks.reading import numbers_of
from hookline.torch_base.optimizers import parameters_of
from hookline.torch_base.readable import is_sharded, local_part, readable

EXACT: Final = 2**18
"""Up to so many numbers of a parameter its update is measured exactly; else on so many of them."""

_FIRST_BOUND: Final = 64


_LIMIT: Final = 512
"""So many measurements are read at the latest."""


class _Name(NamedTuple):
    root: str
    names: list[str]


class _Begun(NamedTuple):
    """A parameter in a step that has begun."""

    parameter: Tensor
    before: Tensor | None
    """A copy of (a sample of) its weights; None where they can't be read."""
    gradient: Tensor | None
    """The sum of squares of its gradient; None where there is none, or it can't be read."""


class _Step(NamedTuple):
    """A step that has begun."""

    parameters: list[_Begun]
    names: dict[int, _Name]
    scale: float
    late: bool
    """Whether a closure in it makes the gradients, perhaps those of modules not seen before."""


_Key: TypeAlias = tuple[str, str, str]
"""The root's name, the parameter's, and the class name of the optimizer."""


class _Measured(NamedTuple):
    key: _Key
    sums: Tensor
    """Sums of squares: gradient, weights, update and weights before, of the sample."""


class _Entry:
    """What is known of one parameter over all steps."""

    __slots__ = ("grads", "nonfinite", "ratios", "row", "steps", "weight")

    def __init__(self, row: ParameterRow) -> None:
        self.row = row
        self.steps = 0
        self.nonfinite = 0
        self.weight = 0.0
        self.grads = _Course()
        self.ratios = _Course()


class _Course:
    """The mean, the largest and the latest of some numbers."""

    __slots__ = ("count", "last", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = -inf
        self.last = nan

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self.last = value

    @property
    def numbers(self) -> tuple[float, float, float]:
        return (self.total / self.count, self.most, self.last) if self.count else (nan, nan, nan)


class Updates:
    """Measures parameters at every k-th step of each optimizer.

    Gradients are those that the optimizer uses: accumulated, clipped, with the loss scale taken
    out. Only parameters of modules that were seen are measured, a shared one once.

    Args:
        every: at which steps: those whose number it divides, from 0.
    """

    def __init__(self, every: int) -> None:
        self._every: Final = every
        self._steps: Final = StepWatch(self._before, self._after)
        self._modules: dict[Key[nn.Module], tuple[str, str]] = {}
        self._bound = _FIRST_BOUND
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._begun: WeakKeyDictionary[Any, _Step] = WeakKeyDictionary()
        self._entries: dict[_Key, _Entry] = {}
        self._waiting: list[_Measured] = []
        self.open: Final = self._steps.open

    def see(self, key: Key[nn.Module], root: str, path: str) -> None:
        """Make a module known, by the name of its root and its path."""
        if key not in self._modules:
            self._modules[key] = root, path
            if len(self._modules) > self._bound:  # a program may make modules without end
                self._drop_dead()
                self._bound = 2 * len(self._modules) + _FIRST_BOUND

    def close(self) -> None:
        """Measure no more steps."""
        self._steps.close()
        self._begun.clear()

    def rows(self) -> list[ParameterRow]:
        """What was measured so far."""
        self._read()
        return [_finished(entry) for entry in self._entries.values()]

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._entries.clear()
        self._counts.clear()

    # At a step.

    def _before(self, optimizer: Any, closure: object) -> None:
        number = self._counts.get(optimizer, 0)
        self._counts[optimizer] = number + 1
        if number % self._every:
            return
        found = getattr(optimizer, "found_inf", None)
        if found is not None and float(found):
            return  # it will leave the step out
        late = closure is not None
        names = {} if late else self._names()
        begun = [_begin(p, late=late) for p in parameters_of(optimizer) if late or id(p) in names]
        self._begun[optimizer] = _Step(begun, names, applied_scale(optimizer), late)

    def _after(self, optimizer: Any, _closure: object) -> None:
        step = self._begun.pop(optimizer, None)
        if step is None:
            return
        names = self._names() if step.late else step.names
        for begun in step.parameters:
            found = begun
            if step.late:
                found = begun._replace(gradient=_gradient_of(begun.parameter))
            name = names.get(id(begun.parameter))
            if name is not None and _takes_part(found):
                self._add(found, name, type(optimizer).__name__, step.scale)
        if len(self._waiting) >= _LIMIT or all(m.sums.is_cpu for m in self._waiting):
            self._read()

    def _add(self, begun: _Begun, name: _Name, optimizer: str, scale: float) -> None:
        first, *ties = name.names
        key = name.root, first, optimizer
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = entry = _Entry(_row(begun, key, ties, scale))
        entry.steps += 1
        values = readable(begun.parameter)
        if begun.gradient is None or begun.before is None or values is None:
            return
        sums = (
            begun.gradient / scale**2,
            square_sum(values),
            square_sum(sample_of(values, EXACT) - begun.before),
            square_sum(begun.before),
        )
        self._waiting.append(_Measured(key, torch.stack(sums)))

    def _drop_dead(self) -> None:
        self._modules = {key: where for key, where in self._modules.items() if key() is not None}

    def _names(self) -> dict[int, _Name]:
        """The names of the parameters of the modules that were seen, by identity."""
        found: dict[int, _Name] = {}
        done: set[tuple[str, str]] = set()
        self._drop_dead()
        for key, (root, path) in sorted(self._modules.items(), key=lambda item: len(item[1][1])):
            module = key()
            if module is None or any((root, above) in done for above in (path, *around(path))):
                continue
            done.add((root, path))
            for name, parameter in module.named_parameters(remove_duplicate=False):
                own = found.setdefault(id(parameter), _Name(root, []))
                own.names.append(joined(path, name))
        return found

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        found = numbers_of([measured.sums for measured in waiting])
        for measured, sums in zip(waiting, found, strict=True):
            _count(self._entries[measured.key], sums)


def _begin(parameter: Tensor, *, late: bool) -> _Begun:
    """A parameter as a step begins; its gradient only where it is there already."""
    gradient = None if late else _gradient_of(parameter)
    values = readable(parameter) if late or gradient is not None else None
    before = None if values is None else sample_of(values, EXACT).clone()
    return _Begun(parameter, before, gradient)


def _gradient_of(parameter: Tensor) -> Tensor | None:
    values = None if parameter.grad is None else readable(parameter.grad)
    return None if values is None else square_sum(values)


def _takes_part(begun: _Begun) -> bool:
    """Whether a step is one of a parameter's: it has a gradient, or has nothing to update."""
    if begun.gradient is not None and begun.before is not None:
        return True
    parameter = begun.parameter
    return not (parameter.numel() if parameter.grad is None else _size_here(parameter))


def _size_here(parameter: Any) -> int:
    return local_part(parameter).numel()


def _row(begun: _Begun, key: _Key, ties: Sequence[str], scale: float) -> ParameterRow:
    root, name, optimizer = key
    here = _size_here(begun.parameter)
    notes = (
        ("sharded", is_sharded(begun.parameter)),
        ("empty", not here),
        ("estimated", here > EXACT),
    )
    return ParameterRow(
        *(root, name, tuple(ties), tuple(begun.parameter.shape), optimizer),
        *(0, 0.0, *_Course().numbers, *_Course().numbers),
        scale=scale,
        note=", ".join(note for note, applies in notes if applies),
    )


def _count(entry: _Entry, sums: list[float]) -> None:
    gradient, weights, change, before = sums
    entry.weight = sqrt(weights)
    if isfinite(gradient):
        entry.grads.add(sqrt(gradient))
    else:
        entry.nonfinite += 1
    if before and isfinite(change / before) and isfinite(gradient):
        entry.ratios.add(sqrt(change / before))


def _finished(entry: _Entry) -> ParameterRow:
    norm, norm_max, norm_last = entry.grads.numbers
    ratio, ratio_max, ratio_last = entry.ratios.numbers
    return replace(
        entry.row,
        steps=entry.steps,
        weight_norm=entry.weight,
        grad_norm=norm,
        grad_norm_max=norm_max,
        grad_norm_last=norm_last,
        update_ratio=ratio,
        update_ratio_max=ratio_max,
        update_ratio_last=ratio_last,
        nonfinite=entry.nonfinite,
    )
