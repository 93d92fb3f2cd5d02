"""The pieces of work that tools share. That each does it right is checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import hookline
from benchmarks.models import tiny, training_step
from benchmarks.peers.subject import (
    Subject,
    Tensors,
    gpt,
    linears,
    overwriting,
    resnet,
    wrong,
)
from benchmarks.peers.tool import Capture, Tool
from benchmarks.peers.tools.raw import Raw
from benchmarks.runner import Job, Jobs, Work, whole

Tools = Sequence[Tool]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work.

    Attributes:
        part: the method of a tool that takes part in it.
        build: makes it for some tools.
    """

    part: str
    build: Callable[[Tools], Work]

    def done_by(self, tool: Tool) -> bool:
        """Whether a tool may have something to say for it."""
        return getattr(type(tool), self.part) is not getattr(Tool, self.part)


class WrongWorkError(AssertionError):
    """A tool did not do what is to be timed."""


def _checked(tool: Tool, capture: Capture, wanted: Tensors) -> Job:
    paths = wrong(capture(), wanted)
    if paths:
        msg = f"{tool.name} captured something else than raw hooks at {', '.join(paths)}"
        raise WrongWorkError(msg)
    return whole(capture)


def _work(name: str, jobs: dict[str, Job], per: int, repeat: int) -> Work:
    under = Jobs(jobs)
    return Work(name, under.run, per, under.variants(), repeat)


def _repeat(tools: Tools) -> int:
    return min(tool.repeat for tool in tools)


def _capture(make: Callable[[], Subject], what: str, name: str, tools: Tools, plain: str) -> Work:
    """What each tool captures of one kind, checked against plain hooks."""
    made = make()
    wanted = getattr(Raw(), what)(made)()
    jobs = {"plain": whole(getattr(made, plain))}
    for tool in tools:
        if capture := getattr(tool, what)(made):
            jobs[tool.name] = _checked(tool, capture, wanted)
    return _work(name, jobs, 1, _repeat(tools))


def outputs(make: Callable[[], Subject], name: str, tools: Tools) -> Work:
    """Every leaf's output."""
    return _capture(make, "outputs", f"outputs of all leaves ({name})", tools, "forward")


def gradients(make: Callable[[], Subject], name: str, tools: Tools) -> Work:
    """The gradient of every leaf's output."""
    title = f"gradients of all leaves' outputs ({name})"
    return _capture(make, "gradients", title, tools, "backward")


def empty_hooks(tools: Tools, count: int = 200) -> Work:
    """A hook that does nothing, on many tiny modules."""
    made = linears(count)
    jobs = {"plain": whole(made.forward)}
    for tool in tools:
        if tool.hook(made, lambda *_: None):
            _check_calls(tool, made, count)
            jobs[tool.name] = tool.hook(made, lambda *_: None)
    return _work(f"an empty hook on {count} modules (Linear)", jobs, count, _repeat(tools))


def _check_calls(tool: Tool, made: Subject, count: int) -> None:
    called: list[None] = []
    with tool.hook(made, lambda *_: called.append(None))() as run:
        run()
    if len(called) < count:
        msg = f"{tool.name} called the hook {len(called)} times, there are {count} modules"
        raise WrongWorkError(msg)


def set_up(count: int, tools: Tools) -> Work:
    """Hooks put on many modules and removed."""
    jobs: dict[str, Job] = {}
    for tool in tools:
        model = tiny(count)
        if run := tool.set_up(model):
            run()
            _check_removed(tool, model)
            jobs[tool.name] = whole(run)
    return _work(f"set-up and removal, {count:,} modules", jobs, count, 1)


def _check_removed(tool: Tool, model: nn.Module) -> None:
    if any(module._forward_hooks for module in model.modules()):
        msg = f"{tool.name} left hooks behind"
        raise WrongWorkError(msg)


def training(name: str, tools: Tools) -> Work:
    """A training step that is looked at."""
    made = {"GPT": gpt, "ResNet": resnet}[name]()
    targets = made.x.flatten() if name == "GPT" else torch.arange(len(made.x))
    step = training_step(made.model.train(), made.x, targets)
    jobs = {"plain": whole(step)}
    for tool in tools:
        if observer := tool.observer(step, made.model):
            with observer.job() as run:
                run()
            if not observer.seen():
                msg = f"{tool.name} saw nothing of a training step"
                raise WrongWorkError(msg)
            jobs[tool.name] = observer.job
    return _work(f"a training step looked at ({name})", jobs, 1, _repeat(tools))


def keeps(tool: Tool) -> str | None:
    """What becomes of a captured output when an in-place operation follows."""
    made = overwriting()
    if (capture := tool.outputs(made)) is None:
        return None
    try:
        same = torch.equal(capture()["0"], made.model[0](made.x))
    except hookline.HooklineError:
        return "an error"
    return "right" if same else "**wrong**"


PIECES = (
    Piece("outputs", partial(outputs, gpt, "GPT")),
    Piece("outputs", partial(outputs, resnet, "ResNet")),
    Piece("gradients", partial(gradients, gpt, "GPT")),
    Piece("gradients", partial(gradients, resnet, "ResNet")),
    Piece("hook", empty_hooks),
    *(Piece("set_up", partial(set_up, count)) for count in (200, 1600, 10_000)),
    *(Piece("observer", partial(training, name)) for name in ("GPT", "ResNet")),
)
