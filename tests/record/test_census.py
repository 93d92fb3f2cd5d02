"""What a run knows of models: also of those that are gone before anybody asks."""

import gc
import threading
from collections import Counter

import pytest
import torch
from torch import nn

import hookline
from hookline.core.records import Silent, TimeRow
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.module_hooks import TimerHook
from hookline.record import census
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow
from hookline.torch_base.stack import listeners


class Net(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(2, 2) for _ in range(depth))
        self.spare = nn.Sequential(nn.Linear(2, 3))

    def forward(self, x):
        for layer in self.body:
            x = layer(x)
        return x


class Gone(Net):
    """Of a class of its own, so that no other test's model has the name."""


def step(net):
    net(torch.ones(1, 2)).sum().backward()


def silent(run):
    return {row.path: row.cause for row in run.rows(Silent)}


@pytest.mark.parametrize("passes", [1, 2, 3, 9])
def test_r9_a_model_that_is_gone_at_the_end_is_told_like_one_that_is_there(passes, tmp_path):
    """As where a script trains in a function."""

    def train():
        net = Gone()
        for _ in range(passes):
            step(net)

    with hookline.record(tmp_path / "run.hookline") as run:
        train()
        gc.collect()
    assert [(row.path, row.type, row.parameters) for row in run.rows(ModuleRow)] == [
        ("", "Gone", 0),
        ("body", "ModuleList", 0),
        ("body.0", "Linear", 6),
        ("spare", "Sequential", 0),
        ("spare.0", "Linear", 9),
    ]
    assert run.rows(PassRow) == [PassRow("Gone", "train", passes, passes - 1)]
    assert silent(run) == {"body": "no forward", "spare": "not called", "spare.0": "not called"}
    assert {row.root for row in run.rows(Silent)} == {"Gone"}


def test_why_a_module_never_ran_is_looked_for_while_the_model_is_there():
    """That its parameters have gradients is seen before the second pass at the earliest."""

    def train():
        net = Gone()
        net.forward = net.body[0].forward
        for _ in range(2):
            step(net)
        del net.forward

    with hookline.record() as run:
        train()
        gc.collect()
    assert silent(run)["body.0"] == "bypassed"


def test_models_that_follow_each_other_under_one_name_count_as_one():
    with hookline.record() as run:
        for depth in (2, 1, 3):
            net = Gone(depth)
            for _ in range(depth):
                step(net)
            del net
            gc.collect()
    assert run.rows(PassRow) == [PassRow("Gone", "train", 6, 2)]
    assert {row.path for row in run.rows(ModuleRow)} >= {"body.0", "body.1", "body.2"}
    assert silent(run) == {"body": "no forward", "spare": "not called", "spare.0": "not called"}


def test_what_ran_in_one_of_them_is_not_silent():
    with hookline.record() as run:
        net = Gone()
        net.spare(torch.ones(1, 2))
        del net
        net = Gone()
        step(net)
    assert silent(run) == {"body": "no forward"}


def test_many_short_lived_models_leave_few_rows(tmp_path):
    with hookline.record(tmp_path / "run.hookline", stats=True, level="both") as run:
        for _ in range(300):
            step(nn.Sequential(nn.Linear(2, 2)))
    calls = Counter()
    for row in run.rows(TimeRow):
        calls[row.level, row.path, row.name, row.direction] += row.calls
    assert calls["module", "0", "", "backward"] == 300
    assert calls["function", "0", "linear", "forward"] == 300
    assert len(run.rows(ModuleRow)) == 2
    assert len(run.rows(PassRow)) == 1
    assert run.rows(PassRow)[0].passes == 300
    assert len(run.rows(TimeRow)) < 20


def test_each_thread_s_last_pass_counts():
    nets = [Gone() for _ in range(4)]
    with hookline.record() as run:
        threads = [threading.Thread(target=step, args=(net,)) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {row.path for row in run.rows(Silent)} == {"body", "spare", "spare.0"}
    assert len(run.rows(Silent)) == 3 * 4
    assert sum(row.passes for row in run.rows(PassRow)) == 4


def test_what_ran_before_the_recording_is_silent_in_it():
    net = Gone()
    net.spare(torch.ones(1, 2))
    with FunctionTimer():  # so that hookline saw it
        net.spare(torch.ones(1, 2))
    with hookline.record() as run:
        step(net)
    assert {"spare", "spare.0"} <= silent(run).keys()


def test_only_given_models_and_selected_modules_are_told():
    net, other = Gone(), nn.Sequential(nn.Linear(2, 2))
    with hookline.record(None, net, where="spare.**") as run:
        step(net)
        step(other)
    assert {row.root for row in run.rows(ModuleRow)} == {"Gone"}
    assert {row.root for row in run.rows(PassRow)} == {"Gone"}
    assert silent(run) == {"spare": "not called", "spare.0": "not called"}


def test_modules_that_come_later_are_listed():
    with hookline.record() as run:
        net = Gone()
        for _ in range(5):
            step(net)
        net.later = nn.Linear(2, 2)
        step(net)
        del net
    assert "later" in {row.path for row in run.rows(ModuleRow)}
    assert silent(run)["later"] == "not called"


def test_lazy_modules_have_their_size_in_the_end():
    net = nn.Sequential(nn.LazyLinear(3))
    with hookline.record() as run:
        net(torch.ones(1, 2))
    assert {row.path: row.parameters for row in run.rows(ModuleRow)} == {"": 0, "0": 9}


def test_a_compiled_model_says_so():
    net = Gone()
    compiled = torch.compile(net, backend="eager")
    with hookline.record() as run:
        for _ in range(2):
            step(compiled)
    causes = silent(run)
    assert causes["body.0"] == "compiled"
    [row] = run.rows(PassRow)
    assert (row.root, row.passes) == ("Gone", 2)


def test_what_a_recording_does_itself_is_seen_by_no_hook_of_the_program(monkeypatch):
    """It reads tensors: parameters now, and what is on a device when somebody asks for rows."""
    rows, net = TimerHook.rows, Gone()

    def stand_in(hook):
        torch.stack([torch.zeros(1)])
        return rows(hook)

    monkeypatch.setattr(TimerHook, "rows", stand_in)
    with FunctionTimer() as timer:
        with hookline.record() as run:
            step(net)
            assert run.rows(TimeRow)
        assert set(timer.summary()) == {"ones", "linear", "sum"}


def test_a_fault_in_looking_is_kept_and_the_program_goes_on(monkeypatch):
    def fail(_):
        msg = "broken"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(census, "_modules_of", fail)
    with hookline.record(None, time=True) as run:
        for _ in range(3):
            net = Gone()
            step(net)
    # Of all looks while it ran one, and one of the last.
    fault, _ = run.rows(FaultRow)
    assert fault.text.startswith("a fault of its own: a model could not be looked at; the program")
    assert fault.text.endswith("ZeroDivisionError: broken")
    assert run.rows(EventRow)
    assert not listeners


def test_nothing_listens_when_it_is_over():
    with hookline.record():
        assert len(listeners) == 1
    assert not listeners
