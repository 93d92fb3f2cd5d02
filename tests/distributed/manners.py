"""Models to train in two processes, and all the manners of hooking them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import hookline
from hookline import FunctionHook, ModuleHook, add_hook, edits, function_hooks, module_hooks
from hookline.core.records import TimeRow
from hookline.record.measures import Measures
from hookline.record.run import Recorder

IMAGES = torch.tensor(load_digits().data[:64], dtype=torch.float32) / 16
LABELS = torch.tensor(load_digits().target[:64])


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.act(self.linear(self.norm(x))))


class Net(nn.Module):
    """Reads digits; in the even steps a part of it takes no part."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(64, 16), norm(16))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor, blocks: int = 2) -> Tensor:
        x = self.stem(x)
        for block in self.blocks[:blocks]:
            x = block(x)
        return self.head(x)


def build(norm: type[nn.Module] = nn.BatchNorm1d) -> Net:
    """The same model in each process."""
    torch.manual_seed(0)
    return Net(norm)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """What this process reads in a step: each another part."""
    part = slice(16 * dist.get_rank() + 32 * (step % 2), None)
    return IMAGES[part][:16], LABELS[part][:16]


def local(tensor: Tensor) -> Tensor:
    """A copy of a tensor, as far as it is in this process."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone()


Trace = list[Tensor]


def train(model: nn.Module, steps: int = 2, **options: int) -> Trace:
    """Train, and give all that must not depend on hooks: losses, gradients, weights, RNG."""
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trace: Trace = []
    for step in range(steps):
        x, y = batch(step)
        loss = F.cross_entropy(model(x, **options).float(), y)
        loss.backward()
        trace += [loss.detach().clone(), *gradients(model)]
        optimizer.step()
        optimizer.zero_grad()
    return [*trace, *map(local, model.state_dict().values()), torch.get_rng_state()]


def gradients(model: nn.Module) -> Trace:
    """Copies of the gradients of all parameters."""
    return [torch.tensor([]) if p.grad is None else local(p.grad) for p in model.parameters()]


def same(found: Trace, expected: Trace) -> bool:
    """Whether two runs were alike, bit for bit."""
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


class Seen(ModuleHook):
    """Counts and keeps the events of module calls."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int]] = []

    def note(self, call) -> None:
        self.rows.append((call.phase.value, call.path, call.index))

    forward_preprocess = forward_postprocess = note
    backward_preprocess = backward_postprocess = note

    def fire(self, *_) -> None:
        """As a callback of any other kind of hook."""
        self.rows.append(("", "", 0))


class SeenInputs(Seen):
    """Asks for the gradients of inputs too."""

    needs_grad_input = True


class SeenFunctions(FunctionHook):
    """Keeps the events of functions."""

    def __init__(self, rows: list) -> None:
        self.rows = rows

    def forward_preprocess(self, function, in_data) -> None:
        self.rows.append(("forward_pre", function.label, function.index))

    def backward_postprocess(self, function, in_data, out_grad) -> None:
        self.rows.append(("backward", function.label, function.index))


def value_hooks(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """All layers wrapped, with hooks of all kinds; what is sharded cannot be wrapped any more."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.ModuleList) or hasattr(layer, "unshard"):
                continue
            wrapper, hooks = hookline.with_hooks(layer)
            setattr(parent, name, wrapper)
            hooks.add_forward_pre_hook(seen.fire)
            hooks.add_forward_hook(seen.fire)
            hooks.add_backward_hook(seen.fire)
            stack.callback(hooks.registry.clear)


def _registrations(prefix: str) -> list[Callable]:
    kinds = ("forward_pre", "forward", "full_backward_pre", "full_backward")
    return [getattr(hookline, f"{prefix}{kind}_hook") for kind in kinds]


def torch_style(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """All four registrations on every module that is called."""
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            for register in _registrations("register_"):
                stack.enter_context(register(module, lambda *_: seen.fire()))


def on_all_modules(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """All four registrations for all modules."""
    for register in _registrations("register_module_"):
        stack.enter_context(register(lambda *_: seen.fire()))


def hook_objects(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """A hook object on every module that is called."""
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            stack.enter_context(add_hook(module, seen))


def module_scope(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """A scope of module hooks."""
    stack.enter_context(seen)


def input_scope(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """A scope that asks for the gradients of inputs."""
    inputs = SeenInputs()
    inputs.rows = seen.rows
    stack.enter_context(inputs)


def function_scope(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """A scope of function hooks."""
    stack.enter_context(SeenFunctions(seen.rows))


def watched(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """The ready-made hooks of both levels on the model, by `watch`."""
    text = io.StringIO()
    both = [
        kind
        for home in (module_hooks, function_hooks)
        for kind in (
            home.TimerHook(),
            home.StatsHook(every=1),
            home.NonFiniteHook(),
            home.PrintHook(file=text),
            home.RangeHook(),
            home.CaptureHook(),
        )
    ]
    stack.enter_context(hookline.watch(model, seen, *both))


def ready_made(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """The same in scopes."""
    text = io.StringIO()
    for home in (module_hooks, function_hooks):
        stack.enter_context(home.TimerHook())
        stack.enter_context(home.StatsHook(every=1))
        stack.enter_context(home.NonFiniteHook())
        stack.enter_context(home.PrintHook(file=text))
        stack.enter_context(home.RangeHook())
        stack.enter_context(home.CaptureHook())
    stack.callback(lambda: seen.rows.append((text.getvalue(), "", 0)))


def captures(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """`capture` of all there is."""
    acts = stack.enter_context(hookline.capture(model, "**", what=("input", "output", "grad")))
    stack.callback(lambda: seen.rows.extend((path, "", 0) for path in acts))


def patches(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """`patch` with edits that change no bit, at outputs and at gradients."""
    nothing = [edits.scale(1.0), edits.scale(1.0, on="grad"), edits.scale(1.0, on="input")]
    stack.enter_context(hookline.patch(model, {"blocks.*": nothing, "head": nothing}))
    seen.fire()


def recorder(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    """What `hookline run` puts on."""
    run = stack.enter_context(Recorder(Measures(time=True, level="both")))
    stack.callback(lambda: seen.rows.extend(run.tables()[TimeRow]))


MANNERS = (
    value_hooks,
    torch_style,
    on_all_modules,
    hook_objects,
    module_scope,
    input_scope,
    function_scope,
    watched,
    ready_made,
    captures,
    patches,
    recorder,
)


FEW = (value_hooks, torch_style, input_scope, watched, patches)
"""Those of them that reach deepest into a call."""


@contextmanager
def hooked(model: nn.Module, manner: Callable) -> Iterator[Seen]:
    """Put hooks on in one manner; that they ran is checked at the end."""
    seen = Seen()
    with ExitStack() as stack:
        manner(model, seen, stack)
        yield seen
    assert seen.rows, f"no hook ran: {manner.__name__}"


def assert_unchanged(
    wrap: Callable[[Net], nn.Module],
    run: Callable[[nn.Module], Trace] = train,
    make: Callable[[], Net] = build,
    *,
    thorough: bool = False,
) -> None:
    """Hooks set before wrapping or after it change no bit of a training.

    Thoroughly: of all kinds, each both before and after; else the few, by turns.
    """
    expected = run(wrap(make()))
    assert not same(expected, run(wrap(make()).eval())), "the traces do not tell runs apart"
    for place, manner in enumerate(MANNERS if thorough else FEW):
        for before in (True, False) if thorough else (place % 2 == 0,):
            model = make()
            with ExitStack() as stack:
                if before:
                    stack.enter_context(hooked(model, manner))
                    wrapped = wrap(model)
                else:
                    wrapped = wrap(model)
                    stack.enter_context(hooked(model, manner))
                found = run(wrapped)
            assert same(found, expected), (manner.__name__, "before" if before else "after")


def assert_alone(wrap: Callable[[Net], nn.Module], run: Callable = train) -> None:
    """Hooks in one process alone: nobody waits for anybody, and the training is as it is."""
    expected = run(wrap(build()))
    for place, manner in enumerate(MANNERS):
        model = build()
        wrapped = wrap(model)
        here = dist.get_rank() == place % 2
        with hooked(model, manner) if here else ExitStack():
            found = run(wrapped)
        assert same(found, expected), manner.__name__
