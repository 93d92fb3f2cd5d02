"""One step of an optimizer is one, however many optimizers take part in it."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import hookline
from hookline.module_hooks import StatsHook
from hookline.torch_base.stack import steps


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Steps(hookline.ModuleHook):
    def __init__(self):
        self.seen = []

    def forward_preprocess(self, call):
        self.seen.append(call.step)


class Derived(torch.optim.SGD):
    """Calls the step of what it is derived from, which torch has put hooks around too."""

    def step(self, closure=None):
        super().step(closure)


class Failing(torch.optim.SGD):
    fail = True

    def step(self, closure=None):
        if self.fail:
            raise ArithmeticError
        return super().step(closure)


def train(model, optimizer, times=3):
    """Some steps; what hooks saw of them: the steps before each pass, and the rows."""
    first = steps.count
    watched, stats = Steps(), StatsHook(every=1)
    with watched, stats:
        for _ in range(times):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    return [number - first for number in watched.seen], stats.parameter_rows()


def check(optimizer, model, name):
    torch.optim.SGD(model.parameters(), lr=0.1)  # so that its step has hooks around it
    before = [p.detach().clone() for p in model.parameters()]
    seen, rows = train(model, optimizer, times=1)
    assert seen == [0]
    ratios = [
        float((p.detach() - old).norm() / old.norm())
        for p, old in zip(model.parameters(), before, strict=True)
    ]
    assert [row.update_ratio for row in rows] == pytest.approx(ratios)
    seen, rows = train(model, optimizer)
    assert seen == [0, 1, 2]
    assert [(row.name, row.optimizer, row.steps) for row in rows] == [
        ("weight", name, 3),
        ("bias", name, 3),
    ]


@pytest.mark.usefixtures("one_process")
def test_r8_an_optimizer_that_has_another_take_its_steps():
    """ZeRO's own optimizer is a part of it: one step, one row a parameter."""
    model = nn.Linear(2, 2)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    check(zero, model, "ZeroRedundancyOptimizer")


def test_r8_a_derived_optimizer_that_calls_the_step_of_its_base():
    """Both have hooks around them; it is one optimizer."""
    model = nn.Linear(2, 2)
    check(Derived(model.parameters(), lr=0.1), model, "Derived")


def test_r8_another_optimizer_inside_of_a_step_counts():
    """A closure may train something else, with parameters of its own."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    inner = torch.optim.SGD(other.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        other(torch.ones(1, 2)).sum().backward()
        inner.step()

    first = steps.count
    with StatsHook(every=1) as stats:
        model(torch.ones(1, 2)).sum().backward()
        outer.step(closure)
    assert steps.count - first == 2
    assert len(stats.parameter_rows()) == 4


def test_r8_a_step_that_failed_is_no_step_around_later_ones():
    """The next step counts as any other."""
    model = nn.Linear(2, 2)
    optimizer = Failing(model.parameters(), lr=0.1)
    with StatsHook(every=1):
        model(torch.ones(1, 2))
        with pytest.raises(ArithmeticError):
            optimizer.step()
    optimizer.fail = False
    seen, rows = train(model, optimizer)
    assert seen == [0, 1, 2]
    assert [row.steps for row in rows] == [3, 3]
