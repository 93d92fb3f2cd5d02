"""One registration, and lineups: what is registered prepared for the call."""

import pytest

from hookline.core.entry import EMPTY, Entry, Lineup
from hookline.core.phases import Phase

PRE, POST, BACK_PRE, BACK = Phase


class Callback(str):
    """Is known by its text."""

    __slots__ = ()

    def __call__(self, call):
        """Nothing calls it here."""


def entry(name, *phases, **options):
    callbacks = {phase: Callback(f"{name} at {phase}") for phase in phases}
    return Entry(name, callbacks, name=name, **options)


def names(entries):
    return [each.name for each in entries]


@pytest.mark.parametrize(
    ("made", "phases", "backward"),
    [
        (entry("e", POST, PRE), (PRE, POST), False),
        (entry("e", BACK), (BACK,), True),
        (entry("e", BACK, BACK_PRE, POST), (POST, BACK_PRE, BACK), True),
        (entry("e", gradient=print), (BACK_PRE,), True),
        (entry("e"), (), False),
    ],
)
def test_the_phases_of_an_entry(made, phases, backward):
    """An entry runs where it has a callback, in the order of a call; a gradient hook backwards."""
    assert made.phases == phases
    assert made.watches_backward is backward


def test_the_modes_of_a_lineup():
    """Those of its entries, in order."""
    modes = object(), object()
    entries = entry("a", PRE, mode=modes[0]), entry("b", PRE), entry("c", PRE, mode=modes[1])
    assert Lineup(entries).modes == modes
    assert EMPTY.modes == ()


def test_an_entry_in_words():
    """Listings and errors show name and phases, and whether it was removed."""
    made = entry("shapes", PRE, BACK)
    assert repr(made) == "<Entry shapes at forward_pre, backward>"
    made.alive = False
    assert repr(made) == "<Entry removed shapes at forward_pre, backward>"


def test_a_lineup_has_the_callbacks_of_each_phase_in_order():
    """For each phase the entries that take part, with their callbacks."""
    a, b, c = entry("a", PRE, POST), entry("b", POST, BACK), entry("c", BACK_PRE, PRE)
    lineup = Lineup([a, b, c])

    assert lineup.entries == (a, b, c)
    assert lineup.forward_pre == ((a, "a at forward_pre"), (c, "c at forward_pre"))
    assert lineup.forward == ((a, "a at forward"), (b, "b at forward"))
    assert lineup.backward_pre == ((c, "c at backward_pre"),)
    assert lineup.backward == ((b, "b at backward"),)


@pytest.mark.parametrize(
    ("options", "attribute", "expected"),
    [
        ({"paired": True}, "paired", ["e"]),
        ({"gradient": print}, "gradients", ["e"]),
    ],
)
def test_a_lineup_knows_special_entries(options, attribute, expected):
    """Hook objects and value hooks on gradients are at hand."""
    assert names(getattr(Lineup([entry("plain", PRE), entry("e", **options)]), attribute)) == (
        expected
    )


def test_a_lineup_knows_which_hooks_run_also_after_an_error():
    """Of the hooks after the forward, those with `always`."""
    always, plain = entry("always", POST, always=True), entry("plain", POST)

    assert Lineup([plain, always]).always == ((always, "always at forward"),)


@pytest.mark.parametrize("demand", ["needs_grad_input", "joint"])
def test_a_lineup_asks_for_what_one_of_its_hooks_asks_for(demand):
    """One hook that wants more makes the event give more."""
    assert not getattr(Lineup([entry("plain", PRE)]), demand)
    assert getattr(Lineup([entry("plain", PRE), entry("e", **{demand: True})]), demand)


def test_a_lineup_knows_whether_somebody_watches_the_backward():
    """A callback in a phase of the backward, or a value hook on gradients."""
    assert not Lineup([entry("a", PRE, POST)]).watches_backward
    assert Lineup([entry("a", PRE), entry("b", BACK)]).watches_backward
    assert Lineup([entry("a", PRE), entry("b", gradient=print)]).watches_backward


def test_c5_scoped_hooks_come_before_local_ones():
    """A lineup followed by another has that one's entries last."""
    scoped = Lineup([entry("a", PRE), entry("b", PRE, key="b")])
    own = Lineup([entry("c", PRE), entry("d", PRE, key="d")])

    assert names(scoped.followed_by(own).entries) == ["a", "b", "c", "d"]
    assert names(own.followed_by(scoped).entries) == ["c", "d", "a", "b"]


def test_c5_a_local_hook_takes_the_place_of_a_scoped_one_of_its_name():
    """It runs where the scoped one would have run, and only once."""
    scoped = Lineup([entry(name, PRE, key=name) for name in "xyz"])
    local = entry("local y", PRE, key="y")
    merged = scoped.followed_by(Lineup([entry("first", PRE), local, entry("w", PRE, key="w")]))

    assert names(merged.entries) == ["x", "local y", "z", "first", "w"]
    assert merged.forward_pre[1] == (local, "local y at forward_pre")


def test_entries_without_a_name_never_take_a_place():
    """Hooks that are not registered by name stand beside each other, whatever they are called."""
    merged = Lineup([entry("same", PRE)]).followed_by(Lineup([entry("same", PRE)]))

    assert names(merged.entries) == ["same", "same"]


def test_an_empty_lineup_adds_nothing():
    """Followed by nothing, a lineup is itself."""
    lineup = Lineup([entry("a", PRE)])

    assert lineup.followed_by(EMPTY) is lineup
    assert names(EMPTY.followed_by(lineup).entries) == ["a"]
    assert EMPTY.entries == EMPTY.forward_pre == EMPTY.backward == ()


def test_r11_a_lineup_that_threads_prepare_at_once_is_whole_for_each():
    """A thread that comes in the middle sees all hooks once, and so does the one before it."""
    seen = []

    class Slow(dict):
        """Lets another thread come while it is read for the first time."""

        def items(self):
            if not seen:
                seen.append(None)
                seen[:] = [lineup.forward, lineup.paired, lineup.joint]
            return super().items()

    first = entry("first", POST, paired=True)
    slow = Entry("slow", Slow({POST: Callback("slow")}), name="slow", paired=True, joint=True)
    lineup = Lineup([first, slow])
    assert [each.name for each, _ in lineup.forward] == ["first", "slow"]
    assert names(lineup.paired) == ["first", "slow"]
    assert seen == [lineup.forward, lineup.paired, True]
