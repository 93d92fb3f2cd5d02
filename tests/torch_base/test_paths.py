"""Roots of modules, and the names of modules in them."""

import copy
import threading
from typing import NamedTuple
from weakref import ref

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from hookline import ModuleHook, add_hook
from hookline.torch_base.paths import MAX_PATHS, Roots, paths_in, roots


class Row(NamedTuple):
    """What a call said of its place."""

    root: str
    path: str
    paths: tuple
    type: str


class Places(ModuleHook):
    """Keeps the place of each call, in the order in which they begin."""

    def __init__(self):
        self.rows = []

    def forward_preprocess(self, call):
        self.rows.append(Row(call.root, call.path, call.paths, call.type))

    def take(self):
        """`(root, path)` of the calls since the last time."""
        taken, self.rows = [(row.root, row.path) for row in self.rows], []
        return taken


def make(name, children=(), forward=None):
    """A model of a class of its own, so that no other root shares its name."""
    cls = type(name, (nn.Module,), {"forward": forward or in_a_row})
    model = cls()
    for child_name, child in dict(children).items():
        model.add_module(child_name, child)
    return model


def in_a_row(self, x):
    for child in self.children():
        x = child(x)
    return x


def shared_model():
    block = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    return make(
        "Shared", {"b": block, "c": block, "d": nn.ModuleList([block, nn.Sequential(block)])}
    )


def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=9, intermediate_size=8, **sizes))


def twice_shared(levels):
    """Modules that hold the next one under two names, so that paths double at each level."""
    model = nn.Linear(2, 2)
    for _ in range(levels):
        model = make("Level", {"a": model, "b": model}, lambda self, x: self.b(x))
    return model


def transformer():
    return nn.Transformer(8, 2, 1, 1, 8, batch_first=True)


@pytest.mark.parametrize("build", [nn.Identity, transformer, bert, shared_model])
def test_paths_are_those_of_named_modules(build):
    """Every module has just the names that `named_modules` gives it, duplicates included."""
    model = build()
    expected = {}
    for path, module in model.named_modules(remove_duplicate=False):
        expected.setdefault(ref(module), set()).add(path)

    found = paths_in(model)

    assert {key: set(paths) for key, paths in found.items()} == expected
    assert list(found) == [ref(module) for module in model.modules()]


@pytest.mark.parametrize("levels", [3, 4, 5, 19])
def test_r8_paths_of_shared_modules_are_bounded(levels):
    """Nested sharing makes the number of names exponential; a bounded number of them is kept."""
    model = twice_shared(levels)

    paths = paths_in(model)[ref([*model.modules()][-1])]

    assert len(paths) == len(set(paths)) == min(2**levels, MAX_PATHS)
    assert all(model.get_submodule(path) is [*model.modules()][-1] for path in paths)


def test_r8_a_call_of_a_deeply_shared_module_has_true_names():
    """Also where not all names are kept, each one listed leads to the module."""
    model = twice_shared(19)
    with Places() as places:
        model(torch.ones(1, 2))

    last = places.rows[-1]
    assert last.type == "Linear"
    assert len(last.paths) == MAX_PATHS
    assert last.path in last.paths
    assert all(isinstance(model.get_submodule(path), nn.Linear) for path in last.paths)


def test_r8_the_path_is_that_through_the_modules_that_run():
    """Of a shared module's names, that below the running parents is taken, at any depth."""
    block = nn.Sequential(nn.Linear(2, 2))
    left, right = nn.Sequential(block), nn.Sequential(nn.Tanh(), block)
    model = make("Sides", {"first": block, "left": left, "right": right})
    with Places() as places:
        model(torch.ones(1, 2))

    assert [row.path for row in places.rows] == [
        *["", "first", "first.0"],
        *["left", "left.0", "left.0.0"],
        *["right", "right.0", "right.1", "right.1.0"],
    ]
    assert places.rows[2].paths == ("first.0", "left.0.0", "right.1.0")


def test_r8_unwatched_parents_decide_too():
    """Parents need not be watched for their children to know by which name they run."""
    leaf = nn.Linear(2, 2)
    model = make("Sides", {"left": nn.Sequential(leaf), "right": nn.Sequential(leaf)})
    places = Places()
    with add_hook(leaf, places):
        model(torch.ones(1, 2))

    assert [row.path for row in places.rows] == ["left.0", "right.0"]


def test_r8_the_type_is_the_class_name():
    """A call says of which class its module is."""
    with Places() as places:
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))(torch.ones(1, 2))

    assert [row.type for row in places.rows] == ["Sequential", "Linear", "LayerNorm"]


def test_r8_roots_of_one_class_are_numbered():
    """A second root of a class gets `#2`; the number of one that is gone is given again."""
    first, second = make("Twin"), make("Twin")
    x = torch.ones(1, 2)
    with Places() as places:
        first(x)
        second(x)
        first(x)
        assert [root for root, _ in places.take()] == ["Twin", "Twin#2", "Twin"]

        del first
        make("Twin")(x)
        second(x)
        assert [root for root, _ in places.take()] == ["Twin", "Twin#2"]


def test_r8_children_built_while_hooks_are_on_know_their_root():
    """A child that is called alone is in the model that it was put into, called or not."""
    with Places() as places:
        model = make("Built", {"enc": nn.Sequential(nn.Linear(2, 2)), "dec": nn.Linear(2, 1)})
        model.dec(model.enc(torch.ones(1, 2)))

    assert places.take() == [("Built", "enc"), ("Built", "enc.0"), ("Built", "dec")]


def test_r8_without_more_knowledge_the_outermost_call_is_the_root():
    """Of a model built before hooks were on, children are their own roots until it is called."""
    model = make("Earlier", {"enc": make("Enc", {"l": nn.Linear(2, 2)})})
    x = torch.ones(1, 2)
    with Places() as places:
        model.enc(x)
        assert places.take() == [("Enc", ""), ("Enc", "l")]

        model(x)
        model.enc(x)
        assert places.take() == [
            *[("Earlier", ""), ("Earlier", "enc"), ("Earlier", "enc.l")],
            *[("Earlier", "enc"), ("Earlier", "enc.l")],
        ]


def test_r8_a_declared_model_is_the_root_of_all_in_it():
    """Whoever knows the model can say so before anything runs."""
    model = make("Declared", {"enc": nn.Linear(2, 2)})
    assert roots.declare(model).name == "Declared"
    assert roots.declare(model) is roots.root_of(model.enc)
    with Places() as places:
        model.enc(torch.ones(1, 2))

    assert places.take() == [("Declared", "enc")]


def test_r8_copied_layers_are_found():
    """Layers that a model deep-copied without torch telling us have their paths too."""
    with Places() as places:
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        model = make("Copied", {"encoder": nn.TransformerEncoder(layer, 2)})
        model(torch.randn(1, 3, 4))

    names = [path for path, _ in model.named_modules() if not path.endswith("out_proj")]
    called = {path for _, path in places.take()}
    assert called == set(names) - {"encoder.layers"}


def test_r8_modules_created_in_forward():
    """One that is put into the model is in it; one that is thrown away is a root for a call."""

    def forward(self, x):
        self.made = nn.Linear(2, 2)
        return self.made(make("Passing")(x))

    model = make("Creating", forward=forward)
    with Places() as places:
        model(torch.ones(1, 2))
        first = places.take()
        model(torch.ones(1, 2))

    assert first == places.take() == [("Creating", ""), ("Passing", ""), ("Creating", "made")]


def test_r8_modules_swapped_between_calls():
    """A module that takes another's place has its path; the one put out is a root of its own."""
    model = make("Swapped", {"l": make("Old"), "act": nn.Tanh()})
    x = torch.ones(1, 2)
    with Places() as places:
        model(x)
        old, model.l = model.l, make("New", {"inner": nn.Linear(2, 2)})
        places.take()

        model(x)
        assert places.take() == [
            *[("Swapped", ""), ("Swapped", "l"), ("Swapped", "l.inner")],
            ("Swapped", "act"),
        ]

        old(x)
        assert places.take() == [("Old", "")]

        model.act, model.l = model.l, model.act
        model(x)
        assert places.take()[1:] == [
            *[("Swapped", "l"), ("Swapped", "act"), ("Swapped", "act.inner")],
        ]


@pytest.mark.parametrize("how", ["append", "insert", "extend", "private"])
def test_r8_modules_added_between_calls(how):
    """New modules are found, also when they were put in behind torch's back."""
    model = nn.Sequential(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    with Places() as places:
        model(x)
        places.take()
        match how:
            case "append":
                model.append(nn.Tanh())
            case "insert":
                model.insert(0, nn.Tanh())
            case "extend":
                model.extend([nn.Tanh(), nn.Sequential(nn.ReLU())])
            case _:
                model._modules["late"] = nn.Tanh()
        model(x)

    called = [path for _, path in places.take()]
    assert called == [path for path, _ in model.named_modules()]


def test_r8_a_removed_module_is_a_root_of_its_own():
    """A module taken out of a model that has run since can be called alone."""
    model = nn.Sequential(nn.Linear(2, 2), make("Out"))
    x = torch.ones(1, 2)
    with Places() as places:
        model(x)
        out, model[1] = model[1], nn.Identity()
        model(x)
        places.take()
        out(x)

    assert places.take() == [("Out", "")]


def test_r8_a_part_outlives_its_model():
    """The last module left of a model becomes a root."""
    model = make("Short", {"part": make("Part")})
    x = torch.ones(1, 2)
    with Places() as places:
        model(x)
        part = model.part
        del model
        places.take()
        part(x)

    assert places.take() == [("Part", "")]


class Unsized(nn.Sequential):
    """Refuses to tell its length, as a compiled module does."""

    def __len__(self):
        raise TypeError

    def forward(self, x):
        return x


@pytest.mark.parametrize("build", [Unsized, nn.Sequential], ids=["no length", "empty"])
def test_r8_modules_with_a_length(build):
    """An empty container, which is false, or one without a length, is a module like others."""
    with Places() as places:
        model = make("Sized", {"part": build()})
        make("Another")(torch.ones(1))  # a new root, for which those that are gone are forgotten
        places.take()
        model.part(torch.ones(1))

    assert places.take() == [("Sized", "part")]


def test_a_model_that_contains_itself():
    """A cycle of modules has names, and the search for the topmost one ends."""
    with Places() as places:
        inner = make("Inner", forward=lambda self, x: x)
        outer = make("Outer", {"inner": inner})
        inner.up = outer
        inner(torch.ones(1))
        outer(torch.ones(1))

    assert len({row.root for row in places.rows}) == 1
    assert {row.type for row in places.rows} == {"Inner", "Outer"}


def test_r4_a_copy_is_another_root():
    """A deep copy is another model, whose modules do not go by the original's name."""
    model = make("Original", {"l": nn.Linear(2, 2)})
    x = torch.ones(1, 2)
    with Places() as places:
        model(x)
        copy.deepcopy(model)(x)

    assert places.take() == [
        *[("Original", ""), ("Original", "l")],
        *[("Original#2", ""), ("Original#2", "l")],
    ]


def test_r5_roots_keep_no_module_alive():
    """What is known of roots and parents holds modules weakly only."""
    with Places():
        model = make("Fleeting", {"l": nn.Linear(2, 2)})
        model(torch.ones(1, 2))
        gone = [ref(module) for module in model.modules()]
        del model

    assert [key() for key in gone] == [None, None]


@pytest.mark.usefixtures("frequent_switches")
def test_r11_one_root_for_all_threads():
    """Threads that meet a model at the same time agree on its root."""
    for _ in range(50):
        known = Roots()
        model = make("Met", {f"l{i}": nn.Identity() for i in range(20)})
        barrier = threading.Barrier(4)
        found = []

        def meet(known=known, model=model, barrier=barrier, found=found):
            barrier.wait()
            found.append(known.root_of(model))

        run_all([threading.Thread(target=meet) for _ in range(4)])

        assert [root.name for root in found] == ["Met"] * 4
        assert len(set(map(id, found))) == 1


@pytest.mark.usefixtures("frequent_switches")
def test_r11_models_may_be_built_while_others_are_called():
    """What is known of roots may change in one thread while another one looks for its root."""
    known, errors = Roots(), []
    kept = [make("Kept") for _ in range(50)]

    def build():
        for number in range(300):
            known.learn(kept[number % 50], "child", nn.Identity())

    def call():
        try:
            for number in range(300):
                known.declare(make("Other" if number % 2 else "Another"))
        except RuntimeError as error:  # a dict that changed while it was walked through
            errors.append(error)

    run_all([threading.Thread(target=target) for target in (build, call, call)])

    assert not errors


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
