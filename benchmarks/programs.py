"""Work of the size of real programs: set-up, captures, training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

import hookline
from benchmarks.models import GPT, digits_cnn, tiny, training_step
from benchmarks.runner import Jobs, Variant, Work, whole
from hookline.module_hooks import NonFiniteHook, TimerHook


@contextmanager
def defaults_of_run() -> Iterator[None]:
    """The hooks that `hookline run` sets by default."""
    with TimerHook(), NonFiniteHook(action="record"):
        yield


@contextmanager
def timer_of_run() -> Iterator[None]:
    """The hook that `hookline run --time` sets."""
    with TimerHook():
        yield


def _step_under_hooks(name: str, step: Callable[[], None], repeat: int) -> Work:
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "TimerHook": timer_of_run,
        "TimerHook and NonFiniteHook": defaults_of_run,
    }
    return Work(name, step, 1, variants, repeat)


def digits_step() -> Work:
    """A training step of the digits CNN, 0.8 ms."""
    x, y = torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,))
    return _step_under_hooks("training step (digits CNN)", training_step(digits_cnn(), x, y), 5)


def gpt_step() -> Work:
    """A training step of a small GPT."""
    tokens = torch.randint(0, 64, (4, 64))
    step = training_step(GPT(), tokens, tokens.flatten())
    return _step_under_hooks("training step (GPT)", step, 2)


def after_removal() -> Work:
    """Nothing registered, nothing paid: also once hooks were there."""
    model, x = tiny(100), torch.zeros(4)

    @contextmanager
    def removed() -> Iterator[None]:
        for module in model:
            hookline.register_forward_hook(module, lambda *_: None).remove()
        yield

    variants: dict[str, Variant] = {"plain": nullcontext, "hooks were removed": removed}
    return Work("no hooks (Identity)", lambda: model(x), 100, variants)


def enter_and_exit() -> Work:
    """A scope that is entered and left, with another hook on and without."""

    def scope() -> None:
        with TimerHook():
            pass

    held = nn.Identity()

    @contextmanager
    def while_on() -> Iterator[None]:
        with hookline.register_forward_hook(held, lambda *_: None):
            yield

    variants: dict[str, Variant] = {"alone": nullcontext, "while hooks are on": while_on}
    return Work("enter and exit of a scope", scope, 1, variants)


def set_up() -> Work:
    """Hooks on 1,000 modules, put on and taken off."""
    model = tiny(1000)

    def torchs() -> None:
        handles = [m.register_forward_hook(lambda *_: None) for m in model]
        for handle in handles:
            handle.remove()

    def ours() -> None:
        handles = [hookline.register_forward_hook(m, lambda *_: None) for m in model]
        for handle in handles:
            handle.remove()

    def watched() -> None:
        hookline.watch(model, TimerHook()).close()

    def captured() -> None:
        hookline.capture(model).close()

    jobs = Jobs(
        {
            "torch's hooks": whole(torchs),
            "hookline's": whole(ours),
            "watch": whole(watched),
            "capture": whole(captured),
        }
    )
    return Work("set-up and removal, a module", jobs.run, 1000, jobs.variants(), 1)


def capture_leaves() -> Work:
    """The outputs of all leaves of a small GPT, copied."""
    model, tokens = GPT(), torch.randint(0, 64, (4, 64))
    leaves = {name: m for name, m in model.named_modules() if not list(m.children())}

    def raw() -> None:
        kept: dict[str, torch.Tensor] = {}
        with ExitStack() as stack:
            for name, module in leaves.items():

                def keep(_: nn.Module, __: Any, out: torch.Tensor, name: str = name) -> None:
                    kept[name] = out.detach().clone()

                stack.callback(module.register_forward_hook(keep).remove)
            model(tokens)

    def ours() -> None:
        with hookline.capture(model, *leaves) as acts:
            model(tokens)
        assert len(acts) == len(leaves)

    jobs = Jobs({"raw torch hooks": whole(raw), "capture": whole(ours)})
    return Work("capture of all leaves (GPT, forward)", jobs.run, 1, jobs.variants(), 3)


PROGRAMS: tuple[Callable[[], Work], ...] = (
    after_removal,
    enter_and_exit,
    set_up,
    capture_leaves,
    digits_step,
    gpt_step,
)
