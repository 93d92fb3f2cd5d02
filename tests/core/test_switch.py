"""Something that is on exactly while somebody needs it."""

import subprocess
import sys

import pytest

from hookline.core.switch import Switch


class Light:
    """What a switch turns on and off."""

    def __init__(self):
        self.switch = Switch()
        self.history = []
        self.switch.connect(on=lambda: self.turn("on"), off=lambda: self.turn("off"))

    def turn(self, way):
        self.history.append(way)


@pytest.fixture
def light():
    return Light()


def test_the_first_holder_turns_on_and_the_last_one_off(light):
    """In whatever order they come and go, it is on while there is one."""
    a, b, c = object(), object(), object()
    for owner in (a, b):
        light.switch.hold(owner)
    light.switch.release(a)
    light.switch.hold(c)
    light.switch.release(c)
    assert light.history == ["on"]
    assert light.switch

    light.switch.release(b)
    assert light.history == ["on", "off"]
    assert not light.switch


def test_holding_twice_is_holding_once(light):
    """One owner is one holder, and one release ends it."""
    owner = object()
    light.switch.hold(owner)
    light.switch.hold(owner)
    light.switch.release(owner)
    light.switch.release(owner)

    assert light.history == ["on", "off"]


def test_releasing_what_one_does_not_hold_does_nothing(light):
    """Somebody else's release turns nothing off."""
    owner = object()
    light.switch.release(object())
    light.switch.hold(owner)
    light.switch.release(object())

    assert light.history == ["on"]
    light.switch.release(owner)


def test_equal_owners_are_different_holders(light):
    """Owners are told apart by what they are, not by what they equal."""
    first, second = [1], [1]
    light.switch.hold(first)
    light.switch.hold(second)
    light.switch.release(first)

    assert light.switch
    light.switch.release(second)


def test_r5_who_fails_to_turn_it_on_does_not_hold_it(light):
    """An error while turning on leaves it off, and the next one may try again."""
    owner = object()
    light.turn = lambda way: 1 / 0
    with pytest.raises(ZeroDivisionError):
        light.switch.hold(owner)
    assert not light.switch

    light.turn = light.history.append
    light.switch.hold(owner)
    assert light.history == ["on"]
    light.switch.release(owner)


def test_r12_reset_forgets_all_holders(light):
    """In a forked child nobody holds it any more; their later releases do nothing."""
    owners = [object(), object()]
    light.switch.reset()
    assert light.history == []

    for owner in owners:
        light.switch.hold(owner)
    light.switch.reset()
    for owner in owners:
        light.switch.release(owner)
    assert light.history == ["on", "off"]
    assert not light.switch


FORK = """
import os, signal, threading
from hookline.core.switch import Switch, lock

held = threading.Event()
go = threading.Event()

def hold():
    with lock:
        held.set()
        go.wait(0.5)  # so long that the fork meets the lock held

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # a child that waits for ever is ended
    Switch().hold(object())
    os._exit(0)
_, status = os.waitpid(child, 0)
go.set()
holder.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_r12_a_fork_leaves_no_lock_behind():
    """A child can register hooks even if another thread was at it when the process forked."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=True
    )

    assert result.stdout == "0\n"


def test_held_holds_inside_of_with_also_after_an_error(light):
    """What is set up inside finds it on; what holds it there keeps it on."""
    owner = object()
    with light.switch.held():
        assert light.switch
        light.switch.hold(owner)
    assert light.history == ["on"]
    light.switch.release(owner)
    with pytest.raises(ZeroDivisionError), light.switch.held():
        _ = 1 / 0
    assert light.history == ["on", "off"] * 2


def test_held_that_is_dropped_before_its_end_holds_no_longer(light):
    """As where Ctrl-C comes after it was turned on and before the block began."""
    held = light.switch.held()
    held.__enter__()
    assert light.switch
    del held
    assert light.history == ["on", "off"]
