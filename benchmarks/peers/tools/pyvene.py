"""pyvene: interventions, given as a list of places and of what happens there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyvene
from torch import Tensor, nn

from benchmarks.peers.subject import Subject, Tensors
from benchmarks.peers.tool import Capture, Tool
from benchmarks.runner import Job, Run, whole


def _made(model: nn.Module, paths: list[str], intervention: Callable[[], Any]) -> Any:
    places = [{"component": f"{path}.output", "intervention": intervention()} for path in paths]
    return pyvene.IntervenableModel(places, model=model)


def _copied(subject: Subject) -> nn.Module:
    """It freezes the parameters of what it is given, and wants a configuration on it."""
    model = copy.deepcopy(subject.model)
    model.config = SimpleNamespace()
    return model


class Pyvene(Tool):
    name = "pyvene"
    remark = (
        "pyvene: it freezes the parameters of the model, so its forward builds no graph; the plain "
        "run beside it does. To set up is to make an `IntervenableModel`, which is done once."
    )

    def outputs(self, subject: Subject) -> Capture:
        model = _made(_copied(subject), [*subject.leaves], pyvene.CollectIntervention)
        inputs = {_first_argument(subject.model): subject.x}

        def capture() -> Tensors:
            (_, kept), _ = model(inputs)
            return dict(zip(subject.leaves, kept, strict=True))

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        def each(base: Tensor, source: Tensor | None) -> Tensor:
            hook(base)
            return base

        model = _made(_copied(subject), [*subject.leaves], lambda: each)
        inputs = {_first_argument(subject.model): subject.x}
        return whole(lambda: model(inputs))

    def set_up(self, model: nn.Sequential) -> Run:
        model.config = SimpleNamespace()
        paths = [str(number) for number in range(len(model))]
        return lambda: _made(model, paths, lambda: lambda base, source: base)


def _first_argument(model: nn.Module) -> str:
    return model.forward.__code__.co_varnames[1]


TOOLS = (Pyvene,)
