"""Which events there must be, told in a second way: by plain wrapping and by autograd nodes.

The forward: what is seen around `nn.Module.__call__`. The backward: hooks on the autograd nodes
that make a call's outputs; a call has a backward in each run of the engine in which one of them
runs, or one of a call inside it, and its gradients are those that arrive there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from hookline import ModuleHook
from tests.matrix.case import Case, flat


@dataclass
class Events:
    """What happened.

    Attributes:
        forward: a sign and the number of the call, in order: `>0 >1 <1 <0`.
        classes: the class of each call's module.
        repeated: whether each call is made inside a backward.
        backward: for each call and run of the engine, the gradients of its outputs by place, and
            when the first of them arrived.
    """

    forward: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)
    backward: dict[tuple[int, int], tuple[int, dict[int, Tensor]]] = field(default_factory=dict)


class Plainly:
    """Notes what happens, without hookline."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.stack: list[int] = []
        self.runs: dict[int, int] = {}
        self.times: dict[tuple[int, int], int] = {}

    def __enter__(self) -> None:
        self.original = original = nn.Module.__call__

        def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if isinstance(module, ActivationWrapper):  # it hands on; scopes see what is inside
                return original(module, *args, **kwargs)
            out = None
            self.begin(module)
            try:
                out = original(module, *args, **kwargs)
            finally:
                self.end(out)
            return out

        nn.Module.__call__ = wrapper

    def __exit__(self, *_: object) -> None:
        nn.Module.__call__ = self.original

    def begin(self, module: nn.Module) -> None:
        """A call begins."""
        self.stack.append(len(self.events.classes))
        self.events.classes.append(type(module).__name__)
        self.events.repeated.append(torch._C._current_graph_task_id() != -1)
        self.events.forward.append(f">{self.stack[-1]}")

    def end(self, out: Any) -> None:
        """The innermost call ends: from now on the nodes of its outputs tell when they run."""
        around = tuple(self.stack)
        self.events.forward.append(f"<{self.stack.pop()}")
        seen: set[tuple[Any, int]] = set()
        for place, tensor in enumerate(t for t in flat(out) if isinstance(t, Tensor)):
            edge = tensor.grad_fn, tensor.output_nr
            if edge[0] is not None and edge not in seen:
                seen.add(edge)
                told = partial(self.arrives, around, place, tensor.output_nr, id(edge[0]))
                edge[0].register_prehook(told)

    def arrives(
        self, around: tuple[int, ...], place: int, slot: int, node: int, gradients: Any
    ) -> None:
        """A node of an output of the last call in `around` runs."""
        task = torch._C._current_graph_task_id()
        run = self.runs.setdefault(task, len(self.runs))
        now = self.times.setdefault((task, node), len(self.times))
        for number in around:
            if number not in self.stack:  # one whose forward goes on has no backward yet
                self.events.backward.setdefault((number, run), (now, {}))
        if gradients[slot] is not None:
            self.events.backward[around[-1], run][1][place] = kept(gradients[slot])


class Notes(ModuleHook):
    """The same by hookline; checks on the way that begins and ends nest."""

    name = "notes"

    def __init__(self) -> None:
        self.events = Events()
        self.begins: list[tuple[int, int]] = []
        self.open: list[Any] = []
        self.runs: dict[int, int] = {}
        self.kept: list[Any] = []
        self.known: dict[tuple[Any, ...], list[Tensor]] = {}
        self.repeats: list[tuple[list[Tensor], list[Tensor]]] = []
        self.gone: list[str] = []

    def forward_preprocess(self, call):
        call.number = len(self.events.classes)
        self.events.classes.append(call.type)
        self.events.forward.append(f">{call.number}")
        self.events.repeated.append(call.recomputing)
        name = call.root, call.pass_number, call.path, call.index
        given = [kept(t) for t in flat([call.args, call.kwargs]) if isinstance(t, Tensor)]
        if call.recomputing:
            self.repeats.append((given, self.known[name]))
        else:
            assert name not in self.known
            self.known[name] = given
        self.open.append((call, "forward"))

    def forward_postprocess(self, call):
        assert self.open.pop() == (call, "forward")
        self.events.forward.append(f"<{call.number}")

    def aborted(self, call, exception):
        _, direction = self.open.pop()
        assert direction == "forward"
        self.gone.append(type(exception).__name__)
        self.events.forward.append(f"<{call.number}")

    def backward_preprocess(self, call):
        run = self.runs.setdefault(id(call.window.run), len(self.runs))
        self.kept.append(call.window.run)  # so that its id stays its own
        self.begins.append((call.number, run))
        self.open.append((call, "backward"))

    def backward_postprocess(self, call):
        assert self.open.pop() == (call, "backward")
        run = self.runs[id(call.window.run)]
        gradients = enumerate(flat(call.grad_output))
        found = {place: kept(g) for place, g in gradients if g is not None}
        self.events.backward[call.number, run] = (0, found)


def kept(tensor: Tensor) -> Tensor:
    """A copy; of what lives inside a transform of `torch.func` only, an empty one of its shape."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return torch.empty(tensor.shape, device="meta")
    return tensor.detach().clone()


def observed(make: Callable[[], Case], around: Callable[[nn.Module], Any]) -> None:
    """Run a case with something around it."""
    torch.manual_seed(0)
    case = make()
    torch.manual_seed(1)
    with around(case.model):
        case.step()
