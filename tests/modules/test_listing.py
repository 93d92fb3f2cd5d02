"""What hookline has on a model is listed, and taken off without touching anything else (C10)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookline
from hookline import Phase
from hookline.errors import HookTypeError


class Watcher(hookline.ModuleHook):
    """A hook object with callbacks in three phases."""

    def forward_preprocess(self, call):
        pass

    def backward_preprocess(self, call):
        pass

    def backward_postprocess(self, call):
        pass


def observe(*_):
    pass


def make_model():
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))


def rows_of(model):
    return [(row.path, row.phase) for row in hookline.hooks_of(model)]


def test_c10_a_model_without_hooks_lists_nothing():
    """Torch's own hooks are not hookline's."""
    model = make_model()
    model[0].register_forward_hook(observe)

    assert hookline.hooks_of(model) == []


def test_c10_every_hook_is_listed_with_path_phase_hook_and_handle():
    """In the order of the modules, and on one module in the order of registration."""
    model = make_model()
    handles = [
        hookline.register_full_backward_hook(model[1][1], observe),
        hookline.register_forward_hook(model, observe),
        hookline.register_forward_pre_hook(model[0], observe),
        hookline.register_full_backward_pre_hook(model[0], observe),
    ]

    rows = hookline.hooks_of(model)

    assert [(row.path, row.phase) for row in rows] == [
        ("", Phase.FORWARD),
        ("0", Phase.FORWARD_PRE),
        ("0", Phase.BACKWARD_PRE),
        ("1.1", Phase.BACKWARD),
    ]
    assert all(row.hook is observe for row in rows)
    assert [row.handle.entry for row in rows] == [handles[n].entry for n in (1, 2, 3, 0)]
    assert rows[0].phase == "forward"


def test_c10_prepended_hooks_are_listed_in_front():
    """The order is that in which they run."""
    layer, first, second = nn.Linear(2, 2), lambda m, a: None, lambda m, a: None
    with (
        hookline.register_forward_pre_hook(layer, second),
        hookline.register_forward_pre_hook(layer, first, prepend=True),
    ):
        assert [row.hook for row in hookline.hooks_of(layer)] == [first, second]


def test_c10_a_hook_object_has_a_row_for_each_of_its_phases():
    """All with the one hook and the one registration."""
    layer, hook = nn.Linear(2, 2), Watcher()
    hookline.add_hook(layer, hook)

    rows = hookline.hooks_of(layer)

    assert [row.phase for row in rows] == [
        Phase.FORWARD_PRE,
        Phase.BACKWARD_PRE,
        Phase.BACKWARD,
    ]
    assert all(row.hook is hook for row in rows)
    assert len({row.handle.entry for row in rows}) == 1


def test_c10_value_hooks_are_listed_at_the_wrapper():
    """A `backward` value hook gets the gradient of the output: phase `backward_pre` (V8)."""
    model = make_model()
    model[0], hooks = hookline.with_hooks(model[0])
    hooks.add_backward_hook(observe)
    hooks.add_forward_pre_hook(observe)

    assert rows_of(model) == [("0", Phase.BACKWARD_PRE), ("0", Phase.FORWARD_PRE)]


def test_c10_hooks_inside_wrappers_are_listed_from_the_outside_in():
    """They run, though the model holds only the outermost wrapper."""
    layer = nn.Linear(2, 2)
    bare = hookline.register_forward_hook(layer, observe)
    inner, inner_hooks = hookline.with_hooks(layer)
    outer, outer_hooks = hookline.with_hooks(inner)
    handles = [
        outer_hooks.add_forward_hook(observe),
        inner_hooks.add_forward_hook(observe),
        bare,
    ]
    model = nn.Sequential(outer)

    rows = hookline.hooks_of(model)
    assert [row.handle.entry for row in rows] == [handle.entry for handle in handles]
    assert {row.path for row in rows} == {"0"}

    hookline.clear_hooks(model)
    assert not any(handle.active for handle in handles)


def test_c10_a_shared_module_is_listed_once_by_its_first_name():
    """As in `named_modules()`."""
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": shared})
    hookline.register_forward_hook(shared, observe)

    assert rows_of(model) == [("a.0", Phase.FORWARD)]


def test_c10_scopes_and_hooks_on_all_modules_are_not_a_model_s():
    """They belong to the thread and to everybody."""
    model = make_model()
    with Watcher(), hookline.register_module_forward_hook(observe) as handle:
        assert hookline.hooks_of(model) == []
        hookline.clear_hooks(model)
        assert handle.active


def test_c10_a_removed_hook_is_not_listed():
    """Neither by its own handle nor by the row's."""
    layer = nn.Linear(2, 2)
    first = hookline.register_forward_hook(layer, observe)
    second = hookline.register_forward_pre_hook(layer, observe)

    first.remove()
    assert rows_of(layer) == [("", Phase.FORWARD_PRE)]

    hookline.hooks_of(layer)[0].handle.remove()
    assert not second.active
    assert hookline.hooks_of(layer) == []


def test_c10_clear_removes_exactly_what_is_listed():
    """Torch's hooks, other models' hooks and hooks on all modules stay and run."""
    model, other = make_model(), nn.Linear(3, 4)
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("torch"))
    hookline.register_forward_hook(model[0], lambda *_: calls.append("ours"))
    hookline.register_full_backward_hook(model, lambda *_: calls.append("backward"))
    hookline.add_hook(model[1], Watcher())
    hookline.register_forward_hook(other, lambda *_: calls.append("other"))
    everywhere = hookline.register_module_forward_pre_hook(
        lambda m, args: calls.append("all") if m in (other, model[0]) else None
    )

    hookline.clear_hooks(model)

    assert hookline.hooks_of(model) == []
    x = torch.ones(1, 3)
    model(x).sum().backward()
    other(x)
    assert calls == ["all", "torch", "all", "other"]
    everywhere.remove()


def test_c10_a_part_of_a_model_has_paths_of_its_own():
    """Paths begin at the module that was given."""
    model = make_model()
    hookline.register_forward_hook(model[1][0], observe)

    assert rows_of(model) == [("1.0", Phase.FORWARD)]
    assert rows_of(model[1]) == [("0", Phase.FORWARD)]
    assert rows_of(nn.ModuleList([model])) == [("0.1.0", Phase.FORWARD)]


@pytest.mark.parametrize("given", [None, nn.Linear, [nn.Linear(2, 2)]])
@pytest.mark.parametrize("function", [hookline.hooks_of, hookline.clear_hooks])
def test_c10_what_is_no_model_is_refused(function, given):
    """Rather than an empty list, or an error from inside."""
    with pytest.raises(HookTypeError):
        function(given)
