"""What a tool has to say for each piece of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from benchmarks.peers.subject import Subject, Tensors
from benchmarks.runner import Job, Run

Capture = Callable[[], Tensors]


@dataclass(frozen=True, slots=True)
class Observer:
    """Something that looks on while a model is trained.

    Attributes:
        job: gives what runs a step under it.
        seen: how many things it saw, once it is over.
    """

    job: Job
    seen: Callable[[], int]


class Tool:
    """A way to do the pieces of work. What a tool cannot do, it gives None for.

    Attributes:
        name: as tables show it.
        repeat: how often a piece of work is done for one sample.
        remark: what a reader of the tables must know.
    """

    name: str
    repeat: int = 3
    remark: str = ""

    def outputs(self, subject: Subject) -> Capture | None:
        """Run the model and give every leaf's output; all that the tool needs is in the time."""
        return None

    def gradients(self, subject: Subject) -> Capture | None:
        """Run forward and backward and give the gradient of every leaf's output."""
        return None

    def hook(self, subject: Subject, hook: Callable[..., None]) -> Job | None:
        """Run the model with a function of the user's called for each of its modules."""
        return None

    def set_up(self, model: nn.Sequential) -> Run | None:
        """Put hooks on all modules, or whatever else must be made, and take it all away."""
        return None

    def observer(self, step: Run, model: nn.Module) -> Observer | None:
        """Look on at training steps."""
        return None
