"""What ready-made hooks measured is printed in the tables of runs."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from hookline import function_hooks, module_hooks, watch
from hookline.record.runs import Rank, RunData
from hookline.report.terminal import print_run

NAMES = ("MemoryHook", "FlopHook", "StatsHook", "NonFiniteHook")
LEVELS = [module_hooks, function_hooks]


def make(level, name):
    options = {"every": 1} if name == "StatsHook" else {}
    return getattr(level, name)(**options)


def run_under(hook):
    """A step of training, then a forward of NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, hook):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        model(torch.full((2, 4), math.nan))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_of_a_run(level, name, capsys):
    """All rows of the hook, as `hookline show` prints them."""
    hook = make(level, name)
    run_under(hook)
    hook.print_report()
    printed = capsys.readouterr().out
    rows = [*hook.rows(), *getattr(hook, "parameter_rows", list)()]
    tables = {}
    for row in rows:
        tables.setdefault(type(row), []).append(row)
    out = io.StringIO()
    names = {"MemoryHook": "memory", "FlopHook": "flops", "NonFiniteHook": "nonfinite"}
    run = RunData([Rank(Path(), tables)])
    if name == "NonFiniteHook":
        assert printed.count("8 NaN of 8 float32") == len(rows)
    else:
        several = ("stats", "parameters") if name == "StatsHook" else (names[name],)
        print_run(
            run,
            out,
            limit=None,
            tables=[t for t in several if t != "parameters" or len(tables) > 1],
        )
        assert printed == out.getvalue()
    hook.reset()
    hook.print_report(out := io.StringIO())
    why = (
        "nothing was found that is not finite"
        if name == "NonFiniteHook"
        else "no call was measured"
    )
    assert out.getvalue() == f"{name}: there is nothing to show: {why}\n"


@pytest.mark.parametrize("level", LEVELS)
def test_statistics_that_were_not_due_are_told(level):
    """Where `every` left out all passes there were."""
    hook = level.StatsHook(every=50)
    model, x = nn.ReLU(), torch.ones(2)
    with module_hooks.TimerHook():
        model(x)  # pass 0
    with hook:
        model(x)
    hook.print_report(out := io.StringIO())
    assert "every=50 measures passes 0, 50, 100" in out.getvalue().replace("\n", " ")


def test_operators_that_were_not_counted_are_printed():
    """What a FlopHook could not count stands below."""
    hook = module_hooks.FlopHook()
    with hook:
        torch.linalg.inv(torch.eye(2))
    hook.print_report(out := io.StringIO())
    assert "linalg_inv" in out.getvalue()
