"""tdhook: hooks on modules that match a pattern, what they give in a TensorDict."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tdhook.hooks import MultiHookManager
from tdhook.latent.activation_caching import ActivationCaching
from tensordict import TensorDict
from torch import nn

from benchmarks.peers.subject import Subject, Tensors, loss_of
from benchmarks.peers.tool import Capture, Tool
from benchmarks.runner import Job, Run


def _pattern(subject: Subject) -> str:
    return f"^(?:{'|'.join(map(re.escape, subject.leaves))})$"


class Tdhook(Tool):
    name = "tdhook"

    def outputs(self, subject: Subject) -> Capture:
        caching = ActivationCaching(_pattern(subject))

        def capture() -> Tensors:
            with caching.prepare(subject.model, in_keys=["x"], out_keys=["y"]) as model:
                model(TensorDict({"x": subject.x}, batch_size=[]))
                cache = model.hooking_context.cache
                return {path: cache[path] for path in subject.leaves}

        return capture

    def gradients(self, subject: Subject) -> Capture:
        def only(grad_output: Any, **_: Any) -> Any:
            return grad_output[0]

        caching = ActivationCaching(_pattern(subject), directions=["bwd_pre"], callback=only)

        def capture() -> Tensors:
            with caching.prepare(subject.model, in_keys=["x"], out_keys=["y"]) as model:
                loss_of(model(TensorDict({"x": subject.x}, batch_size=[]))["y"]).backward()
                cache = model.hooking_context.cache
                return {path: cache[path] for path in subject.leaves}

        return capture

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job:
        def each(module: nn.Module, args: object, output: object) -> None:
            hook(output)

        @contextmanager
        def job() -> Iterator[Run]:
            with MultiHookManager(".*").register_hook(subject.model, lambda name: each):
                yield subject.forward

        return job

    def set_up(self, model: nn.Sequential) -> Run:
        def each(module: nn.Module, args: object, output: object) -> None:
            pass

        def run() -> None:
            MultiHookManager(".*").register_hook(model, lambda name: each).remove()

        return run


TOOLS = (Tdhook,)
