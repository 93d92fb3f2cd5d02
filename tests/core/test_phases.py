"""When hooks run, and the kinds of value hooks."""

import pickle

import pytest

from hookline.core.phases import HookKind, Phase
from hookline.errors import HooklineError

PHASES = ["forward_pre", "forward", "backward_pre", "backward"]


def test_phases_in_the_order_of_a_call():
    """Records, errors and listings use these names."""
    assert [phase.value for phase in Phase] == PHASES
    assert [f"{phase}" for phase in Phase] == PHASES
    assert Phase("forward") is Phase.FORWARD
    assert {Phase.FORWARD: 1}["forward"] == 1


@pytest.mark.parametrize(
    ("number", "name", "phase"),
    [(0, "forward_pre", "forward_pre"), (1, "forward", "forward"), (2, "backward", "backward_pre")],
)
def test_v8_kinds_by_number_and_name(number, name, phase):
    """Either gives the member, which knows its phase: `backward` gets the output's gradient."""
    kind = HookKind(number)

    assert kind is HookKind(name) is HookKind[name] is getattr(HookKind, name)
    assert kind == number
    assert kind.phase is Phase(phase)
    assert HookKind(kind) is kind
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_v8_there_are_three_kinds():
    """The kinds of this source."""
    assert [kind.name for kind in HookKind] == ["forward_pre", "forward", "backward"]


@pytest.mark.parametrize("value", [3, -1, "foward", "FORWARD", None, 1.5, "backward_pre", [1]])
def test_v8_anything_else_lists_the_members(value):
    """The error is a `ValueError` that shows what was given and what there is."""
    with pytest.raises(ValueError, match="is not a kind of hook") as caught:
        HookKind(value)

    assert isinstance(caught.value, HooklineError)
    assert str(caught.value) == (
        f"{value!r} is not a kind of hook; choose one of 'forward_pre' (0), 'forward' (1), "
        "'backward' (2)"
    )
