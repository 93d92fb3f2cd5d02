"""Every kind of container: opened, and closed again with other values."""

import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils import _pytree
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from hookline.errors import HookTypeError
from hookline.torch_base.tree import Tree, describe, leaves, map_tensors, tensors
from tests.torch_base.kinds import Attributed, Bag, Frozen, Pair, Plain, Row

Loose = namedtuple("Loose", "left right", defaults=(None,))  # noqa: PYI024 - the other way to make one


class Strict(NamedTuple("Strict", [("number", object)])):
    """A named tuple whose constructor takes something else than its fields."""

    __slots__ = ()

    def __new__(cls, *, number):
        return super().__new__(cls, number)


class Stack(list):
    def __init__(self, name, items):
        super().__init__(items)
        self.name = name

    def extend(self, items):
        raise AssertionError

    def __iter__(self):
        raise AssertionError


class Slotted(list):
    __slots__ = ("__hidden", "name")

    def __init__(self, name, items):
        super().__init__(items)
        self.name = name
        self.__hidden = name

    def hidden(self):
        return self.__hidden


class Named(dict):
    def __init__(self, name, **items):
        super().__init__(items)
        self.name = name

    def __setitem__(self, key, value):
        raise AssertionError

    def values(self):
        raise AssertionError


class Ordered(OrderedDict):
    def __init__(self, name, items):
        super().__init__(items)
        self.name = name


class Defaults(defaultdict):
    pass


class AttrDict(dict):
    """Items and attributes are one."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class TwinDict(dict):
    """Each item is an attribute as well (as EasyDict has it)."""

    def __init__(self, **items):
        super().__init__(items)
        vars(self).update(items)


@dataclass(slots=True)
class Slots:
    logits: object
    extra: object = None


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    logits: object
    extra: object = None


@dataclass
class Late:
    """A field that the constructor does not take, and one that may never be set."""

    logits: object
    extra: object = field(init=False)
    never: object = field(init=False)

    def __post_init__(self):
        self.extra = "set later"


@dataclass(init=False)
class OwnInit:
    logits: object
    extra: object

    def __init__(self, pair):
        self.logits, self.extra = pair


@dataclass
class Unregistered(OrderedDict):
    """What a ModelOutput is where nothing is registered for it: items that are fields too."""

    logits: object = None
    extra: object = None

    def __post_init__(self):
        for name in ("logits", "extra"):
            if getattr(self, name) is not None:
                super().__setitem__(name, getattr(self, name))

    def __setitem__(self, key, value):
        raise AssertionError


T1, T2 = torch.ones(2, 3), torch.zeros(4, dtype=torch.int64)

CONTAINERS = {
    "tuple": (T1, T2, 5),
    "list": [T1, T2, 5],
    "dict": {"a": T1, "b": T2, "c": 5},
    "OrderedDict": OrderedDict(a=T1, b=T2, c=5),
    "defaultdict": defaultdict(list, a=T1, b=T2, c=5),
    "deque": deque([T1, T2, 5], maxlen=7),
    "Counter": Counter(a=T1, b=T2),
    "NamedTuple": Pair(T1, T2),
    "namedtuple": Loose((T1, T2)),
    "named tuple, own constructor": Strict(number=(T1, T2)),
    "return type": torch.return_types.max((T1, T2)),
    "tuple subclass": Attributed("label", T1, T2, 5),
    "list subclass": Stack("name", [T1, T2, 5]),
    "list subclass with slots": Slotted("name", [T1, T2, 5]),
    "dict subclass": Named("name", a=T1, b=T2, c=5),
    "OrderedDict subclass": Ordered("name", [("a", T1), ("b", T2), ("c", 5)]),
    "defaultdict subclass": Defaults(list, a=T1, b=T2, c=5),
    "AttrDict": AttrDict(a=T1, b=T2, c=5),
    "TwinDict": TwinDict(a=T1, b=T2, c=5),
    "UserDict": Bag("name", {"a": T1, "b": T2, "c": 5}),
    "UserList": Row([T1, T2, 5]),
    "BatchEncoding": BatchEncoding({"a": T1, "b": T2, "c": 5}),
    "dataclass": Plain(T1, (T2, 5)),
    "frozen dataclass": Frozen(T1, (T2, 5)),
    "dataclass with slots": Slots(T1, (T2, 5)),
    "frozen dataclass with slots": FrozenSlots(T1, (T2, 5)),
    "dataclass, late fields": Late((T1, T2)),
    "dataclass, own constructor": OwnInit((T1, (T2, 5))),
    "ModelOutput": BaseModelOutput(last_hidden_state=T1, hidden_states=(T2,)),
    "ModelOutput, unregistered": Unregistered(T1, (T2,)),
    "PackedSequence": PackedSequence(T1, T2),
}

every_container = pytest.mark.parametrize("value", CONTAINERS.values(), ids=CONTAINERS.keys())


def same_objects(left, right):
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


@every_container
def test_both_tensors_of_each_container_are_found(value):
    """Every kind of container that hookline knows is looked into."""
    assert same_objects(tensors(value), [T1, T2])
    assert same_objects([tensor for _, tensor in leaves(value)], [T1, T2])


@every_container
def test_each_container_comes_back_as_itself(value):
    """The same tensors give the same container back."""
    tree = Tree.of([value])
    assert tree.rebuild([T1, T2]) is tree.value


@every_container
def test_each_container_takes_other_tensors(value):
    """Other tensors give a new container of the same type; the old one keeps its own."""
    new = Tree.of(value).rebuild([T1, one := T2 + 1])
    assert new is not value
    assert type(new) is type(value)
    assert same_objects(tensors(new), [T1, one])
    assert same_objects(tensors(value), [T1, T2])
    assert [path for path, _ in leaves(new)] == [path for path, _ in leaves(value)]


@every_container
def test_each_container_can_be_mirrored(value):
    """A structure of gradients is made for every kind of container, with None for the rest."""
    mirrored = Tree.of(value).mirror([T1, None])
    assert type(mirrored) is type(value)
    assert same_objects(tensors(mirrored), [T1])
    assert "5" not in describe(mirrored)


@pytest.mark.parametrize(
    ("kind", "paths"),
    {
        "Counter": ["['a']", "['b']"],
        "named tuple, own constructor": [".number[0]", ".number[1]"],
        "list subclass": ["[0]", "[1]"],
        "dict subclass": ["['a']", "['b']"],
        "UserDict": ["['a']", "['b']"],
        "UserList": ["[0]", "[1]"],
        "dataclass, late fields": [".logits[0]", ".logits[1]"],
        "frozen dataclass with slots": [".logits", ".extra[0]"],
        "ModelOutput, unregistered": [".logits", ".extra[0]"],
        "PackedSequence": [".data", ".batch_sizes"],
    }.items(),
)
def test_paths_in_containers(kind, paths):
    """Paths say how users read the tensors, whatever holds them."""
    assert [path for path, _ in leaves(CONTAINERS[kind], name="")] == paths


def test_keys_of_a_model_output_that_cannot_follow_a_dot():
    """A key that is no name is read with brackets."""
    value = Unregistered(T1)
    OrderedDict.__setitem__(value, "a b", T2)
    assert [path for path, _ in leaves(value)] == ["output.logits", "output['a b']"]


@pytest.mark.parametrize("kind", [Plain, Frozen, Slots, FrozenSlots, Pair, Loose])
def test_unchanged_inner_containers_are_kept(kind):
    """Only the containers on the way to a replaced tensor are made anew."""
    kept, changed = [T1], [T2]
    new = Tree.of(kind(kept, changed)).rebuild([T1, None])
    first, second = new if isinstance(new, tuple) else (new.logits, new.extra)
    assert first is kept
    assert second == [None]
    assert changed[0] is T2


@pytest.mark.parametrize(
    "value",
    [
        CONTAINERS["list subclass"],
        CONTAINERS["list subclass with slots"],
        CONTAINERS["dict subclass"],
        CONTAINERS["OrderedDict subclass"],
        CONTAINERS["UserDict"],
    ],
)
def test_attributes_of_containers_are_kept(value):
    """What a container subclass holds beside its items goes with it, in `__dict__` or slots."""
    new = map_tensors(torch.clone, value)
    assert new.name == "name"
    assert not isinstance(new, Slotted) or new.hidden() == "name"


def test_attributes_of_a_tuple_subclass_are_kept():
    """A tuple subclass with its own constructor keeps its attributes."""
    assert map_tensors(torch.clone, CONTAINERS["tuple subclass"]).label == "label"


def test_attributes_of_a_plain_ordered_dict_are_kept():
    """A state dict is an OrderedDict with an attribute that loading needs."""
    state = nn.Linear(2, 2).state_dict()
    assert map_tensors(torch.clone, state)._metadata == state._metadata


def test_what_a_container_is_made_with_is_kept():
    """Default factory and maximal length are those of the old container."""
    assert map_tensors(torch.clone, CONTAINERS["defaultdict"]).default_factory is list
    assert map_tensors(torch.clone, CONTAINERS["defaultdict subclass"]).default_factory is list
    assert map_tensors(torch.clone, CONTAINERS["deque"]).maxlen == 7


def test_a_changed_ordered_dict_keeps_its_order():
    """The order of an OrderedDict subclass is its own, also after a move."""
    value = Ordered("name", [("a", T1), ("b", T2)])
    value.move_to_end("a")
    assert [path for path, _ in leaves(value)] == ["output['b']", "output['a']"]
    assert list(map_tensors(torch.clone, value)) == ["b", "a"]


@pytest.mark.parametrize("kind", [AttrDict, TwinDict])
def test_attributes_that_are_items_follow_them(kind):
    """In dicts whose items are attributes too, both show the new tensor, and only the new dict."""
    value = kind(a=T1, b=5)
    new = map_tensors(torch.clone, value)
    assert new.a is new["a"] is not T1
    assert value.a is value["a"] is T1
    assert new.b == 5


@pytest.mark.parametrize("kind", [BaseModelOutput, Unregistered])
def test_a_model_output_shows_new_values_in_every_way(kind):
    """Field, key and tuple position of a ModelOutput agree after a change, and extras stay."""
    name = "last_hidden_state" if kind is BaseModelOutput else "logits"
    value = kind(T1)
    vars(value)["remark"] = "kept"
    new = map_tensors(torch.clone, value)
    assert getattr(new, name) is new[name] is next(iter(new.values()))
    assert new[name] is not T1
    assert getattr(value, name) is T1
    assert new.remark == "kept"


def test_a_model_output_keeps_fields_that_become_none():
    """Positions and keys of a mirrored ModelOutput stay those of the output."""
    value = BaseModelOutput(last_hidden_state=T1, hidden_states=(T2,))
    mirrored = Tree.of(value).mirror([None, T2])
    assert mirrored.last_hidden_state is None
    assert list(mirrored) == ["last_hidden_state", "hidden_states"]
    assert mirrored.hidden_states == (T2,)


def test_a_batch_encoding_is_read_by_key_and_attribute():
    """A BatchEncoding is a UserDict; a new one works like the old."""
    new = map_tensors(torch.clone, BatchEncoding({"input_ids": T2}))
    assert new.input_ids is new["input_ids"]
    assert torch.equal(new.input_ids, T2)


def test_late_fields_of_a_dataclass_are_kept_and_unset_ones_stay_unset():
    """A dataclass is copied field by field: not made by its constructor, nor completed."""
    value = Late(T1)
    value.remark = "kept"
    new = map_tensors(torch.clone, value)
    assert new.extra == "set later"
    assert new.remark == "kept"
    assert not hasattr(new, "never")


def test_a_cached_property_is_computed_again():
    """What a dataclass computed from its old tensors does not stay with the new ones."""

    @dataclass
    class Scores:
        logits: Tensor

        @cached_property
        def total(self):
            return float(self.logits.sum())

    value = Scores(T1)
    assert value.total == 6
    assert map_tensors(lambda tensor: tensor * 2, value).total == 12
    assert vars(value)["total"] == 6


def test_a_packed_sequence_works_after_a_change():
    """Recurrent layers accept a PackedSequence with other data."""
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    tree = Tree.of(packed)
    new = tree.rebuild([packed.data * 2, *tree.tensors[1:]])
    _, hidden = nn.RNN(2, 5)(new)
    assert hidden.shape == (1, 2, 5)
    assert leaves(packed)[0][0] == "output.data"


# What others registered, and what we do not register.


class Registered:
    """A class of the user's, registered in a test, and taken out again."""

    def __init__(self, inside):
        if inside is None:
            msg = "nothing inside"
            raise ValueError(msg)
        self.inside = inside


@pytest.fixture
def registry():
    """`register_pytree_node`, undone after the test."""
    before = set(_pytree.SUPPORTED_NODES)
    yield _pytree.register_pytree_node
    for cls in set(_pytree.SUPPORTED_NODES) - before:
        _pytree._deregister_pytree_node(cls)


def opened(value):
    return [value.inside], None


def opened_by_name(value):
    return [(_pytree.GetAttrKey("inside"), value.inside)], None


def closed(items, _):
    return Registered(*items)


@pytest.mark.parametrize("named", [False, True])
def test_registered_classes_are_looked_into(registry, named):
    """Any class that a library has registered is a container, also after it was seen before."""
    value = Registered(T1)
    assert tensors([value]) == []
    registry(Registered, opened, closed, flatten_with_keys_fn=opened_by_name if named else None)
    assert [path for path, _ in leaves(value)] == ["output.inside" if named else "output[0]"]
    assert Tree.of(value).rebuild([T1]) is value
    assert Tree.of(value).rebuild([T2]).inside is T2


@pytest.mark.parametrize(
    "kind", ["tuple subclass", "list subclass", "dict subclass", "UserDict", "dataclass"]
)
def test_a_registration_goes_before_our_rule(registry, kind):
    """Who registers a subclass of a container, or a dataclass, says what is in it."""
    value = CONTAINERS[kind]
    registry(type(value), lambda _: ([T2], "context"), lambda new, context: (context, *new))
    assert same_objects(tensors(value), [T2])
    assert Tree.of(value).rebuild([T1]) == ("context", T1)


def test_a_class_that_refuses_new_values_is_named(registry):
    """The error says what could not be changed, why, and what to do."""
    registry(Registered, opened, closed)
    with pytest.raises(
        HookTypeError, match=r"into Registered\(float32\[2, 3\]\): ValueError: nothing"
    ):
        Tree.of((Registered(T1),)).rebuild([None])


def test_nothing_of_ours_is_registered():
    """Using every function on every container leaves pytree's registry as it was."""
    before = dict(_pytree.SUPPORTED_NODES)
    for value in CONTAINERS.values():
        map_tensors(torch.clone, value)
        leaves(value)
        describe(value)
    assert before == _pytree.SUPPORTED_NODES


def test_importing_registers_nothing():
    """Pytree's registry is the same before and after the import."""
    code = (
        "import torch; from torch.utils._pytree import SUPPORTED_NODES as nodes;"
        "before = set(nodes);"
        "import hookline.torch_base.tree; assert set(nodes) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
