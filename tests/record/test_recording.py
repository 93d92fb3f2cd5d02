"""Recording from Python: what is kept, where, and that it ends well."""

import itertools
import math
import os
import statistics
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hookline
from hookline.core.records import NonFiniteRow, ParameterRow, Silent, StatsRow, TimeRow
from hookline.errors import HookTypeError, HookValueError, RunFileError, SelectionError
from hookline.module_hooks import TimerHook
from hookline.record.course import EVENTS, PASSES
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow, RunRow, SeriesRow


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x))


def train(net, passes):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(passes):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()


def evaluate(net, passes):
    net.eval()
    with torch.no_grad():
        for _ in range(passes):
            net(torch.randn(3, 4))
    net.train()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.hookline"


def test_the_file_holds_what_the_recording_tells(path):
    net = Net()
    with hookline.record(path, net, stats=True, every=1) as run:
        train(net, 3)
        evaluate(net, 2)
    kept = hookline.load_run(path)
    for kind in (TimeRow, StatsRow, ParameterRow, SeriesRow, EventRow, ModuleRow, PassRow, Silent):
        assert kept.rows(kind), kind
    for kind in (RunRow, TimeRow, StatsRow, SeriesRow, EventRow, ModuleRow, PassRow, Silent):
        assert kept.rows(kind) == run.rows(kind), kind
    calls = Counter()
    for row in kept.rows(TimeRow):
        calls[row.path, row.mode, row.direction] += row.calls
    assert calls["head", "train", "forward"] == calls["head", "train", "backward"] == 3
    assert calls["head", "eval", "forward"] == 2
    assert {(row.mode, row.passes) for row in kept.rows(PassRow)} == {("train", 3), ("eval", 2)}


def test_the_row_of_the_run_says_what_it_was(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    net = Net()
    with hookline.record(path, net) as run:
        assert run.info.state == "running"
        assert hookline.load_run(path).info.state == "running"
        train(net, 4)
    row = hookline.load_run(path).info
    assert (row.state, row.error, row.steps, row.rank, row.ranks) == ("finished", "", 4, 0, 1)
    assert row.program == ("train.py", "--lr", "1")
    assert row.options == ("--time", "--nonfinite", "--level", "module")
    assert row.process == os.getpid()
    assert row.torch == torch.__version__


def test_an_error_that_ends_it_is_told_and_comes_out(path):
    error = ValueError("too hot")
    with pytest.raises(ValueError, match="too hot") as caught, hookline.record(path, Net()):
        raise error
    assert caught.value is error
    row = hookline.load_run(path).info
    assert (row.state, row.error) == ("failed", "ValueError: too hot")
    with pytest.raises(KeyboardInterrupt), hookline.record(path, Net()):
        raise KeyboardInterrupt
    assert hookline.load_run(path).info.state == "interrupted"


def test_modules_are_listed_in_their_order_with_what_they_hold(path):
    net = Net()
    with hookline.record(path, net):
        train(net, 1)
    rows = hookline.load_run(path).rows(ModuleRow)
    assert [row.path for row in rows] == [name for name, _ in net.named_modules()]
    assert [row.type for row in rows] == [type(m).__name__ for m in net.modules()]
    for row, module in zip(rows, net.modules(), strict=True):
        assert row.parameters == sum(p.numel() for p in module.parameters(recurse=False))


def test_r9_modules_that_never_ran_are_told(path):
    net = Net()
    with hookline.record(path, net):
        train(net, 1)
    rows = hookline.load_run(path).rows(Silent)
    assert [(row.root.partition("#")[0], row.path, row.cause) for row in rows] == [
        ("Net", "unused", "not called")
    ]


def test_series_are_the_numbers_of_each_pass(path):
    net = Net()
    norms = []
    net.head.register_forward_hook(lambda _, __, out: norms.append(out.detach().norm().item()))
    with hookline.record(path, net, stats=True, every=1):
        train(net, 5)
    found = {
        (row.path, row.direction, row.metric): row
        for row in hookline.load_run(path).rows(SeriesRow)
    }
    row = found["head", "forward", "norm"]
    assert row.values == pytest.approx(norms, rel=1e-5)
    assert row.width == 1
    times = found["head", "forward", "time"].values
    [total] = [
        row.total_time
        for row in hookline.load_run(path).rows(TimeRow)
        if (row.path, row.direction) == ("head", "forward")
    ]
    assert len(times) == 5
    assert statistics.fmean(times) * 5 == pytest.approx(total, rel=1e-5)


def test_events_are_those_of_the_first_and_last_passes_and_nest(path):
    net = Net()
    with hookline.record(path, net):
        train(net, 7)
    events = hookline.load_run(path).rows(EventRow)
    assert {row.pass_number for row in events} == {0, 1, 5, 6}
    calls = Counter((row.path, row.direction) for row in events)
    assert set(calls.values()) == {2 * PASSES}
    assert {row.step - row.pass_number for row in events} == {events[0].step}
    # Whole nanoseconds, so that what is told in seconds can be compared exactly.
    spans = [(round(r.begin * 1e9), round((r.begin + r.duration) * 1e9)) for r in events]
    for (a, b), (c, d) in itertools.combinations(spans, 2):
        apart = b <= c or d <= a
        nested = (a <= c and d <= b) or (c <= a and b <= d)
        assert apart or nested
    whole = [row for row in events if row.path == ""]
    parts = [row for row in events if row.path == "head"]
    for outer, inner in zip(whole, parts, strict=True):
        assert outer.begin <= inner.begin + 1e-9
        assert inner.begin + inner.duration <= outer.begin + outer.duration + 1e-9


def test_only_the_given_models_are_measured(path):
    mine, other = Net(), nn.Linear(4, 2)
    with hookline.record(path, mine, level="both", stats=True, every=1):
        train(mine, 1)
        other(torch.zeros(1, 4))
        F.relu(torch.zeros(1))
    run = hookline.load_run(path)
    assert {row.root.partition("#")[0] for row in run.rows(TimeRow)} == {"Net"}
    assert {row.root.partition("#")[0] for row in run.rows(StatsRow)} == {"Net"}
    assert {row.path for row in run.rows(TimeRow) if row.level == "function"} >= {"head", "body.0"}


def test_only_what_is_selected_is_measured(path):
    net = Net()
    with hookline.record(path, net, level="both", where=["head", "body.*:linear"]):
        train(net, 2)
    rows = hookline.load_run(path).rows(TimeRow)
    assert {(row.level, row.path, row.name) for row in rows} == {
        ("module", "head", ""),
        ("function", "head", "linear"),
        ("function", "body.0", "linear"),
    }
    assert {row.calls for row in rows} == {2}


def test_a_pattern_that_matches_nothing_is_refused_where_the_models_are_known(path):
    with pytest.raises(SelectionError, match="did you mean 'head'"):
        hookline.record(path, Net(), where="heat")
    assert not path.exists()


def test_a_pattern_that_matches_nothing_is_told_at_the_end_where_they_are_not(path):
    net = Net()
    with hookline.record(path, where=["heat", "head"]) as run:
        train(net, 1)
    [fault] = run.rows(FaultRow)
    assert "named 'heat'; did you mean 'head'?" in fault.text
    with hookline.record(None, where="head") as run:
        pass
    assert "no model was seen" in run.rows(FaultRow)[0].text


def test_nonfinite_values_are_found(path):
    net = Net()
    net.head.weight.data[0, 0] = math.nan
    with hookline.record(path, net):
        net(torch.ones(1, 4))
    row = hookline.load_run(path).rows(NonFiniteRow)[0]
    assert (row.path, row.verdict, row.cause) == ("head", "bad parameter", "head.weight")


def test_nothing_is_kept_where_no_file_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = Net()
    with hookline.record(None, net) as run:
        train(net, 1)
        assert run.rows(TimeRow)
    assert run.rows(TimeRow)
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_entered_once(path):
    recording = hookline.record(path, Net())
    with recording:
        pass
    with pytest.raises(HookValueError, match="entered once"):
        recording.__enter__()


def test_a_file_that_cannot_be_made_is_an_error_and_leaves_no_hook(tmp_path):
    recording = hookline.record(tmp_path / "no" / "run.hookline", Net())
    with pytest.raises(RunFileError, match="can't be written"), recording:
        pass


def test_memory_is_bounded(path):
    """Bins, events and rows do not grow with the number of passes."""
    net = nn.Linear(2, 2)
    sizes = []
    with hookline.record(path, net, nonfinite=False, stats=True, every=1) as run:
        for _ in range(2):
            for _ in range(600):
                net(torch.zeros(1, 2)).sum().backward()
            sizes.append({kind: len(run.rows(kind)) for kind in (TimeRow, SeriesRow, EventRow)})
    assert sizes[0] == sizes[1]
    assert sizes[0][EventRow] == 2 * 2 * PASSES < EVENTS
    rows = run.rows(SeriesRow)
    assert {row.width for row in rows} == {8}
    assert {len(row.values) for row in rows} == {1200 // 8}


def test_r10_what_is_no_model_is_refused(path):
    """A hook, say: `record` is told what to measure by keywords."""
    with pytest.raises(HookTypeError, match=r"not TimerHook; .*keywords: record\(path, model,"):
        hookline.record(path, Net(), TimerHook())
    assert not path.exists()


def test_r10_what_is_no_file_is_refused(path):
    with pytest.raises(HookTypeError, match="takes the file first, or None, then models: not Net"):
        hookline.record(Net())
    with pytest.raises(HookValueError, match=r"run.export\('.*report.html'\)"):
        hookline.record(path.with_name("report.html"))
    with pytest.raises(HookValueError, match="every=0: give a whole number"):
        hookline.record(path, every=0)
