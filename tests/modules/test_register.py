"""Torch's way to register module hooks: what they get and give, order, handles (P1 to P4, P6)."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import hookline
from hookline import Inputs
from hookline.errors import HooklineError, HookTypeError

FORMS = ("local", "global")


def register(form, kind, module, hook, **options):
    """Register a hook on one module, or on all modules."""
    if form == "local":
        return getattr(hookline, f"register_{kind}")(module, hook, **options)
    return getattr(hookline, f"register_module_{kind}")(hook, **options)


class Attend(nn.Module):
    """Takes several inputs, also by keyword."""

    def forward(self, query, key, scale=1.0, *, mask=None):
        out = query * key * scale
        return out if mask is None else out * mask


class Fails(nn.Module):
    def forward(self, x, *, error):
        raise error


# The documentation's examples.


@pytest.mark.parametrize("form", FORMS)
def test_p1_the_documented_hook_with_three_arguments_works_as_it_stands(form, linear, capsys):
    """Registered plainly, it prints the shape of the input."""

    def print_shape(module, input_args, input_kwargs):
        print(f"Input shape: {input_args[0].shape}")

    with register(form, "forward_pre_hook", linear, print_shape):
        linear(torch.ones(3, 10))

    assert capsys.readouterr().out == "Input shape: torch.Size([3, 10])\n"


@pytest.mark.parametrize("form", FORMS)
def test_p2_the_documented_hook_that_adds_noise_works_as_it_stands(form, linear, x):
    """The result is that of the layer on the noisy input, under the same seed."""

    def add_noise(module, input_args, input_kwargs):
        (x,) = input_args
        x_noisy = x + torch.randn_like(x) * 0.1
        return (x_noisy,)

    with register(form, "forward_pre_hook", linear, add_noise):
        torch.manual_seed(7)
        out = linear(x)

    torch.manual_seed(7)
    expected = linear(x + torch.randn_like(x) * 0.1)
    assert torch.equal(out, expected)
    assert not torch.equal(out, linear(x))


def test_p4_the_documented_logging_of_norms_on_each_child(x):
    """One hook on every child of a model; removed by its handles it logs no more."""
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
    log = []

    def log_norm(module, input_args, input_kwargs):
        log.append((type(module).__name__, input_args[0].norm().item()))

    handles = [hookline.register_forward_pre_hook(child, log_norm) for child in model]
    out = model(x)

    hidden = F.linear(x, model[0].weight, model[0].bias)
    assert [name for name, _ in log] == ["Linear", "ReLU", "Linear"]
    assert [norm for _, norm in log] == [
        value.norm().item() for value in (x, hidden, hidden.relu())
    ]
    for handle in handles:
        handle.remove()
    assert torch.equal(model(x), out)
    assert len(log) == 3


# P1: what hooks get.


@pytest.mark.parametrize("form", FORMS)
def test_p1_pre_hooks_get_module_and_args_and_kwargs_if_they_take_them(form, x):
    """The very objects of the call."""
    module, seen = Attend(), []
    with (
        register(form, "forward_pre_hook", module, lambda m, args: seen.append((m, args))),
        register(
            form, "forward_pre_hook", module, lambda m, a, kwargs: seen.append((m, a, kwargs))
        ),
        register(form, "forward_pre_hook", module, lambda *given: seen.append(given)),
    ):
        module(x, key=x, scale=2.0)

    assert [len(given) for given in seen] == [2, 3, 2]
    assert all(given[0] is module for given in seen)
    assert all(given[1][0] is x and len(given[1]) == 1 for given in seen)
    assert seen[1][2] == {"key": x, "scale": 2.0}


@pytest.mark.parametrize("form", FORMS)
def test_p1_forward_hooks_get_the_inputs_that_the_module_saw_and_the_output(form, x):
    """After the pre-hooks; with the kwargs if they take them."""
    module, seen = Attend(), []
    with (
        register(form, "forward_pre_hook", module, lambda m, args: (args[0] + 1,)),
        register(form, "forward_hook", module, lambda m, args, out: seen.append((m, args, out))),
        register(form, "forward_hook", module, lambda m, a, kw, out: seen.append((m, a, kw, out))),
    ):
        out = module(x, key=x)

    assert torch.equal(out, (x + 1) * x)
    for given in seen:
        assert given[0] is module
        assert torch.equal(given[1][0], x + 1)
        assert given[-1] is out
    assert seen[1][2] == {"key": x}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "hook", "counts"),
    [
        ("forward_pre_hook", lambda *given: given[-1]["log"].append(len(given)), [3]),
        ("forward_hook", lambda *given: given[2]["log"].append(len(given)), [4]),
    ],
)
def test_p1_with_kwargs_overrides_the_signature(form, kind, hook, counts):
    """A hook that takes any number gets the longer form if it is told so."""
    log = []

    class Logs(nn.Module):
        def forward(self, x, log):
            return x

    module = Logs()
    with register(form, kind, module, hook, with_kwargs=True):
        module(torch.ones(1), log=log)

    assert log == counts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook"])
def test_p1_a_hook_that_takes_neither_form_is_refused_at_registration(form, kind, linear):
    """With both forms shown; nothing is registered."""
    before = nn.Module.__call__

    with pytest.raises(TypeError, match="takes neither") as caught:
        register(form, kind, linear, lambda module: None)

    assert isinstance(caught.value, HooklineError)
    assert "args, kwargs" in str(caught.value)
    assert nn.Module.__call__ is before


# P2: what pre-hooks give.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        pytest.param(lambda m, args: None, lambda x: x * x * 2, id="None"),
        pytest.param(lambda m, args: (args[0] + 1,), lambda x: (x + 1) * x * 2, id="tuple"),
        pytest.param(lambda m, args: args[0] + 1, lambda x: (x + 1) * x * 2, id="bare"),
        pytest.param(
            lambda m, args, kwargs: (args[0] + 1,), lambda x: (x + 1) * x * 2, id="tuple, kwargs"
        ),
        pytest.param(
            lambda m, args, kwargs: (args, {"key": kwargs["key"] + 1}),
            lambda x: x * (x + 1),
            id="both, torch's form",
        ),
        pytest.param(
            lambda m, args: Inputs((args[0], args[0] + 1)), lambda x: x * (x + 1), id="Inputs"
        ),
        pytest.param(
            lambda m, args, kwargs: Inputs((), {"query": args[0], **kwargs, "mask": args[0]}),
            lambda x: x * x * 2 * x,
            id="Inputs that move and add",
        ),
        pytest.param(
            lambda m, args, kwargs: kwargs.update(scale=3.0), lambda x: x * x * 3, id="in place"
        ),
    ],
)
def test_p2_what_a_pre_hook_gives_is_what_the_module_gets(form, hook, expected, x):
    """Called with one positional and two keyword arguments."""
    module = Attend()
    with register(form, "forward_pre_hook", module, hook):
        assert torch.equal(module(x, key=x, scale=2.0), expected(x))


@pytest.mark.parametrize("form", FORMS)
def test_p2_kwargs_changed_in_place_stay_the_callers_own(form, x):
    """The dict is that of the call."""
    module, kwargs = Attend(), {"key": x}

    def change(module, args, kwargs):
        kwargs["scale"] = 3.0

    with register(form, "forward_pre_hook", module, change):
        module(x, **kwargs)

    assert list(kwargs) == ["key"]


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Sums(nn.Module):
    def forward(self, pair):
        return sum(pair)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [[1, 2], Pair(1, 2), OrderedDict(a=1), torch.Size([1, 2]), 0])
def test_p2_a_value_that_is_no_exact_tuple_is_the_only_argument(form, value):
    """Tuple subclasses are values of the model's, and not lists of arguments."""
    module = nn.Identity()
    with register(form, "forward_pre_hook", module, lambda m, args: value):
        assert module(None) is value


@pytest.mark.parametrize("form", FORMS)
def test_p2_an_argument_that_is_a_tuple_is_replaced_within_the_tuple_of_arguments(form, x):
    """`return ((a, b),)`; without the outer one it would be two arguments, and is refused."""
    module = Sums()
    with register(form, "forward_pre_hook", module, lambda m, args: ((x, x * 2),)):
        assert torch.equal(module((x, x)), x + x * 2)
    with (
        register(form, "forward_pre_hook", module, lambda m, args: (x, x * 2)),
        pytest.raises(HookTypeError, match="2 positional"),
    ):
        module((x, x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("value", "counts"),
    [
        pytest.param((1,), "1 positional argument(s) in place of 2", id="one lost"),
        pytest.param((1, 2, 3), "3 positional argument(s) in place of 2", id="one more"),
        pytest.param(torch.ones(2, 4), "1 positional argument(s) in place of 2", id="a tensor"),
        pytest.param([1, 2], "1 positional argument(s) in place of 2", id="a list"),
        pytest.param(False, "1 positional argument(s) in place of 2", id="False"),
    ],
)
def test_p2_another_number_of_positional_arguments_is_refused(form, value, counts, x):
    """Never an argument lost, nor a row of a batch taken for an argument."""
    module = nn.Bilinear(10, 10, 2)

    def careless(module, args):
        return value

    with (
        register(form, "forward_pre_hook", module, careless),
        pytest.raises(TypeError) as caught,
    ):
        module(x, x)

    text = str(caught.value)
    assert isinstance(caught.value, HookTypeError)
    assert counts in text
    for part in ("careless", "Bilinear, call 0", "Inputs((first, second)"):
        assert part in text


@pytest.mark.parametrize("form", FORMS)
def test_p2_a_hook_without_kwargs_may_return_a_tuple_that_looks_like_args_and_kwargs(form):
    """There it is two positional arguments; only a hook that takes kwargs means them."""

    class Second(nn.Module):
        def forward(self, first, second=None):
            return first, second

    module = Second()
    with register(form, "forward_pre_hook", module, lambda m, args: ((1,), {"a": 2})):
        assert module((), {}) == ((1,), {"a": 2})
    with register(form, "forward_pre_hook", module, lambda m, args, kwargs: ((1,), {"second": 2})):
        assert module((), {}) == (1, 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [[(1,), {}], Pair((1,), {})])
def test_p2_only_an_exact_tuple_is_args_and_kwargs(form, value):
    """A list, or a named tuple, of a tuple and a dict is a value of the model's."""
    module = nn.Identity()
    with register(form, "forward_pre_hook", module, lambda m, args, kwargs: value):
        assert module(None) is value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0, False, 1.5, "text"])
def test_a_forward_hook_that_returns_a_plain_value_for_a_tensor_is_refused(form, value, linear, x):
    """A lambda that was meant to observe; torch would put it in the output's place."""
    with (
        register(form, "forward_hook", linear, lambda m, args, out: value),
        pytest.raises(HookTypeError, match="only observes must return None"),
    ):
        linear(x)


@pytest.mark.parametrize("form", FORMS)
def test_a_forward_hook_may_give_any_structure_as_output(form, linear, x):
    """As torch's; the next hook gets it."""
    seen = []
    with (
        register(form, "forward_hook", linear, lambda m, args, out: {"logits": out}),
        register(form, "forward_hook", linear, lambda m, args, out: seen.append(out)),
    ):
        out = linear(x)

    assert seen[0] is out
    assert torch.equal(out["logits"], F.linear(x, linear.weight, linear.bias))


# P3: options and order.


KINDS = ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook")


@pytest.mark.parametrize("kind", KINDS)
def test_p3_the_global_form_has_all_options_of_the_local_one(kind):
    """The same names, kinds and defaults; and torch's own local method has no other."""
    local = inspect.signature(getattr(hookline, f"register_{kind}")).parameters
    everywhere = inspect.signature(getattr(hookline, f"register_module_{kind}")).parameters
    torchs = inspect.signature(getattr(nn.Module, f"register_{kind}")).parameters

    def options(parameters):
        return {p.name: p.default for p in parameters.values() if p.name not in ("self", "module")}

    assert options(everywhere) == options(local)
    assert options(local).keys() == options(torchs).keys()


@pytest.mark.parametrize("form", FORMS)
def test_p3_prepend_puts_a_hook_in_front_of_its_own_kind(form, linear, x):
    """In all four phases."""
    log = []
    handles = []
    for kind in KINDS:
        for name, prepend in (("a", False), ("b", False), ("c", True), ("d", True)):
            handles.append(
                register(
                    form,
                    kind,
                    linear,
                    lambda *_, name=name, kind=kind: log.append(f"{kind} {name}"),
                    prepend=prepend,
                )
            )

    linear(x).sum().backward()

    assert log == [f"{kind} {name}" for kind in KINDS for name in "dcab"]
    for handle in handles:
        handle.remove()


def test_p3_hooks_on_all_modules_run_before_a_modules_own_whatever_is_prepended(linear, x):
    """As with torch's own, whose order is the reference here."""

    def log_of(local, everywhere, x):
        log, handles = [], []
        for kind in KINDS:
            note = partial(_note, log, kind)
            handles += [
                local(kind)(note("local")),
                everywhere(kind)(note("global")),
                local(kind)(note("prepended"), prepend=True),
                everywhere(kind)(note("global 2")),
            ]
        linear(x.clone().requires_grad_()).sum().backward()
        for handle in handles:
            handle.remove()
        return log

    ours = log_of(
        lambda kind: partial(getattr(hookline, f"register_{kind}"), linear),
        lambda kind: getattr(hookline, f"register_module_{kind}"),
        x,
    )
    torchs = log_of(
        lambda kind: getattr(linear, f"register_{kind}"),
        lambda kind: getattr(torch_module, f"register_module_{kind}"),
        x,
    )
    assert ours == torchs
    assert ours[:4] == [
        f"forward_pre_hook {name}" for name in ("global", "global 2", "prepended", "local")
    ]


def _note(log, kind, name):
    return lambda *_: log.append(f"{kind} {name}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt()])
def test_p3_always_call_runs_where_the_call_raised(form, error, x):
    """With None as output and the kwargs if it takes them; the error goes on unchanged."""
    module, seen = Fails(), []
    with (
        register(form, "forward_hook", module, lambda m, a, out: seen.append("plain")),
        register(
            form,
            "forward_hook",
            module,
            lambda m, a, kwargs, out: seen.append((kwargs["error"], out)),
            always_call=True,
        ),
        register(
            form, "forward_hook", module, lambda m, a, out: seen.append(out) or 1, always_call=True
        ),
        register(
            form, "forward_hook", module, lambda m, a, out: seen.append(out), always_call=True
        ),
        pytest.raises(type(error)) as caught,
    ):
        module(x, error=error)

    assert caught.value is error
    assert seen == [(error, None), None, None]


@pytest.mark.parametrize("form", FORMS)
def test_p3_always_call_hooks_run_once_also_where_another_hook_raised(form, linear, x):
    """Those that ran already do not run again; one that raises becomes a detail."""
    log = []

    def fail(module, args, out):
        log.append("fail")
        msg = "first"
        raise ValueError(msg)

    def fail_too(module, args, out):
        log.append("fail too")
        msg = "second"
        raise RuntimeError(msg)

    def note(name):
        return lambda module, args, out: log.append(f"{name} {out is not None}")

    handles = [
        register(form, "forward_hook", linear, note("before"), always_call=True),
        register(form, "forward_hook", linear, fail),
        register(form, "forward_hook", linear, note("plain")),
        register(form, "forward_hook", linear, fail_too, always_call=True),
        register(form, "forward_hook", linear, note("after"), always_call=True),
    ]
    with pytest.raises(ValueError, match="first") as caught:
        linear(x)

    assert log == ["before True", "fail", "fail too", "after False"]
    notes = caught.value.__notes__
    assert len(notes) == 2
    assert "forward hook" in notes[0]
    assert "RuntimeError('second')" in notes[1]
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("form", FORMS)
def test_p3_always_call_hooks_run_where_a_pre_hook_raised(form, linear, x):
    """As torch's do."""
    log = []

    def fail(module, args):
        msg = "stop"
        raise ValueError(msg)

    with (
        register(form, "forward_pre_hook", linear, fail),
        register(form, "forward_hook", linear, lambda m, a, out: log.append(out), always_call=True),
        pytest.raises(ValueError, match="stop"),
    ):
        linear(x)

    assert log == [None]


# P4: handles.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_p4_a_handle_removes_its_hook_once_and_for_all(form, kind, linear, x):
    """Also a second time, and as a context manager."""
    calls = []

    def run():
        calls.clear()
        linear(x.clone().requires_grad_()).sum().backward()
        return len(calls)

    first = register(form, kind, linear, lambda *_: calls.append("first"))
    second = register(form, kind, linear, lambda *_: calls.append("second"))
    assert isinstance(first, hookline.HookHandle)
    assert run() == 2
    first.remove()
    first.remove()
    assert run() == 1
    assert (first.active, second.active) == (False, True)
    with second as entered:
        assert entered is second
        assert run() == 1
    assert run() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_p4_a_handle_works_when_the_module_is_gone(kind):
    """It does not keep the module, nor the engine on."""
    before = nn.Module.__call__
    module = nn.Linear(2, 2)
    gone = weakref.ref(module)
    handle = getattr(hookline, f"register_{kind}")(module, lambda *_: None)

    del module

    assert gone() is None
    assert not handle.active
    assert nn.Module.__call__ is before
    handle.remove()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", [None, "hook", 3, [print]])
def test_p4_something_not_callable_is_refused_at_once(form, kind, hook, linear):
    """And nothing stays registered."""
    before = nn.Module.__call__

    with pytest.raises(TypeError, match="must be callable") as caught:
        register(form, kind, linear, hook)

    assert isinstance(caught.value, HookTypeError)
    assert nn.Module.__call__ is before


@pytest.mark.parametrize("kind", KINDS)
def test_p4_nothing_is_put_on_the_module(kind, linear):
    """Neither attributes nor torch hooks; after removal the table entry holds no hook."""
    before = {name: copy.copy(value) for name, value in vars(linear).items()}

    with getattr(hookline, f"register_{kind}")(linear, lambda *_: None):
        assert {name: copy.copy(value) for name, value in vars(linear).items()} == before
    assert hookline.hooks_of(linear) == []


class Callable:
    """A hook that can be looked for after its removal."""

    def __call__(self, *_):
        pass


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_r5_a_removed_hook_leaves_no_trace(form, kind, linear, x):
    """Neither it nor what it holds lives on, though other hooks of the module stay."""
    hook = Callable()
    gone = weakref.ref(hook)
    with (
        hookline.register_forward_hook(linear, lambda *_: None),
        hookline.register_module_forward_hook(lambda *_: None),
    ):
        handle = register(form, kind, linear, hook)
        linear(x).sum().backward()
        handle.remove()
        del handle, hook
        assert gone() is None


# P6: hooks are looked up when the event happens.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_p6_a_hook_removed_within_the_event_is_not_called(form, kind, linear, x):
    """By the one before it."""
    log = []
    first = register(form, kind, linear, lambda *_: second.remove())
    second = register(form, kind, linear, lambda *_: log.append("removed"))
    third = register(form, kind, linear, lambda *_: log.append("third"))

    linear(x.clone().requires_grad_()).sum().backward()

    assert log == ["third"]
    first.remove()
    third.remove()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_p6_a_hook_that_removes_itself_runs_once(form, kind, linear, x):
    """And the others go on."""
    log = []

    def once(*_):
        log.append("once")
        handle.remove()

    handle = register(form, kind, linear, once)
    other = register(form, kind, linear, lambda *_: log.append("other"))

    for _ in range(2):
        linear(x.clone().requires_grad_()).sum().backward()

    assert log == ["once", "other", "other"]
    other.remove()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
def test_p6_a_hook_removed_before_the_backward_is_not_called(form, kind, linear, x):
    """For a forward that already ran, as after `with`; gradients are plain then."""
    calls = []
    x = x.requires_grad_()
    with register(form, kind, linear, lambda *_: calls.append(1)):
        out = linear(x)
    out.sum().backward()

    assert calls == []
    torch.testing.assert_close(x.grad, torch.ones(3, 5) @ linear.weight)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_p6_a_hook_added_during_an_event_waits_for_the_next_one(form, kind, linear, x):
    """Of its own kind: the next call, or the next backward."""
    log, handles = [], []

    def add(*_):
        handles.append(register(form, kind, linear, lambda *_: log.append("added")))

    first = register(form, kind, linear, add)
    linear(x.clone().requires_grad_()).sum().backward()
    assert log == []

    first.remove()
    linear(x.clone().requires_grad_()).sum().backward()
    assert log == ["added"]
    handles[0].remove()


@pytest.mark.parametrize("form", FORMS)
def test_p6_a_hook_added_in_one_phase_runs_in_the_later_ones_of_the_same_call(form, linear, x):
    """From a pre-hook on; a backward hook too, since the call is watched from then on."""
    log, handles = [], []

    def add(module, args):
        if not handles:
            handles.extend(
                register(form, kind, linear, lambda *_, kind=kind: log.append(kind))
                for kind in KINDS[1:]
            )

    first = register(form, "forward_pre_hook", linear, add)
    linear(x.clone().requires_grad_()).sum().backward()

    assert log == list(KINDS[1:])
    for handle in (first, *handles):
        handle.remove()


def test_p6_a_backward_hook_added_after_the_forward_fires_if_the_call_was_watched(linear, x):
    """By a backward hook; one that only reads gets what there is, and cannot replace."""
    seen = []
    with hookline.register_full_backward_pre_hook(linear, lambda *_: None):
        out = linear(x.clone().requires_grad_())
        late = hookline.register_full_backward_hook(linear, lambda m, i, o: seen.append((i, o)))
        out.sum().backward()
        late.remove()

        out = linear(x.clone().requires_grad_())
        with (
            hookline.register_full_backward_hook(linear, lambda m, i, o: (torch.ones(3, 10),)),
            pytest.raises(HookTypeError, match="registered after the forward"),
        ):
            out.sum().backward()

    assert seen[0][0] == (None,)
    assert torch.equal(seen[0][1][0], torch.ones(3, 5))


def test_p6_a_backward_hook_added_after_an_unwatched_forward_does_not_fire(linear, x):
    """Nothing saw the call."""
    calls = []
    out = linear(x)
    with hookline.register_full_backward_hook(linear, lambda *_: calls.append(1)):
        out.sum().backward()

    assert calls == []
