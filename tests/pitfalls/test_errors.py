"""What torch's hooks do with errors, returned values and their order.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import pytest
import torch
from torch import nn

from hookline import (
    ModuleHook,
    add_hook,
    register_forward_hook,
    register_forward_pre_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    register_module_forward_hook,
    with_hooks,
)
from hookline.core.thread import local

X = torch.ones(1, 2)


class Raises(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


class Bracket(ModuleHook):
    """One object with both ends; tells which end came for which begin."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def forward_preprocess(self, call):
        self.log.append(f"{self.name} begin")

    def forward_postprocess(self, call):
        self.log.append(f"{self.name} end")

    def aborted(self, call, exception):
        self.log.append(f"{self.name} aborted by {type(exception).__name__}")


# --------------------------------------------------------------------------- accidental returns


@pytest.mark.parametrize("value", [False, True, 0, 1.5, 2j, "text", b"bytes"])
def test_p18_a_value_that_cannot_be_an_output_is_an_error(value):
    """A hook that meant to look and returns something by accident is named, with the module."""
    module = nn.Linear(2, 2)

    def looks(module, args, output):
        return value

    with (
        register_forward_hook(module, looks),
        pytest.raises(TypeError, match="a hook that only observes must return None") as caught,
    ):
        module(X)

    assert "looks of Linear, call 0" in str(caught.value)
    assert f"gave {value!r} in place of float32[1, 2]" in str(caught.value)


@pytest.mark.parametrize("store", [{}, {"x": 1}], ids=["empty", "there already"])
def test_p18_what_a_hook_object_returns_is_ignored(store):
    """Lambdas that end in `setdefault` or `pop` corrupt nothing."""
    module = nn.Linear(2, 2)
    expected = module(X)

    class Stores(ModuleHook):
        def forward_preprocess(self, call):
            return store.setdefault("x", call.args[0])

        def forward_postprocess(self, call):
            return store.pop("x", None)

    with Stores():
        assert torch.equal(module(X), expected)


def test_p18_an_output_can_be_replaced_by_none():
    """A hook object says what it replaces, None included."""
    module = nn.Linear(2, 2)

    class Empties(ModuleHook):
        def forward_postprocess(self, call):
            call.replace(None)

    with Empties():
        assert module(X) is None


def test_p18_none_leaves_the_output_unchanged():
    """In the manners where a returned value replaces, None does not."""
    module, hooks = with_hooks(nn.Linear(2, 2))
    expected = module(X)
    with (
        hooks.add_forward_hook(lambda x, out: None),
        register_forward_hook(module, lambda *_: None),
    ):
        assert torch.equal(module(X), expected)


# ---------------------------------------------------------------------------------- always called


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("where", ["local", "everywhere"])
def test_p25_a_hook_that_always_runs_is_called_in_the_same_way(where, error):
    """With its kwargs and None as output, for any exception, which comes out as it was."""
    module, seen = Raises(error), []

    def hook(module, args, kwargs, output):
        seen.append((args, kwargs, output))

    options = {"with_kwargs": True, "always_call": True}
    handle = (
        register_forward_hook(module, hook, **options)
        if where == "local"
        else register_module_forward_hook(hook, **options)
    )
    with handle, pytest.raises(type(error)) as caught:
        module(x=1)

    assert caught.value is error
    assert seen == [((), {"x": 1}, None)]


def test_p25_an_error_of_such_a_hook_is_a_detail_of_the_first():
    """No warning replaces it, and no second error hides the first."""
    module, error = Raises(ValueError("boom")), None

    def fails(module, args, output):
        msg = "in the hook"
        raise KeyError(msg)

    with (
        register_forward_hook(module, fails, always_call=True),
        pytest.raises(ValueError, match="boom") as caught,
    ):
        module(X)
    error = caught.value

    assert error.__notes__[0].startswith("hookline: raised in Raises, call 0")
    assert "KeyError('in the hook')" in error.__notes__[1]
    assert len(error.__notes__) == 2


# ------------------------------------------------------------------------------------ paired ends

BASE = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("kind", BASE)
def test_p26_each_begin_has_one_end_which_is_told_the_error(kind):
    """For every exception, and in the order of the begins."""
    log = []
    with pytest.raises(kind), Bracket("a", log), Bracket("b", log):
        Raises(kind())(1)

    name = kind.__name__
    assert log == ["a begin", "b begin", f"a aborted by {name}", f"b aborted by {name}"]


def test_p26_no_end_without_a_begin():
    """If a begin raises, the hooks in front of it are ended, and no other."""
    log = []

    class Fails(Bracket):
        def forward_preprocess(self, call):
            raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        Bracket("a", log),
        Fails("b", log),
        Bracket("c", log),
    ):
        nn.Identity()(1)
    assert log == ["a begin", "a aborted by ZeroDivisionError"]


def test_p26_an_end_that_raises():
    """Those that ended are not ended again; those that did not are told."""
    log = []

    class Fails(Bracket):
        def forward_postprocess(self, call):
            raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        Bracket("a", log),
        Fails("b", log),
        Bracket("c", log),
    ):
        nn.Identity()(1)
    assert log == ["a begin", "b begin", "c begin", "a end", "c aborted by ZeroDivisionError"]


def test_p54_brackets_stay_balanced_through_nested_failures():
    """Of nested modules, each that was begun is ended, innermost first, and nothing stays."""
    log = []

    class Nested(Bracket):
        def forward_preprocess(self, call):
            self.log.append(f"> {call.path}")

        def forward_postprocess(self, call):
            self.log.append(f"< {call.path}")

        def aborted(self, call, exception):
            self.log.append(f"x {call.path}")

    net = nn.Sequential(nn.Identity(), nn.Sequential(Raises(ValueError())))
    with Nested("nested", log):
        for _ in range(3):
            with pytest.raises(ValueError):  # noqa: PT011 - any
                net(X)
            assert local.thread.stack == []

    assert log == ["> ", "> 0", "< 0", "> 1", "> 1.0", "x 1.0", "x 1", "x "] * 3


def test_p54_a_model_that_goes_on_after_a_failure():
    """A module that catches the error of another has its own end as ever."""
    log = []

    class Recovers(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = Raises(ValueError())

        def forward(self, x):
            try:
                return self.fails(x)
            except ValueError:
                return x

    with Bracket("b", log):
        Recovers()(X)
    assert log == ["b begin", "b begin", "b aborted by ValueError", "b end"]


# ----------------------------------------------------------------------------------------- notes


def places():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    return net, net[1][1]


@pytest.mark.parametrize(
    ("register", "phase"),
    [
        (register_forward_pre_hook, "forward_pre"),
        (register_forward_hook, "forward"),
        (register_full_backward_pre_hook, "backward_pre"),
        (register_full_backward_hook, "backward"),
    ],
)
def test_p27_an_error_in_a_hook_says_where(register, phase):
    """The note names the hook, the phase, the module's path and class, and the call."""
    net, layer = places()

    def divides(*_):
        return 1 / 0

    with register(layer, divides), pytest.raises(ZeroDivisionError) as caught:
        net(torch.ones(1, 2, requires_grad=True)).sum().backward()

    (note,) = caught.value.__notes__
    assert note.startswith(f"hookline: raised by {phase} hook ")
    assert note.endswith(".divides of 1.1 (Linear), call 0")


def test_p27_an_error_of_the_model_says_where():
    """With hooks on, an error of a layer tells the layer and the shapes of its inputs."""
    net, _ = places()
    with Bracket("b", []), pytest.raises(RuntimeError) as caught:
        net(torch.ones(5, 3))

    assert caught.value.__notes__ == [
        "hookline: raised in 0 (Linear), call 0, inputs (float32[5, 3],)"
    ]


def test_p27_an_error_in_a_value_hook_says_where():
    """The hooks of a wrapped layer too, backward included."""
    layer, hooks = with_hooks(nn.Linear(2, 2))
    net = nn.Sequential(layer)

    def fails(gradient):
        raise KeyError(gradient.shape)

    hooks.add_backward_hook(fails)
    with pytest.raises(KeyError) as caught:
        net(X).sum().backward()
    hooks.registry.clear()

    (note,) = caught.value.__notes__
    assert "raised by backward_pre hook" in note
    assert ".fails of" in note


# ----------------------------------------------------------------------------------------- order


def test_p60_plain_hooks_run_in_the_order_of_registration():
    """Before and after alike, as in torch; the first is the first in all phases."""
    module, log = nn.Linear(2, 2), []
    handles = []
    for name in "AB":
        for register, phase in [
            (register_forward_pre_hook, "pre"),
            (register_forward_hook, "post"),
            (register_full_backward_pre_hook, "begin"),
            (register_full_backward_hook, "end"),
        ]:
            handles.append(register(module, lambda *_, text=name + phase: log.append(text)))
    module(X).sum().backward()
    for handle in handles:
        handle.remove()

    assert log == ["Apre", "Bpre", "Apost", "Bpost", "Abegin", "Bbegin", "Aend", "Bend"]


def test_p60_bracket_hooks_pair_their_ends_themselves():
    """Each end belongs to its begin by the call; calls nest, whatever the hooks' order."""

    class Counts(ModuleHook):
        def __init__(self, name):
            self.name, self.open, self.depths = name, [], []

        def forward_preprocess(self, call):
            self.open.append(call)
            self.depths.append(len(self.open))

        def forward_postprocess(self, call):
            assert self.open.pop() is call

    net, _ = places()
    a, b = Counts("a"), Counts("b")
    with a, add_hook(net, Counts("local")), b:
        net(X)
    assert a.depths == b.depths == [1, 2, 2, 3, 3]
    assert a.open == b.open == []
