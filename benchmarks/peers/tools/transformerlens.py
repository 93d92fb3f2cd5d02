"""TransformerLens: points to hook on, which must stand in the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from benchmarks.peers.subject import Subject, Tensors, loss_of
from benchmarks.peers.tool import Capture, Tool
from benchmarks.runner import Job, Run


class _Pointed(HookedRootModule):
    """A copy of the model, with a point behind each leaf."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.inner = copy.deepcopy(subject.model)
        for path in subject.leaves:
            parent, _, name = path.rpartition(".")
            owner = self.inner.get_submodule(parent)
            setattr(owner, name, nn.Sequential(getattr(owner, name), HookPoint()))
        self.setup()

    def forward(self, x: Tensor, *, loss: bool = False) -> Tensor:
        output = self.inner(x)
        return loss_of(output) if loss else output


class TransformerLens(Tool):
    name = "TransformerLens"
    remark = (
        "TransformerLens: its points are put into a copy of the model beforehand; what they take "
        "without any hook is part of its figures."
    )

    def outputs(self, subject: Subject) -> Capture:
        model = _Pointed(subject)

        def capture() -> Tensors:
            _, cache = model.run_with_cache(subject.x)
            return {path: cache[f"inner.{path}.1"] for path in subject.leaves}

        return capture

    def gradients(self, subject: Subject) -> Capture:
        model = _Pointed(subject)

        def capture() -> Tensors:
            _, cache = model.run_with_cache(subject.x, loss=True, incl_bwd=True)
            return {path: cache[f"inner.{path}.1_grad"] for path in subject.leaves}

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        model = _Pointed(subject)

        def each(tensor: Tensor, hook: object, called: Callable[..., None] = hook) -> None:
            called(tensor)

        @contextmanager
        def job() -> Iterator[Run]:
            with model.hooks(fwd_hooks=[(lambda name: True, each)]):
                yield lambda: model(subject.x)

        return job

    def set_up(self, model: nn.Sequential) -> Run:
        class Points(HookedRootModule):
            def __init__(self) -> None:
                super().__init__()
                self.points = nn.ModuleList([HookPoint() for _ in model])
                self.setup()

        pointed = Points()

        def run() -> None:
            with pointed.hooks(fwd_hooks=[(lambda name: True, lambda tensor, hook: None)]):
                pass

        return run


TOOLS = (TransformerLens,)
