"""Torch's own hooks, as one would write them by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns

from torch import Tensor, nn

from benchmarks.peers.subject import Subject, Tensors, on_outputs
from benchmarks.peers.tool import Capture, Observer, Tool
from benchmarks.runner import Run


class Raw(Tool):
    name = "raw torch hooks"

    def outputs(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            kept: Tensors = {}
            with on_outputs(subject.leaves, lambda p, o: kept.update({p: o.detach().clone()})):
                subject.forward()
            return kept

        return capture

    def gradients(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            kept: Tensors = {}

            def keep(path: str, out: Tensor) -> None:
                out.register_hook(lambda grad: kept.update({path: grad.clone()}))

            with on_outputs(subject.leaves, keep):
                subject.backward()
            return kept

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]):
        @contextmanager
        def job() -> Iterator[Run]:
            with ExitStack() as stack:
                for module in subject.leaves.values():
                    stack.callback(module.register_forward_hook(hook).remove)
                yield subject.forward

        return job

    def set_up(self, model: nn.Sequential) -> Run:
        def run() -> None:
            handles = [module.register_forward_hook(lambda *_: None) for module in model]
            for handle in handles:
                handle.remove()

        return run

    def observer(self, step: Run, model: nn.Module) -> Observer:
        """A timer of forward and backward with what torch offers."""
        begun: dict[nn.Module, int] = {}
        taken: dict[nn.Module, int] = defaultdict(int)

        def begin(module: nn.Module, *_: object) -> None:
            begun[module] = perf_counter_ns()

        def end(module: nn.Module, *_: object) -> None:
            taken[module] += perf_counter_ns() - begun[module]

        @contextmanager
        def job() -> Iterator[Run]:
            with ExitStack() as stack:
                for module in model.modules():
                    stack.callback(module.register_forward_pre_hook(begin).remove)
                    stack.callback(module.register_forward_hook(end).remove)
                    stack.callback(module.register_full_backward_pre_hook(begin).remove)
                    stack.callback(module.register_full_backward_hook(end).remove)
                yield step

        return Observer(job, lambda: len(taken))


class Aliases(Tool):
    """The same without copies: what a later in-place operation does is seen in the captures."""

    name = "raw torch hooks, no copies"

    def outputs(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            kept: Tensors = {}
            with on_outputs(subject.leaves, lambda p, o: kept.update({p: o.detach()})):
                subject.forward()
            return kept

        return capture


TOOLS = (Raw, Aliases)
