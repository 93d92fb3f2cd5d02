"""What torch itself has: full backward hooks, modes, its module tracker, its profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from benchmarks.peers.subject import Subject, Tensors
from benchmarks.peers.tool import Capture, Observer, Tool
from benchmarks.runner import Job, Run


class _Counting:
    """What both kinds of mode have in common: a hook that is called before each function."""

    def __init__(self, hook: Callable[..., None]) -> None:
        super().__init__()
        self._hook = hook

    def _seen(self, func, types, args=(), kwargs=None):
        self._hook(func)
        return func(*args, **(kwargs or {}))


class _FunctionMode(_Counting, TorchFunctionMode):
    __torch_function__ = _Counting._seen


class _DispatchMode(_Counting, TorchDispatchMode):
    __torch_dispatch__ = _Counting._seen


def _under(mode: Callable[[], object], run: Run) -> Job:
    @contextmanager
    def job() -> Iterator[Run]:
        with mode():
            yield run

    return job


class _Mode(Tool):
    made: type[_Counting]

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        return _under(lambda: self.made(hook), subject.forward)

    def observer(self, step: Run, model: nn.Module) -> Observer:
        functions: set[object] = set()
        return Observer(_under(lambda: self.made(functions.add), step), lambda: len(functions))


class FunctionMode(_Mode):
    name = "TorchFunctionMode"
    made = _FunctionMode


class DispatchMode(_Mode):
    name = "TorchDispatchMode"
    made = _DispatchMode


class Tracker(Tool):
    name = "torch.utils.module_tracker"

    def observer(self, step: Run, model: nn.Module) -> Observer:
        tracker = ModuleTracker()
        return Observer(_under(lambda: tracker, step), lambda: len(tracker._known_modules))


class Profiler(Tool):
    name = "torch.profiler"

    def observer(self, step: Run, model: nn.Module) -> Observer:
        made: list[profile] = []

        def profiler() -> profile:
            made[:] = [profile(activities=[ProfilerActivity.CPU])]
            return made[0]

        return Observer(_under(profiler, step), lambda: len(made[0].key_averages()))


class FullBackward(Tool):
    name = "torch's full backward hooks"

    def gradients(self, subject: Subject) -> Capture:
        def capture() -> Tensors:
            kept: Tensors = {}
            with ExitStack() as stack:
                for path, module in subject.leaves.items():

                    def hook(_: nn.Module, __: object, out: tuple, path: str = path) -> None:
                        kept[path] = out[0].clone()

                    stack.callback(module.register_full_backward_hook(hook).remove)
                subject.backward()
            return kept

        return capture


TOOLS = (FullBackward, FunctionMode, DispatchMode, Tracker, Profiler)
