"""Tensors in structures: found, named, replaced."""

from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hookline.errors import HookValueError
from hookline.torch_base.tree import Tree, describe, leaves, map_tensors, put_back, tensors
from tests.torch_base.kinds import Attributed, Bag, Frozen, Pair, Plain

T1, T2 = torch.ones(2, 3), torch.zeros(4, dtype=torch.int64)


@dataclass(init=False)
class OwnInit:
    logits: object
    extra: object

    def __init__(self, pair):
        self.logits, self.extra = pair


class Box:
    """A class that nobody knows."""

    def __init__(self, inside):
        self.inside = inside


# A busy machine is no reason to fail.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

tensor_leaves = st.builds(lambda number: torch.tensor(float(number)), st.integers(-9, 9))
other_leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just(torch.Size([2])))


def one_level_up(inside):
    some = st.lists(inside, max_size=3)
    keyed = st.dictionaries(st.text(max_size=3) | st.integers(), inside, max_size=3)
    return st.one_of(
        some,
        some.map(tuple),
        keyed,
        keyed.map(OrderedDict),
        some.map(lambda items: Attributed("label", *items)),
        keyed.map(lambda items: Bag("name", items)),
        st.builds(Pair, inside, inside),
        st.builds(Frozen, inside, inside),
        st.builds(OwnInit, st.tuples(inside, inside)),
    )


structures = st.recursive(tensor_leaves | other_leaves, one_level_up, max_leaves=12)


def parts(value):
    """What is in a container, as a plain list: the naive way."""
    if isinstance(value, (dict, UserDict)):
        return list(value.values())
    if isinstance(value, (Frozen, OwnInit)):
        return [value.logits, value.extra]
    sized = isinstance(value, torch.Size)  # a size is a value, not a container
    return list(value) if isinstance(value, (list, tuple)) and not sized else []


def naive_tensors(value):
    """The tensors of a structure, by plain recursion."""
    if isinstance(value, Tensor):
        return [value]
    return [found for part in parts(value) for found in naive_tensors(part)]


def other_parts(value):
    """What is neither a tensor nor a container, by plain recursion."""
    if isinstance(value, Tensor):
        return []
    if isinstance(value, (dict, UserDict, list, tuple, Frozen, OwnInit)) and not isinstance(
        value, torch.Size
    ):
        return [found for part in parts(value) for found in other_parts(part)]
    return [value]


def same_objects(left, right):
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def skeleton(value):
    """The types of a structure and what is no tensor in it."""
    if isinstance(value, Tensor):
        return Tensor
    keys = list(value) if isinstance(value, (dict, UserDict)) else None
    inside = [skeleton(part) for part in parts(value)]
    return (type(value), keys, inside) if inside else value if keys is None else (type(value), keys)


@patient
@given(structures)
def test_the_tensors_are_those_of_plain_recursion(value):
    """`tensors`, `leaves` and `Tree` find each tensor, in the order of plain recursion."""
    expected = naive_tensors(value)
    assert same_objects(tensors(value), expected)
    assert same_objects(Tree.of(value).tensors, expected)
    assert same_objects([tensor for _, tensor in leaves(value)], expected)


@patient
@given(structures)
def test_rebuilding_with_the_same_tensors_gives_the_same_object(value):
    """Where no tensor is replaced, the value itself comes back."""
    tree = Tree.of(value)
    assert tree.rebuild(list(tree.tensors)) is value


@patient
@given(structures)
def test_rebuilding_replaces_the_tensors_and_nothing_else(value):
    """Doubled tensors are found where the tensors were; types, keys and the rest stay."""
    before = tensors(value)
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert [float(new) for new in tensors(doubled)] == [2 * float(old) for old in before]
    assert skeleton(doubled) == skeleton(value)
    assert same_objects(tensors(value), before)


@patient
@given(structures)
def test_a_mirror_has_the_structure_and_nothing_but_the_new_values(value):
    """`mirror` keeps containers, and puts None for whatever is no tensor."""
    tree = Tree.of(value)
    new = [tensor + 1 for tensor in tree.tensors]
    mirrored = tree.mirror(new)
    assert same_objects(tensors(mirrored), new)
    assert all(leaf is None for leaf in other_parts(mirrored))
    assert type(mirrored) is type(value) or not parts(value)


@patient
@given(structures)
def test_every_path_reads_its_tensor(value):
    """A path, evaluated as Python, gives the tensor that it names."""
    for path, tensor in leaves(value, name="value"):
        assert eval(path, {"value": value}) is tensor  # noqa: S307 - paths are Python expressions


@patient
@given(structures, st.integers(3, 200))
def test_a_description_is_bounded(value, limit):
    """`describe` gives a text no longer than asked for, of any structure."""
    assert 0 < len(describe(value, limit)) <= limit


@pytest.mark.parametrize(
    "value",
    [None, 5, "text", torch.Size([2, 3]), object(), {T1}, Box(T1), nn.Linear(2, 2), Tensor, Plain],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_leaves(value):
    """What is no known container is kept as it is, and not looked into."""
    tree = Tree.of((value, T1))
    assert same_objects(tree.tensors, [T1])
    assert tree.rebuild([None])[0] is value
    assert tree.mirror([T1]) == (None, T1)


def test_a_module_is_a_leaf_even_as_a_dataclass():
    """A module in an output is no structure of tensors, whatever else it is."""

    @dataclass(eq=False)
    class Layer(nn.Module):
        weight: object

        def __post_init__(self):
            super().__init__()

    assert tensors([Layer(T1)]) == []


def test_parameters_and_subclasses_of_tensor_are_tensors():
    """Whatever is an instance of Tensor is a leaf to work with."""

    class Own(Tensor):
        pass

    parameter, own = nn.Parameter(T1), T1.as_subclass(Own)
    for value in ((parameter, own), [own, parameter], {0: parameter, 1: own}):
        assert {id(tensor) for tensor in tensors(value)} == {id(parameter), id(own)}
    assert tensors(parameter)[0] is parameter
    assert tensors(own)[0] is own


def test_a_tensor_met_twice_is_two_leaves():
    """Each place in the structure can be given a value of its own."""
    tree = Tree.of((T1, [T1]))
    assert len(tree.tensors) == 2
    assert tree.rebuild([T1, None]) == (T1, [None])


def test_a_container_met_twice_is_looked_into_twice():
    """Only a container inside itself is a cycle."""
    shared = [T1]
    assert len(tensors((shared, shared))) == 2
    assert [path for path, _ in leaves((shared, shared))] == ["output[0][0]", "output[1][0]"]
    assert Tree.of((shared, shared)).rebuild([T1, None]) == ([T1], [None])


@pytest.mark.parametrize("kind", [list, dict, Plain])
def test_a_container_inside_itself_is_a_leaf(kind):
    """Cycles end where they close."""
    value = {list: lambda: [T1, None], dict: lambda: {0: T1}, Plain: lambda: Plain(T1)}[kind]()
    if kind is Plain:
        value.extra = (value,)
    else:
        value[1] = (value,)
    assert same_objects(tensors(value), [T1])
    assert len(leaves(value)) == 1
    new = Tree.of(value).rebuild([T2])
    assert (new.extra if kind is Plain else new[1])[0] is value
    assert len(describe(value)) <= 200


def test_a_list_changed_after_it_was_taken_apart():
    """A tree remembers the structure as it was, so that values cannot land in wrong places."""
    value = [T1, (T2,)]
    tree = Tree.of(value)
    value.insert(0, T2)
    assert tree.rebuild([5, 6]) == [5, (6,)]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (T1, ["output"]),
        ((T1, (T1, T2)), ["output[0]", "output[1][0]", "output[1][1]"]),
        (
            {"logits": T1, 3: T1, ("a", 1): T1},
            ["output['logits']", "output[3]", "output[('a', 1)]"],
        ),
        (torch.return_types.max((T1, T2)), ["output.values", "output.indices"]),
        (Pair(T1, [T2]), ["output.first", "output.second[0]"]),
        (Frozen(T1, {"a": T2}), ["output.logits", "output.extra['a']"]),
        (deque([T1]), ["output[0]"]),
        (Bag("name", {"a": T1}), ["output['a']"]),
        (Attributed("label", 0, T1), ["output[1]"]),
        (
            BaseModelOutput(last_hidden_state=T1, hidden_states=(T2, T2)),
            ["output.last_hidden_state", "output.hidden_states[0]", "output.hidden_states[1]"],
        ),
    ],
)
def test_paths_read_as_users_would_write_them(value, paths):
    """Positions and keys in brackets, fields after a dot."""
    assert [path for path, _ in leaves(value)] == paths


def test_a_path_starts_with_the_name_given():
    """Inputs and gradients are named by what they are."""
    assert leaves([T1], name="grad_input")[0][0] == "grad_input[0]"


def test_keys_without_a_text_get_a_path_all_the_same():
    """A key whose repr fails, or would print a tensor's data, is named by its type."""

    class Mute:
        def __repr__(self):
            raise RuntimeError

    assert [path for path, _ in leaves({Mute(): T1, T1: T2})] == [
        "output[<Mute>]",
        "output[<Tensor>]",
    ]


@pytest.mark.parametrize("new", [[], [T1], [T1, T1, T1]])
def test_a_wrong_number_of_values_is_refused(new):
    """There must be one value for each tensor, and the error counts both."""
    tree = Tree.of((T1, T2))
    for put in (tree.rebuild, tree.mirror):
        with pytest.raises(
            HookValueError, match=f"^{len(new)} values were given for the 2 tensors"
        ):
            put(new)


def test_values_put_into_containers_themselves_are_taken_out_again() -> None:
    """Containers that can be changed stay the same objects; others get back in their place."""
    fixed = (T2,)
    inner: list[Any] = [T1]
    value = {"inner": inner, "fixed": fixed}
    tree, made = Tree.of(value), []

    assert tree.put([5, 6], made) is value
    assert value["inner"] is inner
    assert (inner, value["fixed"]) == ([5], (6,))
    assert [id(c) for c in tree.changeable()] == [id(value), id(inner)]

    inner.append(7)
    put_back(tree.changeable(), {id(5): T1, **{id(new): old for new, old in made}})
    assert value["fixed"] is fixed
    assert inner[0] is T1
    assert inner[1] == 7
