"""Which call an event belongs to."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest

from hookline.core.calls import Call, Inputs, Pass
from hookline.errors import HooklineError


class Point(NamedTuple):
    x: int
    y: int


def make_pass(**changes):
    known = {"number": 3, "step": 5, "mode": "train", "opener": None, "backwards": 0}
    return Pass(SimpleNamespace(name="Net", seats={}), **(known | changes))


def test_inputs_hold_both_kinds_of_arguments():
    """Positional and keyword arguments as they are; nothing means none."""
    keywords = {"scale": 3}
    inputs = Inputs((1, 2), keywords)

    assert inputs.args == (1, 2)
    assert inputs.kwargs is keywords
    assert repr(inputs) == "Inputs((1, 2), {'scale': 3})"
    assert (Inputs().args, Inputs().kwargs) == ((), {})
    assert Inputs((1,)).kwargs is not Inputs((1,)).kwargs


def test_inputs_can_be_changed():
    """A hook may change the object that it was given and return it."""
    inputs = Inputs((1,), {})
    inputs.args = (2,)
    inputs.kwargs["scale"] = 3

    assert (inputs.args, inputs.kwargs) == ((2,), {"scale": 3})


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (([1, 2],), "list and NoneType"),
        ((1,), "int and NoneType"),
        (((1,), [("scale", 3)]), "tuple and list"),
        (((1,), (2,)), "tuple and tuple"),
    ],
)
def test_r10_inputs_refuse_what_is_no_tuple_and_dict(arguments, given):
    """A bare value would be mistaken for the arguments, so the error shows the form."""
    with pytest.raises(TypeError, match=f"not {given}: Inputs") as caught:
        Inputs(*arguments)

    assert isinstance(caught.value, HooklineError)


def test_r10_a_named_tuple_is_no_arguments():
    """It is one value; taken for the arguments it would be torn apart."""
    with pytest.raises(TypeError, match="Inputs takes a tuple"):
        Inputs(Point(1, 2))


def test_r8_a_call_tells_what_its_pass_knows():
    """Root, pass, step and mode are those of the pass; a hook may add attributes of its own."""
    call = Call()
    call.running = make_pass()
    call.mine = "kept"

    assert (call.root, call.pass_number, call.step, call.mode) == ("Net", 3, 5, "train")
    assert (call.index, call.recomputing, call.parent, call.phase) == (0, False, None, None)
    assert call.mine == "kept"


def test_a_call_knows_nothing_beyond_its_phase():
    """What no event has filled in is None."""
    call = Call()

    known = (call.args, call.kwargs, call.out, call.grad_input, call.grad_output)
    assert known == (None,) * 5
