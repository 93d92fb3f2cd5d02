"""hookline's ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

import hookline
from benchmarks.peers.subject import Subject, Tensors
from benchmarks.peers.tool import Capture, Observer, Tool
from benchmarks.runner import Job, Run
from hookline.module_hooks import TimerHook


class Captures(Tool):
    name = "hookline"

    def outputs(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            with hookline.capture(subject.model, *subject.leaves, what="output") as acts:
                subject.forward()
            return {path: acts[path].output for path in subject.leaves}

        return capture

    def gradients(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            with hookline.capture(subject.model, *subject.leaves, what="grad") as acts:
                subject.backward()
            return {path: acts[path].grad for path in subject.leaves}

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        @contextmanager
        def job() -> Iterator[Run]:
            with ExitStack() as stack:
                for module in subject.leaves.values():
                    stack.callback(hookline.register_forward_hook(module, hook).remove)
                yield subject.forward

        return job

    def set_up(self, model: nn.Sequential) -> Run:
        def run() -> None:
            handles = [hookline.register_forward_hook(module, lambda *_: None) for module in model]
            for handle in handles:
                handle.remove()

        return run

    def observer(self, step: Run, model: nn.Module) -> Observer:
        timer = TimerHook()

        @contextmanager
        def job() -> Iterator[Run]:
            with timer:
                yield step

        return Observer(job, lambda: len(timer.rows()))


class Aliases(Tool):
    name = "hookline, no copies"

    def outputs(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            leaves = subject.leaves
            with hookline.capture(subject.model, *leaves, what="output", copy=False) as acts:
                subject.forward()
            return {path: acts[path].output for path in leaves}

        return capture


class Scope(Tool):
    """A hook object: in a scope, or by `watch` where something is to be set up."""

    name = "hookline, a ModuleHook"

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        class Calling(hookline.ModuleHook):
            def forward_postprocess(self, call):
                hook(call)

        @contextmanager
        def job() -> Iterator[Run]:
            with Calling():
                yield subject.forward

        return job

    def set_up(self, model: nn.Sequential) -> Run:
        hook = hookline.ModuleHook()
        return lambda: hookline.watch(model, hook).close()


class FunctionScope(Tool):
    name = "hookline, a FunctionHook"

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        class Calling(hookline.FunctionHook):
            def forward_preprocess(self, function, in_data):
                hook(function)

        @contextmanager
        def job() -> Iterator[Run]:
            with Calling():
                yield subject.forward

        return job


TOOLS = (Captures, Aliases, Scope, FunctionScope)
