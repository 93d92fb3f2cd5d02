"""Threads that share models and have scopes of their own, and register and remove all the while.

Each thread knows how many events each of its calls must give to its own hooks, whatever the others
do at that moment: its scope sees all of its calls and none of theirs. Hooks on the shared modules
come and go meanwhile; those that one thread puts on for all hear all that run while they are on.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import FunctionHook, ModuleHook


class Mine(ModuleHook):
    """Counts events, and notes those that are not of its thread."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.events = Counter()
        self.foreign = []

    def note(self, phase, call):
        self.events[phase, call.path, call.index] += 1
        if threading.get_ident() != self.thread:
            self.foreign.append((phase, call.path))

    def forward_preprocess(self, call):
        self.note("forward_pre", call)

    def forward_postprocess(self, call):
        self.note("forward", call)

    def backward_preprocess(self, call):
        self.note("backward_pre", call)

    def backward_postprocess(self, call):
        self.note("backward", call)


class MyFunctions(FunctionHook):
    """The same for functions."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.events = Counter()
        self.foreign = []

    def note(self, phase, call):
        if call.module_path is not None:
            self.events[phase, call.module_path, call.name] += 1
        if threading.get_ident() != self.thread:
            self.foreign.append((phase, call.label))

    def forward_preprocess(self, function, in_data):
        self.note("forward_pre", function)

    def forward_postprocess(self, function, in_data):
        self.note("forward", function)

    def backward_preprocess(self, function, in_data, out_grad):
        self.note("backward_pre", function)

    def backward_postprocess(self, function, in_data, out_grad):
        self.note("backward", function)


class Net(nn.Module):
    """Two layers, the first called twice, the second checkpointed with a call of it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        x = self.first(self.first(x))
        return checkpoint(self.second, x, use_reentrant=False) if x.requires_grad else x


X = torch.ones(2, 4)
MODULES = [
    ("", 0),
    ("first", 0),
    ("first", 1),
    ("second", 0),
    ("second.0", 0),
    ("second.1", 0),
]
FUNCTIONS = {("first", "linear"): 2, ("second.0", "linear"): 1, ("second.1", "tanh"): 1}


def expected_modules(steps: int) -> Counter:
    """What a scope must have seen: each call once in each phase, the checkpointed twice forward.

    The second layer is run again in the backward, and its `Tanh` is broken off when the checkpoint
    has what it needs: no ends there.
    """
    counts = Counter()
    for path, index in MODULES:
        again = path.startswith("second")
        counts["forward_pre", path, index] = steps * (1 + again)
        counts["forward", path, index] = steps * (1 + (path == "second.0"))
        counts["backward_pre", path, index] = counts["backward", path, index] = steps
    return counts


def expected_functions(steps: int) -> Counter:
    """The same for functions."""
    counts = Counter()
    for (path, name), calls in FUNCTIONS.items():
        again = path.startswith("second")
        counts["forward_pre", path, name] = steps * (calls + again)
        counts["forward", path, name] = steps * (calls + (path == "second.0"))
        counts["backward_pre", path, name] = counts["backward", path, name] = steps * calls
    return counts


def step(net: Net, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients of one pass; `grad`, so that threads share no `.grad`."""
    out = net(X)
    return [out.detach(), *torch.autograd.grad(out, list(net.parameters()), gradient)]


class Worker:
    """One thread's work, round after round.

    Args:
        nets: the shared models.
        plain: what a step of each gives without hooks.
        number: which thread it is.
    """

    def __init__(self, nets: list[Net], plain: list[list[torch.Tensor]], number: int):
        self.nets = nets
        self.plain = plain
        self.random = random.Random(number)
        self.rounds = 0
        self.errors: list[BaseException] = []
        self.kinds = [
            self.scopes,
            self.on_modules,
            self.objects,
            self.value_hooks,
            self.watching,
            self.capturing,
            self.clearing,
        ]

    def run(self, end: float) -> None:
        try:
            while time.monotonic() < end:
                place = self.random.randrange(len(self.nets))
                self.random.choice(self.kinds)(self.nets[place], self.plain[place])
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            self.errors.append(error)

    def steps(self, net, plain) -> int:
        count = self.random.randrange(1, 4)
        for _ in range(count):
            got = step(net, torch.ones(2, 4))
            assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
        return count

    def scopes(self, net, plain):
        """Scopes see all calls of this thread, and only those."""
        with Mine() as modules:
            count = self.steps(net, plain)
        with MyFunctions() as functions:
            for _ in range(count):
                step(net, GRADIENT)
        assert modules.events == expected_modules(count), modules.events
        assert functions.events == expected_functions(count), functions.events
        assert not modules.foreign
        assert not functions.foreign

    def on_modules(self, net, plain):
        """Hooks on a shared module hear this thread's calls, and perhaps those of others."""
        mine, seen = threading.get_ident(), Counter()

        def note(phase):
            def hook(*_):
                if threading.get_ident() == mine:
                    seen[phase] += 1

            return hook

        with (
            hookline.register_forward_pre_hook(net.first, note("pre"), with_kwargs=False),
            hookline.register_forward_hook(net.first, note("forward"), with_kwargs=False),
            hookline.register_full_backward_pre_hook(net.first, note("backward_pre")),
            hookline.register_full_backward_hook(net.first, note("backward")),
            hookline.register_module_forward_hook(note("all"), with_kwargs=False),
        ):
            count = self.steps(net, plain)
        once = dict.fromkeys(("pre", "forward", "backward_pre", "backward"), 2 * count)
        assert seen == {**once, "all": 7 * count}, seen  # the checkpoint breaks off two of them
        self.steps(net, plain)
        assert seen == {**once, "all": 7 * count}, "a removed hook was called"

    def objects(self, net, plain):
        """Hook objects on a shared module, each thread's under its own name."""
        hook = Mine()
        name = f"of {hook.thread}"
        hookline.add_hook(net.second[0], hook, name)
        count = self.steps(net, plain)
        hookline.delete_hook(net.second[0], name)
        ended = Counter(hook.events)
        for phase in ("forward_pre", "forward"):
            assert ended[phase, "second.0", 0] >= 2 * count
        assert ended["backward", "second.0", 0] >= count

    def value_hooks(self, net, plain):
        """A wrapper of this thread around a shared layer."""
        layer, hooks = hookline.with_hooks(net.first)
        seen = Counter()
        with (
            hooks.add_forward_pre_hook(lambda x: seen.update(["pre"])),
            hooks.add_forward_hook(lambda x, out: seen.update(["forward"])),
            hooks.add_backward_hook(lambda gradient: seen.update(["backward"])),
        ):
            torch.autograd.grad(layer(X).sum(), net.first.weight)
        torch.autograd.grad(layer(X).sum(), net.first.weight)
        assert seen == {"pre": 1, "forward": 1, "backward": 1}, seen

    def watching(self, net, plain):
        """`watch` on a shared model."""
        hook = Mine()
        with hookline.watch(net, hook.renamed(f"of {hook.thread}"), where="second.*"):
            count = self.steps(net, plain)
        assert hook.events["forward_pre", "second.0", 0] >= 2 * count
        assert hook.events["backward", "second.0", 0] >= count

    def capturing(self, net, plain):
        """`capture` on a model of its own, among threads that hook others."""
        net = Net()
        with hookline.capture(net, "first") as captured:
            step(net, torch.ones(2, 4))
        assert len(captured["first"].outputs) == 2

    def clearing(self, net, plain):
        """All on a model of its own is cleared."""
        net, seen = Net(), []
        hookline.register_forward_hook(net.first, lambda m, args, out: seen.append(1))
        step(net, torch.ones(2, 4))
        hookline.clear_hooks(net)
        step(net, torch.ones(2, 4))
        assert seen == [1, 1]


GRADIENT = torch.ones(2, 4)


def run_threads(*, seconds: float, count: int = 8, interval: float | None = None) -> int:
    """Let threads work for a time; gives how many rounds they did.

    Args:
        seconds: how long.
        count: how many threads.
        interval: how often Python switches between them.
    """
    torch.manual_seed(0)
    nets = [Net() for _ in range(3)]
    plain = [step(net, GRADIENT) for net in nets]
    workers = [Worker(nets, plain, number) for number in range(count)]
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=w.run, args=(end,), daemon=True) for w in workers]
    before = sys.getswitchinterval()
    sys.setswitchinterval(before if interval is None else interval)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 60)
            assert not thread.is_alive(), "a deadlock, or a very slow machine"
    finally:
        sys.setswitchinterval(before)
    for worker in workers:
        for error in worker.errors:
            raise error
    return sum(worker.rounds for worker in workers)
