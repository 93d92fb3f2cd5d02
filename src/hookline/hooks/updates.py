"""What optimizer steps do to parameters: norms of weights, gradients and updates."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, nan, sqrt
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hookline.core.calls import Key
from hookline.core.records import ParameterRow
from hookline.hooks.amp import applied_scale
from hookline.hooks.aside import StepWatch
from hookline.hooks.moments import sample_of, square_sum
from hookline.torch_base.optimizers import parameters_of
from hookline.torch_base.readable import is_sharded, local_part, readable

EXACT: Final = 2**18
"""Up to so many numbers of a parameter its update is measured exactly; else on so many of them."""

_FIRST_BOUND: Final = 64


class _Name(NamedTuple):
    root: str
    names: list[str]


class _Begun(NamedTuple):
    """A parameter in a step that has begun."""

    parameter: Tensor
    name: _Name | None
    """None until the step is over where a closure runs in it: it makes the gradients."""
    gradient: Tensor | None
    """The sum of squares of its gradient."""
    before: Tensor | None
    """A copy of (a sample of) its weights."""
    scale: float


class _Measured(NamedTuple):
    key: tuple[str, str, str]
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
        self._begun: WeakKeyDictionary[Any, list[_Begun]] = WeakKeyDictionary()
        self._entries: dict[tuple[str, str, str], _Entry] = {}
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
        if closure is not None:
            late = (_begin_late(parameter) for parameter in parameters_of(optimizer))
            self._begun[optimizer] = [begun for begun in late if begun is not None]
            return
        scale, names = applied_scale(optimizer), self._names()
        self._begun[optimizer] = [
            begun
            for parameter in parameters_of(optimizer)
            if id(parameter) in names
            and (begun := _begin(parameter, names[id(parameter)], scale)) is not None
        ]

    def _after(self, optimizer: Any, _closure: object) -> None:
        for begun, (root, names) in self._named(self._begun.pop(optimizer, [])):
            key = (root, names[0], type(optimizer).__name__)
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = entry = _Entry(_row(begun, names[1:], key))
            entry.steps += 1
            values = readable(begun.parameter)
            if begun.gradient is None or begun.before is None or values is None:
                continue
            change = sample_of(values, EXACT) - begun.before
            sums = (
                begun.gradient / begun.scale**2,
                square_sum(values),
                square_sum(change),
                square_sum(begun.before),
            )
            self._waiting.append(_Measured(key, torch.stack(sums)))
        if len(self._waiting) >= 512 or all(m.sums.is_cpu for m in self._waiting):  # noqa: PLR2004
            self._read()

    def _named(self, step: list[_Begun]) -> Iterator[tuple[_Begun, _Name]]:
        known = self._names() if any(begun.name is None for begun in step) else {}
        for begun in step:
            if begun.name is not None:
                yield begun, begun.name
                continue
            gradient = begun.parameter.grad
            values = None if gradient is None else readable(gradient)
            if values is not None and id(begun.parameter) in known:
                yield begun._replace(gradient=square_sum(values)), known[id(begun.parameter)]

    def _drop_dead(self) -> None:
        self._modules = {key: where for key, where in self._modules.items() if key() is not None}

    def _names(self) -> dict[int, _Name]:
        """The names of the parameters of the modules that were seen, by identity."""
        found: dict[int, _Name] = {}
        done: set[tuple[str, str]] = set()
        self._drop_dead()
        for key, (root, path) in sorted(self._modules.items(), key=lambda item: len(item[1][1])):
            module = key()
            if module is None or any((root, above) in done for above in _above(path)):
                continue
            done.add((root, path))
            for name, parameter in module.named_parameters(remove_duplicate=False):
                full = f"{path}.{name}" if path else name
                found.setdefault(id(parameter), _Name(root, [])).names.append(full)
        return found

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for device in {measured.sums.device for measured in waiting}:
            some = [measured for measured in waiting if measured.sums.device == device]
            rows = torch.stack([measured.sums for measured in some]).tolist()
            for measured, row in zip(some, rows, strict=True):
                _add(self._entries[measured.key], row)


def _above(path: str) -> Iterator[str]:
    """A path and those of the modules around it."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def _begin(parameter: Tensor, name: _Name, scale: float) -> _Begun | None:
    """A parameter as a step begins; None if it takes no part."""
    gradient = parameter.grad
    if gradient is None:
        return None if parameter.numel() else _Begun(parameter, name, None, None, scale)
    values, gradients = readable(parameter), readable(gradient)
    if values is None or gradients is None:
        return None if _size_here(parameter) else _Begun(parameter, name, None, None, scale)
    sample = sample_of(values, EXACT).clone()
    return _Begun(parameter, name, square_sum(gradients), sample, scale)


def _begin_late(parameter: Tensor) -> _Begun | None:
    """A parameter whose gradient the step will make; None if its numbers can't be read."""
    values = readable(parameter)
    if values is None:
        return None
    return _Begun(parameter, None, None, sample_of(values, EXACT).clone(), 1.0)


def _size_here(parameter: Any) -> int:
    return local_part(parameter).numel()


def _row(begun: _Begun, others: list[str], key: tuple[str, str, str]) -> ParameterRow:
    root, name, optimizer = key
    here = _size_here(begun.parameter)
    notes = (
        ("sharded", is_sharded(begun.parameter)),
        ("empty", not here),
        ("estimated", here > EXACT),
    )
    return ParameterRow(
        root,
        name,
        tuple(others),
        tuple(begun.parameter.shape),
        optimizer,
        *(0, 0.0, nan, nan, nan, nan, nan, nan),
        scale=begun.scale,
        note=", ".join(note for note, applies in notes if applies),
    )


def _add(entry: _Entry, sums: list[float]) -> None:
    gradient, weights, change, before = sums
    entry.weight = sqrt(weights)
    if isfinite(gradient):
        entry.grads.add(sqrt(gradient))
    else:
        entry.nonfinite += 1
    if before and isfinite(change / before) and isfinite(gradient):
        entry.ratios.add(sqrt(change / before))


def _finished(entry: _Entry) -> ParameterRow:
    row = entry.row
    return ParameterRow(
        row.root,
        row.name,
        row.ties,
        row.shape,
        row.optimizer,
        entry.steps,
        entry.weight,
        *entry.grads.numbers,
        *entry.ratios.numbers,
        nonfinite=entry.nonfinite,
        scale=row.scale,
        note=row.note,
    )
