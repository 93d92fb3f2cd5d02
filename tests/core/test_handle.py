"""What registering a hook returns."""

import copy
import pickle
from functools import partial

import pytest

from hookline.core.demand import demand
from hookline.core.entry import Entry
from hookline.core.handle import HookHandle
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch


def through_pickle(protocol, value):
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.fixture
def registry():
    return HookRegistry(Switch())


@pytest.fixture
def handle(registry):
    return registry.add(Entry(print, {Phase.FORWARD: print, Phase.BACKWARD: print}, name="print"))


def test_p4_a_handle_removes_once(registry, handle):
    """`remove` takes the hook off at once; a second call does nothing."""
    assert handle.active
    handle.remove()
    assert not handle.active
    assert len(registry) == 0
    handle.remove()


def test_p4_a_handle_is_a_context_manager(registry, handle):
    """`with` gives the handle and removes the hook on any exit."""

    def leave_by(error):
        with handle as given:
            assert given is handle
            assert handle.active
            raise error

    with pytest.raises(KeyboardInterrupt):
        leave_by(KeyboardInterrupt)
    assert len(registry) == 0


def test_p4_a_handle_works_after_its_place_is_gone(registry, handle):
    """Removing from a registry that nobody else has any more is no error."""
    del registry
    handle.remove()
    assert not handle.active


def test_a_handle_gives_its_hook(registry, handle):
    """Whoever lists handles finds the hooks."""
    assert handle.hook is print
    assert [each.hook for each in registry] == [print]
    registry.clear()


def test_a_handle_does_not_remove_what_came_later(registry, handle):
    """A removed hook that is registered again is another registration."""
    handle.remove()
    again = registry.add(Entry(print, {Phase.FORWARD: print}, name="print"))
    handle.remove()
    assert again.active
    again.remove()


def test_a_handle_in_words(registry, handle):
    """It shows hook, phases and whether it is active."""
    assert repr(handle) == "<HookHandle active: print at forward, backward>"
    handle.remove()
    assert repr(handle) == "<HookHandle removed: print at forward, backward>"


def test_handles_of_one_registration_are_as_good_as_each_other(registry, handle):
    """A listed handle removes the same registration."""
    (listed,) = registry
    assert isinstance(listed, HookHandle)
    listed.remove()
    assert not handle.active


@pytest.mark.parametrize(
    "travel",
    [copy.copy, copy.deepcopy, *[partial(through_pickle, n) for n in range(6)]],
    ids=["copy", "deepcopy", *[f"pickle {number}" for number in range(6)]],
)
def test_r4_a_handle_stays_here(registry, handle, travel):
    """In a copy or pickle of what holds a handle, None stands in its place; so for a registry."""
    assert travel(handle) is None
    assert travel(registry) is None
    assert handle.active
    assert demand.backward == 1
    handle.remove()
