"""Every kind of function call, each run through the same checks; see `scenarios/`."""

import pytest

from tests.functions.check_effects import check_modules, check_nothing_is_kept, check_results
from tests.functions.check_events import check_events
from tests.functions.scenario import SCENARIOS
from tests.functions.scenarios import basics, custom, inplace, kinds, models, outputs, runs, views

GROUPS = {
    basics: ["basics", "many nodes"],
    outputs: ["several outputs", "several nodes"],
    inplace: ["in-place"],
    views: ["views", "no gradient", "autocast"],
    custom: ["custom"],
    kinds: ["subclass", "nested", "sparse", "complex", "functorch"],
    models: ["modules", "checkpoint", "compiled"],
    runs: ["grad in forward", "several passes", "partial"],
}

each_scenario = pytest.mark.parametrize("each", SCENARIOS, ids=str)


def test_there_are_scenarios_of_every_group():
    """No file of scenarios is forgotten, and no two scenarios share a name."""
    assert len(SCENARIOS) >= 80
    assert len({str(each) for each in SCENARIOS}) == len(SCENARIOS)
    assert {each.group for each in SCENARIOS} == {g for groups in GROUPS.values() for g in groups}


@each_scenario
def test_events(each):
    """Forward and backward events come once, in order and paired, around their nodes.

    The gradients that they show are those of plain autograd, and no function with one is missed.
    """
    check_events(each)


@each_scenario
def test_r2_results_are_those_without_hooks(each):
    """Outputs, gradients and random numbers are equal bit for bit."""
    check_results(each)


@each_scenario
def test_functions_lie_in_the_modules_that_call_them(each):
    """With module hooks on too, events nest, and still nothing is changed."""
    check_modules(each)


@each_scenario
def test_r5_nothing_is_kept(each):
    """When the graph is gone, no call and no tensor is left, with the garbage collector off."""
    check_nothing_is_kept(each)
