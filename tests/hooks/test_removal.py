"""In whatever way a ready-made hook is removed, what it registered by itself goes with it."""

import gc
import os
import threading

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

import hookline
from hookline import add_hook, clear_hooks, delete_hook, hooks_of, watch
from hookline.function_hooks import NonFiniteHook as FunctionNonFiniteHook
from hookline.module_hooks import NonFiniteHook, PatchHook, StatsHook, TimerHook


def optimizer_hooks():
    """How many hooks of ready-made hooks stand at the steps of all optimizers."""
    tables = (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    hooks = [hook for table in tables for hook in table.values()]
    return sum(hook.__module__ == "hookline.hooks.aside" for hook in hooks)


def stats():
    return StatsHook(every=1)


def nonfinite():
    return NonFiniteHook(scaler=lambda: 1.0)


def by_handle(model, hook):
    add_hook(model[0], hook).remove()


def by_handles(model, hook):
    """The last of several places is what counts."""
    handles = [add_hook(module, hook) for module in model]
    for handle in handles[:-1]:
        handle.remove()
        assert optimizer_hooks()
    handles[-1].remove()


def by_handle_twice(model, hook):
    first, second = add_hook(model[0], hook), add_hook(model[1], hook)
    first.remove()
    first.remove()
    assert optimizer_hooks()
    second.remove()


def by_block(model, hook):
    with add_hook(model[0], hook):
        assert optimizer_hooks()


def by_name(model, hook):
    add_hook(model[0], hook)
    delete_hook(model[0], hook.name)


def by_listing(model, hook):
    watched = watch(model, hook)
    for row in hooks_of(model):
        row.handle.remove()
    assert not optimizer_hooks()
    watched.close()


def by_clearing(model, hook):
    watched = watch(model, hook)
    clear_hooks(model)
    assert not optimizer_hooks()
    watched.close()


def by_scope(model, hook):
    with hook:
        assert optimizer_hooks()


def by_an_error_in_a_scope(model, hook):
    with pytest.raises(KeyError), hook:
        raise KeyError


def by_closing(model, hook):
    watched = watch(model, hook)
    watched.close()
    watched.close()


def by_a_failing_set_up(model, hook):
    add_hook(model[1], StatsHook(parameters=False), hook.name)
    with pytest.raises(hookline.HookNameError):
        watch(model, hook)
    clear_hooks(model)


def _drop_a_watch(model, hook):
    watch(model, hook)
    gc.collect()


def by_dropping_the_watch(model, hook):
    with pytest.warns(ResourceWarning, match="collected while open"):
        _drop_a_watch(model, hook)


def by_dropping_the_module(model, hook):
    add_hook(nn.Linear(2, 2), hook)
    gc.collect()


def _end_a_thread_inside(hook):
    thread = threading.Thread(target=hook.__enter__)
    thread.start()
    thread.join()
    del thread
    gc.collect()


def by_the_end_of_a_thread(model, hook):
    with pytest.warns(ResourceWarning, match="a thread ended inside"):
        _end_a_thread_inside(hook)


WAYS = [
    by_handle,
    by_handles,
    by_handle_twice,
    by_block,
    by_name,
    by_listing,
    by_clearing,
    by_scope,
    by_an_error_in_a_scope,
    by_closing,
    by_a_failing_set_up,
    by_dropping_the_watch,
    by_dropping_the_module,
    by_the_end_of_a_thread,
]


@pytest.mark.parametrize("make", [stats, nonfinite])
@pytest.mark.parametrize("way", WAYS)
def test_r5_optimizer_hooks_go_with_the_hook(way, make):
    """Though the hook object itself is kept."""
    model, hook = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), make()
    way(model, hook)

    assert optimizer_hooks() == 0
    with watch(model, hook):  # and it can be used again
        assert optimizer_hooks() == (2 if make is stats else 1)
    assert optimizer_hooks() == 0


def test_r5_a_function_hook_on_one_node():
    """The same for the function level, node by node."""
    hook = FunctionNonFiniteHook(scaler=lambda: 1.0)
    relu, tanh = hookline.FunctionNode(torch.relu), hookline.FunctionNode(torch.tanh)
    relu.add_hook(hook)
    tanh.add_hook(hook)
    relu.delete_hook(hook.name)
    assert optimizer_hooks() == 1
    del tanh
    gc.collect()
    assert optimizer_hooks() == 0


def test_r5_function_hooks_of_a_watch():
    """Clearing what is registered for functions is a way like any other."""
    model, hook = nn.Sequential(nn.ReLU()), FunctionNonFiniteHook(scaler=lambda: 1.0)
    watched = watch(model, hook)
    assert optimizer_hooks() == 1
    hookline.functions.places.everywhere.clear()
    assert optimizer_hooks() == 0
    assert watched.closed is False
    watched.close()
    with watch(model, hook):  # the name is free again
        pass


def test_r12_a_forked_child_has_no_optimizer_hooks():
    """Nothing of ours is on there, and its own steps are not measured."""
    model = nn.Linear(2, 2)
    with watch(model, stats()):
        child = os.fork()
        if not child:
            os._exit(optimizer_hooks())
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert optimizer_hooks() == 2


def test_r6_a_patch_that_is_first_leaves_nothing_when_its_handle_is_removed():
    """Inside of a call, the hook that stands in front goes too."""
    layer = nn.Linear(2, 2)
    hook = PatchHook(hookline.edits.zero(), first=True)
    handle = add_hook(layer, hook)
    x = torch.ones(1, 2)
    expected = layer.forward(x)

    class Removes(hookline.ModuleHook):
        def forward_preprocess(self, call):
            assert len(layer._forward_hooks) == 1
            handle.remove()

    with add_hook(layer, Removes()):
        assert torch.equal(layer(x), expected)
    assert not layer._forward_hooks


def test_a_timer_goes_on_when_another_module_is_collected():
    """Only what was removed has no end; the calls that run are measured."""
    timer = TimerHook()

    class Makes(nn.Module):
        def forward(self, x):
            layer = nn.Linear(2, 2)
            add_hook(layer, timer)
            x = layer(x)
            del layer
            gc.collect()
            return x

    model = nn.Sequential(Makes())
    with watch(model, timer):
        model(torch.ones(1, 2))
    assert [(row.path, row.calls) for row in timer.rows() if row.root == "Sequential"] == [
        ("0", 1),
        ("", 1),
    ]


def test_a_timer_is_right_after_it_was_removed_inside_of_a_call():
    """The call that lost its end does not stand around those that follow."""
    timer = TimerHook()
    model = nn.Sequential(nn.Linear(2, 2))
    handle = add_hook(model, timer)

    class Removes(hookline.ModuleHook):
        def forward_preprocess(self, call):
            handle.remove()

    with add_hook(model[0], Removes()):
        model(torch.ones(1, 2))
    with watch(model, timer, where="0"):
        model(torch.ones(1, 2))
    (row,) = timer.rows()
    assert (row.path, row.calls) == ("0", 1)
    assert timer.total_time() == row.total_time
