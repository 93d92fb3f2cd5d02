"""Which threads hooks reach.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import threading

import pytest
import torch
from torch import nn

from hookline import (
    ModuleHook,
    add_hook,
    register_forward_hook,
    register_full_backward_hook,
    register_module_forward_hook,
    with_hooks,
)

X = torch.ones(1, 2)


def in_thread(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


class Names(ModuleHook):
    """Keeps the threads in which it was called."""

    def __init__(self):
        self.names = []

    def forward_postprocess(self, call):
        self.names.append(threading.current_thread().name)

    backward_postprocess = forward_postprocess


def test_p49_a_scope_acts_in_its_own_thread_only():
    """Another thread that runs the same module meanwhile has no hooks."""
    module = nn.Linear(2, 2)
    with Names() as names:
        in_thread("other", lambda: module(X).sum().backward())
        assert names.names == []
        module(X).sum().backward()
    assert set(names.names) == {threading.current_thread().name}
    assert len(names.names) == 2


def test_p49_each_thread_may_open_its_own_scope():
    """Two threads with scopes of one name see their own calls."""
    module, seen = nn.Linear(2, 2), {}

    def work():
        with Names() as names:
            barrier.wait()
            module(X)
            barrier.wait()
        seen[threading.current_thread().name] = names.names

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=work, name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": ["a"], "b": ["b"]}


REGISTRATIONS = {
    "forward": register_forward_hook,
    "backward": register_full_backward_hook,
    "everywhere": lambda module, note: register_module_forward_hook(note),
}


@pytest.mark.parametrize("kind", REGISTRATIONS)
def test_p49_a_registration_on_a_module_acts_in_all_threads(kind):
    """Its hooks run in whatever thread calls the module."""
    module, names = nn.Linear(2, 2), []

    def note(*_):
        names.append(threading.current_thread().name)

    with REGISTRATIONS[kind](module, note):
        in_thread("other", lambda: module(X).sum().backward())
        assert names == ["other"]
    in_thread("later", lambda: module(X).sum().backward())
    assert names == ["other"]


def test_p49_hook_objects_and_value_hooks_on_a_module():
    """They are registrations on the module as well."""
    module, hooks = with_hooks(nn.Linear(2, 2))
    names, seen = Names(), []
    with add_hook(module, names), hooks.add_forward_hook(lambda x, out: seen.append(1)):
        in_thread("other", lambda: module(X).sum().backward())
    assert names.names == ["other", "other"]
    assert seen == [1]


def test_p49_backward_in_another_thread():
    """The hooks are those of the thread that calls `backward`, whoever ran the forward."""
    module, kept = nn.Linear(2, 2), []
    in_thread("forward", lambda: kept.append(module(X)))
    with Names() as here:
        kept.pop().sum().backward()
    # Nobody watched the forward, so nothing is known of the call.
    assert here.names == []

    with Names() as forward:
        y = module(X)
        with Names().renamed("other") as other:
            in_thread("backward", lambda: y.sum().backward())
    assert forward.names == [threading.current_thread().name]
    assert other.names == []
