"""Which calls are wanted, and what is told of patterns that matched nothing."""

import re

import pytest
import torch
from torch import nn

import hookline
from hookline.core.records import Silent, TimeRow
from hookline.record.rows import FaultRow


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.encoder(x).relu())


def recorded(model=None, **options):
    net = Net()
    with hookline.record(None, *([net] if model else []), **options) as run:
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()
    return run


def found(run):
    return {(row.level, row.path, row.name) for row in run.rows(TimeRow)}


@pytest.mark.parametrize("model", [None, True], ids=["any", "given"])
@pytest.mark.parametrize(
    ("level", "where", "expected"),
    [
        ("module", "head", {("module", "head", "")}),
        ("module", nn.ReLU, {("module", "encoder.1", "")}),
        ("module", re.compile("enc.*0"), {("module", "encoder.0", "")}),
        ("module", lambda path, _: path == "", {("module", "", "")}),
        ("function", "head", {("function", "head", "linear")}),
        ("function", "**:relu", {("function", "", "relu"), ("function", "encoder.1", "relu")}),
        ("both", ["head", ":relu[0]"], {
            ("module", "head", ""),
            ("function", "head", "linear"),
            ("function", "", "relu"),
        }),
    ],
)  # fmt: skip
def test_section_4_every_kind_of_pattern_selects(model, level, where, expected):
    run = recorded(model, level=level, where=where)
    assert found(run) == expected
    assert run.rows(FaultRow) == []
    assert {row.calls for row in run.rows(TimeRow)} == {2}


@pytest.mark.parametrize(
    ("level", "where", "told"),
    [
        (
            "both",
            "head:linaer",
            "'head:linaer' matched no function: the module called 'linear'; did",
        ),
        ("both", "head:linear[3]", "never for the index [3]"),
        ("module", "head:linear", "means functions, and only modules are measured: see --level"),
        ("both", "hed", "no module of Net is named 'hed'; did you mean 'head'?"),
        ("both", "head.**:relu", "the module called 'linear'"),
    ],
)
def test_r10_a_pattern_that_matched_nothing_is_told(level, where, told):
    run = recorded(level=level, where=["head", where])
    [fault] = run.rows(FaultRow)
    assert told in re.sub("#[0-9]+", "", fault.text)
    assert ("module", "head", "") in found(run)


def test_a_pattern_need_match_in_one_model_only():
    with hookline.record(None, where="head") as run:
        nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))
        Net()(torch.ones(1, 2))
    assert run.rows(FaultRow) == []


def test_models_that_share_modules_each_have_their_own_rows():
    shared = nn.Linear(2, 2)
    first, second, third = nn.Sequential(shared), nn.Sequential(shared, nn.ReLU()), Net()
    with hookline.record(None, first, second) as run:
        for model in (first, second, third):
            model(torch.ones(1, 2))
    roots = {row.root for row in run.rows(TimeRow) if row.path == "0"}
    assert len(roots) == 2
    assert {(row.path, row.calls) for row in run.rows(TimeRow)} == {("", 1), ("0", 1), ("1", 1)}


def test_modules_that_come_later_are_selected_too():
    net = nn.Sequential(nn.Linear(2, 2))
    with hookline.record(None, where="later") as run:
        net(torch.ones(1, 2))
        net.add_module("later", nn.ReLU())
        net(torch.ones(1, 2))
    assert found(run) == {("module", "later", "")}
    assert run.rows(FaultRow) == []


@pytest.mark.parametrize("where", [None, ["0", "0:linear"]], ids=["all", "paths in it"])
def test_a_part_that_was_given_is_measured_where_the_whole_is_called(where):
    """What is in a given model is wanted under any root, and its functions; nothing else is."""
    net = Net()
    with hookline.record(None, net.encoder, level="both", where=where) as run:
        net(torch.ones(1, 2)).sum().backward()
    rows = {("module", "encoder.0", ""), ("function", "encoder.0", "linear")}
    others = {
        ("module", "encoder", ""),
        ("module", "encoder.1", ""),
        ("function", "encoder.1", "relu"),
    }
    assert found(run) == (rows if where else rows | others)
    assert {row.root.partition("#")[0] for row in run.rows(TimeRow)} == {"Net"}
    assert run.rows(FaultRow) == []


def test_what_never_ran_of_a_part_that_was_given_is_told():
    """Only what is in the given model is told to be silent, by its path in the root that ran."""
    net = Net()
    net.encoder.add_module("idle", nn.ModuleList([nn.ReLU()]))
    net.encoder.forward = net.encoder[1].__call__
    net.unused = nn.ReLU()
    with hookline.record(None, net.encoder) as run:
        net(torch.ones(1, 2))
    silent = {row.path for row in run.rows(Silent)}
    assert "encoder.0" in silent
    assert all(path.startswith("encoder.") for path in silent)


def test_what_is_put_into_a_part_that_was_given_is_measured():
    """Modules that come later into a given model are wanted in the larger one, too."""
    net = Net()
    with hookline.record(None, net.encoder) as run:
        net(torch.ones(1, 2))
        net.encoder.append(nn.Tanh())
        net(torch.ones(1, 2))
    assert ("module", "encoder.2", "") in found(run)
    assert not any(path in ("", "head") for _, path, _ in found(run))
