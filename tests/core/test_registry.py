"""Where registrations live: order, names, snapshots, and changes from several threads."""

import gc
import threading
from weakref import ref

import pytest

from hookline.core.demand import demand
from hookline.core.entry import EMPTY, Entry
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch
from hookline.errors import HooklineError, HookNameError


def entry(name, *, key=None, phases=(Phase.FORWARD,), **options):
    return Entry(name, dict.fromkeys(phases, print), name=name, key=key, **options)


@pytest.fixture
def switch():
    return Switch()


@pytest.fixture
def registry(switch):
    return HookRegistry(switch)


def names(registry):
    return [each.name for each in registry.lineup.entries]


def test_entries_stand_in_the_order_of_registration(registry):
    """New entries come last; with `prepend`, first."""
    registry.add(entry("b"))
    registry.add(entry("c"))
    registry.add(entry("a"), prepend=True)

    assert names(registry) == ["a", "b", "c"]
    assert [handle.hook for handle in registry] == ["a", "b", "c"]
    assert len(registry) == 3


def test_v5_a_handle_removes_its_own_registration_only(registry):
    """One hook registered twice is two registrations; removing again does nothing."""
    first = registry.add(entry("same"))
    second = registry.add(entry("same"))
    first.remove()
    first.remove()

    assert names(registry) == ["same"]
    assert (first.active, second.active) == (False, True)


def test_v5_handles_know_their_registry(registry):
    """All handles of a place share its registry, also those that it lists itself."""
    handle = registry.add(entry("hook"))

    assert handle.registry is registry
    assert [each.registry for each in registry] == [registry]
    assert [each.entry for each in registry] == [handle.entry]


def test_c2_a_name_is_taken_once(registry):
    """The second registration under a name is refused, and the first stays."""
    registry.add(entry("first", key="timer"))
    with pytest.raises(KeyError) as caught:
        registry.add(entry("second", key="timer"))

    assert str(caught.value).startswith("hook timer already exists; ")
    assert isinstance(caught.value, HookNameError | HooklineError)
    assert names(registry) == ["first"]


def test_c2_a_name_is_free_again_after_removal(registry):
    """A name belongs to a registration, not to the place."""
    registry.add(entry("first", key="timer")).remove()
    registry.add(entry("second", key="timer"))

    assert names(registry) == ["second"]


def test_entries_by_name(registry):
    """Named entries are listed in order; those without a name are left out."""
    added = [registry.add(entry(name, key=key)) for name, key in [("a", "k"), ("b", None)]]
    added.append(registry.add(entry("c", key="l"), prepend=True))

    assert registry.named() == {"l": added[2].entry, "k": added[0].entry}
    assert list(registry.named()) == ["l", "k"]


def test_p6_a_running_event_keeps_its_lineup(registry):
    """A change makes a new lineup; who runs through the old one sees what was removed."""
    kept, removed = registry.add(entry("kept")), registry.add(entry("removed"))
    running = registry.lineup
    removed.remove()
    registry.add(entry("new"))

    assert [each.name for each in running.entries] == ["kept", "removed"]
    assert [each.alive for each in running.entries] == [True, False]
    assert names(registry) == ["kept", "new"]
    assert kept.entry.alive


def test_clear(registry, switch):
    """All entries go, at once, and what they needed is turned off."""
    handles = [registry.add(entry(name)) for name in "abc"]
    registry.clear()

    assert registry.lineup is EMPTY
    assert not any(handle.active for handle in handles)
    assert not switch


def test_r1_the_switch_is_on_while_there_are_entries(registry, switch):
    """The first entry turns it on, the last one off; two registries share it."""
    other = HookRegistry(switch)
    turned = []
    switch.connect(on=lambda: turned.append("on"), off=lambda: turned.append("off"))
    first, second = registry.add(entry("a")), registry.add(entry("b"))
    third = other.add(entry("c"))
    assert turned == ["on"]

    for handle in (first, third, second):
        assert switch
        handle.remove()
    assert turned == ["on", "off"]


def test_r5_a_switch_that_does_not_turn_on_leaves_nothing(registry, switch):
    """If what a hook needs cannot be turned on, nothing is registered."""

    def fail():
        msg = "no engine"
        raise OSError(msg)

    switch.connect(on=fail, off=lambda: None)
    with pytest.raises(OSError, match="no engine"):
        registry.add(entry("hook"))

    assert len(registry) == 0
    assert not switch
    assert (demand.backward, demand.clock) == (0, 0)


def test_r5_a_registry_that_goes_away_turns_its_part_off(switch):
    """A module or thread that is gone keeps nothing on, even while a handle lives."""
    registry = HookRegistry(switch)
    registry.add(entry("hook", phases=[Phase.BACKWARD], timed=True))
    assert (demand.backward, demand.clock) == (1, 1)
    del registry

    assert not switch
    assert (demand.backward, demand.clock) == (0, 0)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"phases": [Phase.FORWARD_PRE, Phase.FORWARD]}, (0, 0)),
        ({"phases": [Phase.BACKWARD_PRE]}, (1, 0)),
        ({"phases": [Phase.BACKWARD]}, (1, 0)),
        ({"phases": [], "gradient": print}, (1, 0)),
        ({"phases": [Phase.FORWARD], "timed": True}, (0, 1)),
    ],
)
def test_r1_costly_services_are_counted(registry, options, counts):
    """What hooks ask for beyond plain events is on while one of them is registered."""
    handle = registry.add(entry("hook", **options))
    assert (demand.backward, demand.clock) == counts

    handle.remove()
    handle.remove()
    assert (demand.backward, demand.clock) == (0, 0)


def test_the_lineup_of_an_event_has_the_outer_hooks_first(registry, switch):
    """`behind` puts what is registered here after another lineup, or is it, where one is empty."""
    outer = HookRegistry(switch)
    assert registry.behind(EMPTY) is EMPTY

    registry.add(entry("own"))
    assert registry.behind(EMPTY) is registry.lineup

    outer.add(entry("outer"))
    assert [each.name for each in registry.behind(outer.lineup).entries] == ["outer", "own"]

    registry.clear()
    assert registry.behind(outer.lineup) is outer.lineup
    outer.clear()


def test_a_lineup_is_merged_once(registry, switch):
    """Event after event gets the same merged lineup, until one of the two changes."""
    outer = HookRegistry(switch)
    outer.add(entry("outer"))
    registry.add(entry("own"))
    merged = registry.behind(outer.lineup)

    assert registry.behind(outer.lineup) is merged
    registry.add(entry("more"))
    assert [each.name for each in registry.behind(outer.lineup).entries] == ["outer", "own", "more"]
    outer.clear()
    registry.clear()


@pytest.mark.parametrize("first", ["outer", "own"])
def test_r5_a_merged_lineup_keeps_no_removed_hook(switch, first):
    """Neither place keeps the other's hooks alive once they are removed."""

    class Hook:
        pass

    places = {"outer": HookRegistry(switch), "own": HookRegistry(switch)}
    gone, handles = {}, {}
    for name, place in places.items():
        hook = Hook()
        gone[name] = ref(hook)
        handles[name] = place.add(Entry(hook, {Phase.FORWARD: print}, name=name))
        del hook
    assert len(places["own"].behind(places["outer"].lineup).entries) == 2

    gc.disable()
    try:
        handles.pop(first).remove()
        assert {name: alive() is None for name, alive in gone.items()} == {
            name: name == first for name in gone
        }
        places["own"].behind(places["outer"].lineup)
        handles.popitem()[1].remove()
        assert [alive() for alive in gone.values()] == [None, None]
    finally:
        gc.enable()


def test_a_registry_is_always_true(registry):
    """An empty registry is one all the same, and says that it is empty."""
    assert registry
    assert repr(registry) == "<HookRegistry: empty>"
    registry.add(entry("a"))
    registry.add(entry("b"))
    assert repr(registry) == "<HookRegistry: a, b>"
    registry.clear()


@pytest.mark.usefixtures("frequent_switches")
def test_r11_registries_may_be_changed_from_any_thread(registry, switch):
    """No registration is lost or doubled, and the switch is on just while there are some."""
    turned, errors = [], []
    switch.connect(on=lambda: turned.append("on"), off=lambda: turned.append("off"))
    barrier = threading.Barrier(4)

    def work(number):
        try:
            barrier.wait()
            for round_ in range(50):
                kept = registry.add(entry(f"{number}.{round_}", timed=True))
                for other in range(3):
                    registry.add(entry("passing"), prepend=bool(other % 2)).remove()
                if round_ % 2:
                    kept.remove()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    kept = sorted(f"{number}.{round_}" for number in range(4) for round_ in range(0, 50, 2))
    assert sorted(names(registry)) == kept
    assert demand.clock == len(kept)
    registry.clear()
    assert turned == ["on", "off"] * (len(turned) // 2)
    assert demand.clock == 0


@pytest.mark.usefixtures("frequent_switches")
def test_r11_a_name_is_taken_by_one_thread(registry):
    """Of several threads that register one name at the same time, one succeeds."""
    for _ in range(20):
        barrier, taken = threading.Barrier(4), []

        def work(barrier=barrier, taken=taken):
            barrier.wait()
            try:
                registry.add(entry("hook", key="name"))
            except HookNameError:
                taken.append(False)
            else:
                taken.append(True)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(taken) == [False, False, False, True]
        assert names(registry) == ["hook"]
        registry.clear()
