"""nnsight: code that runs between the modules of a model."""

from __future__ import annotations

from collections.abc import Callable

from nnsight import NNsight
from torch import nn

from benchmarks.peers.subject import Subject, Tensors, loss_of
from benchmarks.peers.tool import Capture, Tool
from benchmarks.runner import Job, Run, whole


class Nnsight(Tool):
    name = "nnsight"
    remark = "nnsight: to set up is to wrap the model, which is done once."

    def outputs(self, subject: Subject) -> Capture:
        model, leaves = NNsight(subject.model), list(subject.leaves)

        def capture() -> Tensors:
            with model.trace(subject.x):
                kept = {path: model.get(path).output for path in leaves}
                kept.save()
            return kept

        return capture

    def gradients(self, subject: Subject) -> Capture:
        model, leaves = NNsight(subject.model), list(subject.leaves)

        def capture() -> Tensors:
            with model.trace(subject.x):
                outputs = {path: model.get(path).output for path in leaves}
                kept = {}
                loss = loss_of(model.output)
                with loss.backward():
                    for path in reversed(leaves):
                        kept[path] = outputs[path].grad
                    kept.save()
            return kept

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        model, leaves = NNsight(subject.model), list(subject.leaves)

        def run() -> None:
            with model.trace(subject.x):
                for path in leaves:
                    hook(model.get(path).output)

        return whole(run)

    def set_up(self, model: nn.Sequential) -> Run:
        return lambda: NNsight(model)


TOOLS = (Nnsight,)
