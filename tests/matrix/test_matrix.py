"""Each hard place with each kind of hook: nothing is changed, and events are what they must be.

A new place is one line in a table of `items/`, a new kind of hook one in `kinds.py`.
"""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from hookline import ModuleCall, ModuleHook, watch
from tests.functions.check_effects import Brackets, FunctionBrackets, ModuleBrackets
from tests.matrix.case import different, flat, results, same
from tests.matrix.items import checkpoint, runs
from tests.matrix.kinds import ALIASING, KINDS
from tests.matrix.oracle import Events, Notes, observed, plainly

TABLES = {"checkpoint": checkpoint.ITEMS, "runs": runs.ITEMS}
ITEMS = {
    f"{group}-{name}": make for group, table in TABLES.items() for name, make in table.items()
}



LAST_BITS = {
    "checkpoint-transformers Llama",
    "checkpoint-transformers BERT",
    "runs-create_graph",
    "runs-MAML",
}
IN_ANOTHER_THREAD = {"runs-backward in a thread"}


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_r2_nothing_is_changed(item, kind):
    """Results, gradients, buffers and random numbers are those without hooks, bit for bit.

    The hooks were called; where an input's gradient is a sum that hooks have torch add up in
    another order, the last bits may differ.
    """
    plain, _ = results(ITEMS[item])
    hooked, count = results(ITEMS[item], KINDS[kind])

    assert count
    if item in LAST_BITS and kind in ALIASING:
        torch.testing.assert_close(hooked, plain)
    else:
        assert different(plain, hooked) == []


@pytest.mark.parametrize("item", ITEMS)
def test_r8_events_are_those_that_torch_tells(item):
    """Calls and backwards in order, paired and nested, with the gradients that autograd gives.

    What a checkpoint repeats is marked, and known by the pass and index of a call that was given
    the same inputs.
    """
    expected, notes = Events(), Notes()
    observed(ITEMS[item], lambda _: plainly(expected))
    if item in IN_ANOTHER_THREAD:  # a scope is of one thread; what is put on a model, of all
        observed(ITEMS[item], lambda model: watch(model, notes))
    else:
        observed(ITEMS[item], lambda _: notes)

    assert notes.open == []
    assert notes.events.classes == expected.classes
    assert notes.events.forward == expected.forward
    assert notes.events.repeated == expected.repeated
    for given, first_given in notes.repeats:
        assert len(given) == len(first_given)
        assert all(map(same, given, first_given))
    assert set(notes.begins) == set(expected.backward)
    assert len(notes.begins) == len(expected.backward)
    times = [expected.backward[each][0] for each in notes.begins]
    assert times == sorted(times)
    for each, (_, gradients) in expected.backward.items():
        found = notes.events.backward[each][1]
        assert found.keys() == gradients.keys()
        assert all(same(found[place], gradients[place]) for place in gradients)


class Nested(Brackets):
    """Where a checkpoint repeats functions that no module call is around, they have no path."""

    def _check_module(self, call):
        if not (call.recomputing and call.module_path is None):
            super()._check_module(call)


@pytest.mark.parametrize("item", ITEMS)
def test_c9_events_of_both_levels_nest(item):
    """Functions lie in the modules that called them, and each begin has one end."""
    brackets = Nested()

    @contextmanager
    def both(model):
        with ModuleBrackets(brackets), FunctionBrackets(brackets):
            yield int

    plain, _ = results(ITEMS[item])
    hooked, _ = results(ITEMS[item], both)

    assert brackets.begun
    assert brackets.open == []
    assert different(plain, hooked) == []


class Remembers(ModuleHook):
    """Keeps weak references to all calls and tensors that it is shown."""

    name = "remembers"

    def __init__(self):
        self.seen = []

    def note(self, call):
        values = flat([call, call.args, call.kwargs, call.out, call.grad_output])
        self.seen += [weakref.ref(v) for v in values if isinstance(v, torch.Tensor | ModuleCall)]

    forward_preprocess = forward_postprocess = backward_preprocess = backward_postprocess = note


@pytest.mark.parametrize("item", ITEMS)
def test_r5_nothing_is_kept(item):
    """When the case is gone, no call and no tensor of it is left."""
    hook = Remembers()
    results(ITEMS[item], lambda _: hooks_for(hook))
    left = [ref for ref in hook.seen if ref() is not None]
    if left:
        gc.collect()
    assert hook.seen
    assert [ref() for ref in left if ref() is not None] == []


@contextmanager
def hooks_for(hook):
    with hook:
        yield int
