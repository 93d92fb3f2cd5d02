"""Each hard place with each kind of hook: nothing is changed, and events are what they must be.

A new place is one line in a table of `items/`, a new kind of hook one in `kinds.py`.
"""

import gc
import weakref
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from hookline import ModuleCall, ModuleHook, watch
from tests.functions.check_effects import Brackets, FunctionBrackets, ModuleBrackets
from tests.matrix.case import different, flat, results, same
from tests.matrix.items import checkpoint, layers, runs, tensors, transforms
from tests.matrix.kinds import ALIASING, KINDS
from tests.matrix.oracle import Events, Notes, Plainly, observed

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
]

TABLES = {
    "checkpoint": checkpoint.ITEMS,
    "runs": runs.ITEMS,
    "transforms": transforms.ITEMS,
    "tensors": tensors.ITEMS,
    "layers": layers.ITEMS,
}
ITEMS = {f"{group}-{name}": make for group, table in TABLES.items() for name, make in table.items()}


LAST_BITS = {
    "checkpoint-transformers Llama",
    "checkpoint-transformers BERT",
    "runs-create_graph",
    "runs-MAML",
    "transforms-grad of grad",
}
UNREADABLE = {
    *(f"transforms-{name}" for name in transforms.ITEMS),
    "tensors-__torch_dispatch__",
    "tensors-__torch_dispatch__, weights",
    "tensors-meta",
    "tensors-empty batch",
}
"""Where there are no numbers to make statistics of."""
IN_ANOTHER_THREAD = {"runs-backward in a thread"}


@cache
def plain_results(item):
    """What an item gives without hooks."""
    return results(ITEMS[item])[0]


@cache
def expected_of(item):
    """What happens in an item, told without hookline."""
    expected = Events()
    observed(ITEMS[item], lambda _: Plainly(expected))
    return expected


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_r2_nothing_is_changed(item, kind):
    """Results, gradients, buffers and random numbers are those without hooks, bit for bit.

    The hooks were called; where an input's gradient is a sum that hooks have torch add up in
    another order, the last bits may differ.
    """
    plain = plain_results(item)
    hooked, count = results(ITEMS[item], KINDS[kind])

    if kind.startswith("backward"):
        assert bool(count) == bool(expected_of(item).backward)
    elif kind != "StatsHook" or item not in UNREADABLE:
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
    expected, notes = expected_of(item), Notes()
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

    plain = plain_results(item)
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
