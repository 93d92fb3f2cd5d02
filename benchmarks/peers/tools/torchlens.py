"""torchlens: everything that happens in one forward, as a log."""

from __future__ import annotations

from collections.abc import Callable

import torchlens
from torchlens.options import CaptureOptions

from benchmarks.peers.subject import Subject, Tensors, loss_of
from benchmarks.peers.tool import Capture, Tool
from benchmarks.runner import Job, whole


class Trace(Tool):
    name = "torchlens"
    repeat = 1
    remark = (
        "torchlens: `trace` for captures, which logs every operation; `record` for the hook, a "
        "predicate that it calls for each operation."
    )

    def outputs(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            trace = torchlens.trace(subject.model, subject.x)
            return {path: trace.modules[path].out for path in subject.leaves}

        return capture

    def gradients(self, subject: Subject) -> Capture:
        options = CaptureOptions(save_grads=True, backward_ready=True)

        def capture() -> Tensors:
            trace = torchlens.trace(subject.model, subject.x, capture=options)
            trace.log_backward(loss_of(trace[trace.output_layers[0]].out))
            return {path: trace.modules[path].grad for path in subject.leaves}

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        def each(context: object) -> bool:
            hook(context)
            return False

        return whole(lambda: torchlens.record(subject.model, subject.x, save=each))


TOOLS = (Trace,)
