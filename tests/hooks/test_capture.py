"""`capture` and `CaptureHook`: right values, whatever happens to the tensors later."""

import gc
import threading
import weakref
from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import (
    CaptureError,
    CaptureKeyError,
    HookTypeError,
    HookValueError,
    SelectionError,
    capture,
)
from hookline.core.demand import demand
from hookline.function_hooks import CaptureHook as FunctionCaptureHook
from hookline.module_hooks import CaptureHook
from hookline.torch_base.tree import tensors

EVERYTHING = ("input", "output", "grad", "grad_input")


def digits(count=8):
    images = load_digits().images[:count]
    return torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 16


def cnn(*, inplace=True):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(inplace=inplace),
        nn.Flatten(),
        nn.Linear(96, 10),
    )


def by_hand(model, x):
    """Each layer's input and output and their gradients, with no in-place operation."""
    assert not any(getattr(layer, "inplace", False) for layer in model)
    values = [x]
    for layer in model:
        values.append(layer(values[-1]))
    inner = [v for v in values if v.requires_grad]
    found = torch.autograd.grad(values[-1].square().sum(), inner)
    grads = dict(zip(map(id, inner), found, strict=True))
    return values, [grads.get(id(value)) for value in values]


# Values.


def test_outputs_and_gradients_are_right_though_in_place_operations_follow():
    """The convolution's output is overwritten by the ReLU behind it; the capture is not."""
    values, gradients = by_hand(cnn(inplace=False), digits())
    model = cnn(inplace=True)
    with capture(model, "*") as acts:
        model(digits()).square().sum().backward()

    assert list(acts) == [str(place) for place in range(7)]
    for place in range(7):
        assert torch.equal(acts[str(place)].output, values[place + 1]), place
        assert torch.equal(acts[str(place)].grad, gradients[place + 1]), place
    assert acts["0"].output.min() < 0
    assert not acts["0"].output.requires_grad


def test_inputs_and_their_gradients_are_those_before_the_module_ran():
    values, gradients = by_hand(cnn(inplace=False), digits().requires_grad_())
    model = cnn(inplace=True)
    with capture(model, "*", what=EVERYTHING) as acts:
        model(digits().requires_grad_()).square().sum().backward()

    for place, layer in enumerate(model):
        held = acts[str(place)]
        assert torch.equal(held.input, values[place]), place
        if not getattr(layer, "inplace", False):  # its input is no more after it ran
            assert torch.equal(held.grad_input, gradients[place]), place


def test_what_a_module_does_to_its_input_does_not_change_the_captured_input():
    class Doubles(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    model = nn.Sequential(Doubles())
    with capture(model, "0", what=("input", "output")) as acts:
        model(torch.ones(3))

    assert torch.equal(acts["0"].input, torch.ones(3))
    assert torch.equal(acts["0"].output, torch.full((3,), 2.0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_values_are_the_same_in_every_mode(mode):
    values, _ = by_hand(cnn(inplace=False), digits())
    model = cnn()
    with mode(), capture(model, "*") as acts:
        model(digits())

    assert all(torch.equal(acts[str(n)].output, values[n + 1]) for n in range(7))


def test_every_leaf_of_nested_outputs_is_captured_in_its_structure():
    lstm = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    with capture(lstm) as acts:
        output, (hidden, cell) = lstm(x)
        (output.sum() + 2 * hidden.sum() + 3 * cell.sum()).backward()

    held = acts[""]
    assert torch.equal(held.output[0], output)
    assert torch.equal(held.output[1][1], cell)
    assert type(held.output[1]) is tuple
    assert list(held.leaves()) == ["output[0]", "output[1][0]", "output[1][1]"]
    assert torch.equal(held.leaves()["output[1][0]"], hidden)
    ones = torch.ones(1, 2, 4)
    assert torch.equal(held.grad[0], torch.ones(5, 2, 4))
    assert torch.equal(held.grad[1][0], 2 * ones)
    assert torch.equal(held.leaves("grad")["grad[1][1]"], 3 * ones)


def test_outputs_of_which_only_some_get_a_gradient():
    lstm = nn.LSTM(3, 4)
    with capture(lstm) as acts:
        _, (hidden, _) = lstm(torch.randn(5, 2, 3))
        hidden.sum().backward()

    assert acts[""].grad[0] is None
    assert torch.equal(acts[""].grad[1][0], torch.ones(1, 2, 4))


def test_gradients_that_arrive_after_the_backward_has_begun_are_captured_too():
    """Two outputs of different depth: the gradient of one comes while the other's flows."""

    class Two(nn.Module):
        def forward(self, x):
            first = x * 2
            return first, first.exp().log() * 3

    model, x = Two(), torch.rand(4, requires_grad=True)
    first, second = model(x)
    expected = torch.autograd.grad((first * 5 + second * 7).sum(), (first, second))
    with capture(model) as acts:
        first, second = model(x)
        (first * 5 + second * 7).sum().backward()

    assert all(map(torch.equal, acts[""].grad, expected))


def test_several_inputs_by_position_and_keyword():
    bilinear = nn.Bilinear(2, 3, 1)
    a, b = torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    with capture(bilinear, what=EVERYTHING) as acts:
        bilinear(a, input2=b).sum().backward()

    given = acts[""].input
    assert isinstance(given, hookline.Inputs)
    assert torch.equal(given.args[0], a)
    assert torch.equal(given.kwargs["input2"], b)
    back = acts[""].grad_input
    assert isinstance(back, hookline.GradInput)
    assert torch.equal(back[0], a.grad)
    assert torch.equal(back.kwargs["input2"], b.grad)
    paths = ["grad_input[0]", "grad_input.kwargs['input2']"]
    assert list(acts[""].leaves("grad_input")) == paths


def test_the_gradient_of_an_output_that_is_also_used_elsewhere_is_the_whole():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    x = torch.randn(2, 3)
    hidden = model[0](x)
    (expected,) = torch.autograd.grad((model[1](hidden) + hidden).sum(), hidden)
    with capture(model[0], "") as acts:
        hidden = model[0](x)
        (model[1](hidden) + hidden).sum().backward()

    assert torch.equal(acts[""].grad, expected)


def test_the_gradient_is_that_of_the_latest_backward():
    model = nn.Linear(2, 2)
    with capture(model) as acts:
        out = model(torch.ones(1, 2))
        out.sum().backward(retain_graph=True)
        (out * 3).sum().backward()

    assert torch.equal(acts[""].grad, torch.full((1, 2), 3.0))


def test_a_gradient_that_a_backward_overwrites_is_captured_as_it_arrived():
    class Overwrites(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.zero_()

    class Layer(nn.Module):
        def forward(self, x):
            return Overwrites.apply(x)

    model, x = Layer(), torch.ones(2, requires_grad=True)
    with capture(model) as acts:
        (model(x) * torch.tensor([2.0, 3.0])).sum().backward()

    assert torch.equal(x.grad, torch.zeros(2))
    assert torch.equal(acts[""].grad, torch.tensor([2.0, 3.0]))


# Copies, aliases, graphs.


def test_an_alias_that_was_overwritten_is_an_error_when_it_is_read():
    model = cnn(inplace=True)
    with torch.no_grad(), capture(model, "*", copy=False) as acts:
        out = model(digits())

    assert acts["6"].output.data_ptr() == out.data_ptr()
    with pytest.raises(CaptureError, match=r"output of '1', call 0 .* overwritten .* copy=True"):
        _ = acts["1"].output
    out.zero_()
    with pytest.raises(CaptureError, match="overwritten"):
        _ = acts["6"].output


def test_an_alias_of_an_input_is_checked_from_before_the_module_ran():
    model = nn.Sequential(nn.ReLU(inplace=True))
    with capture(model, "0", what="input", copy=False) as acts:
        model(torch.randn(3))

    with pytest.raises(CaptureError, match="overwritten"):
        _ = acts["0"].input


def test_no_large_storage_is_kept_for_a_small_part_of_it():
    class First(nn.Module):
        def forward(self, x):
            return x[:1]

    model = First()
    with capture(model, copy=False) as acts:
        model(torch.arange(1000.0))
    assert acts[""].output.untyped_storage().nbytes() == 4

    with capture(model) as acts:
        model(torch.arange(1000.0))
    assert acts[""].output.untyped_storage().nbytes() == 4


def test_aliases_are_copies_where_nobody_counts_writes():
    model = nn.Identity()
    with torch.inference_mode(), capture(model, copy=False) as acts:
        model(torch.ones(3)).zero_()

    assert torch.equal(acts[""].output, torch.ones(3))


def test_keep_graph_holds_the_output_itself():
    """So gradients can be asked for with respect to it, and losses built on it train."""
    model = cnn(inplace=False)
    with capture(model, "3", keep_graph=True) as acts:
        loss = model(digits()).square().sum()
    (gradient,) = torch.autograd.grad(loss, acts["3"].output, retain_graph=True)

    values, gradients = by_hand(cnn(inplace=False), digits())
    assert torch.equal(acts["3"].output, values[4])
    assert torch.equal(gradient, gradients[4])
    acts["3"].output.mean().backward()
    assert model[0].weight.grad is not None
    assert model[6].weight.grad is None


def test_keep_graph_with_copies_survives_in_place_operations():
    """The loss on the captured features trains what made them, and not what came behind."""
    model, x = cnn(inplace=True), digits()
    with capture(model, "3", keep_graph=True) as acts:
        model(x)
    with pytest.raises(CaptureError, match="copy=True"):
        _ = acts["3"].output

    with capture(model, "3", keep_graph=True, copy=True) as acts:
        model(x)
    acts["3"].output.square().sum().backward()
    plain = cnn(inplace=False)
    plain[:2](x)  # batch norm counts passes
    plain[:4](x).square().sum().backward()
    assert torch.equal(model[0].weight.grad, plain[0].weight.grad)
    assert model[6].weight.grad is None


def test_keep_graph_goes_with_dtype_and_reduce():
    model = nn.Linear(3, 2)
    with capture(model, keep_graph=True, dtype=torch.float64, reduce=lambda t: t.sum(1)) as acts:
        model(torch.ones(4, 3))

    assert acts[""].output.dtype == torch.float64
    acts[""].output.sum().backward()
    assert torch.equal(model.bias.grad, torch.full((2,), 4.0))


def test_keep_graph_holds_the_graph_of_gradients_made_with_create_graph():
    x = torch.tensor([2.0], requires_grad=True)
    square = nn.Sequential(nn.Identity())
    with capture(square, "0", keep_graph=True) as acts:
        torch.autograd.grad(square(x * 1).pow(3), x, create_graph=True)
    (second,) = torch.autograd.grad(acts["0"].grad, x)

    assert second.item() == 12.0  # the second derivative of x³


def test_keep_graph_is_refused_in_inference_mode():
    model = nn.Linear(2, 2)
    refused = pytest.raises(CaptureError, match="keep_graph=True cannot work in inference mode")
    with capture(model, keep_graph=True), torch.inference_mode(), refused:
        model(torch.ones(1, 2))


# What is held in place of a tensor.


def test_reduce_is_held_in_place_of_the_tensor():
    model = cnn()
    with capture(model, "*", what="output", reduce=lambda t: t.flatten(1)[:, 0]) as acts:
        model(digits())

    values, _ = by_hand(cnn(inplace=False), digits())
    for place in range(7):  # the part is not changed by in-place operations either
        held = acts[str(place)].output
        assert torch.equal(held, values[place + 1].flatten(1)[:, 0])
        assert held.untyped_storage().nbytes() == 8 * 4


def test_reduce_may_give_anything():
    model = nn.Linear(2, 2)

    def statistics(tensor):
        assert not tensor.requires_grad
        return {"mean": tensor.mean(), "norm": float(tensor.norm())}

    with capture(model, reduce=statistics) as acts:
        out = model(torch.ones(1, 2))
        out.sum().backward()

    out = out.detach()
    assert acts[""].output == {"mean": out.mean(), "norm": float(out.norm())}
    assert acts[""].grad["norm"] == pytest.approx(2**0.5)


def test_dtype_converts_floating_point_only():
    embedding = nn.Embedding(10, 4)
    ids = torch.tensor([1, 9])
    with capture(embedding, what=("input", "output", "grad"), dtype=torch.float16) as acts:
        out = embedding(ids)
        out.sum().backward()

    assert acts[""].input.dtype == torch.int64
    assert torch.equal(acts[""].input, ids)
    assert torch.equal(acts[""].output, out.detach().half())
    assert acts[""].grad.dtype == torch.float16


def test_device_moves_and_leaves_what_has_no_values():
    with torch.device("meta"):
        model = nn.Linear(2, 3)
    with capture(model, device="cpu") as acts:
        model(torch.empty(5, 2, device="meta"))
    assert acts[""].output.is_meta

    model = nn.Linear(2, 3)
    with capture(model, device="meta") as acts:
        model(torch.empty(5, 2))
    assert acts[""].output.is_meta
    assert acts[""].output.shape == (5, 3)


def test_an_output_that_occurs_twice_is_held_once():
    class Twice(nn.Module):
        def forward(self, x):
            return {"a": x, "b": [x, None, "text"]}

    model = Twice()
    with capture(model, what="output") as acts:
        model(torch.ones(4))

    held = acts[""].output
    assert held["a"] is held["b"][0]
    assert held["b"][1:] == [None, "text"]
    assert acts.nbytes == 16


def test_a_container_that_takes_no_other_values_is_held_as_a_dict_of_its_leaves():
    @dataclass(init=False)
    class Locked:
        x: object

        def __init__(self, x):
            self.held = x

    Locked.x = property(lambda self: self.held)

    class Locks(nn.Module):
        def forward(self, x):
            return Locked([x])

    with capture(model := Locks(), what="output") as acts:
        model(torch.ones(2))

    assert list(acts[""].output) == [".x[0]"]
    assert torch.equal(acts[""].output[".x[0]"], torch.ones(2))


# Which calls.


class Thrice(nn.Module):
    """Calls one layer three times."""

    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(self.act(self.act(x) * 2) * 3)


def thrice_by_hand(x):
    first = x.tanh()
    second = (first * 2).tanh()
    third = (second * 3).tanh()
    return (first, second, third), torch.autograd.grad(third.sum(), (first, second, third))


def test_gradients_go_to_the_forward_call_that_they_belong_to():
    model, x = Thrice(), torch.randn(4, requires_grad=True)
    values, gradients = thrice_by_hand(x)
    with capture(model, "act") as acts:
        model(x).sum().backward()

    held = acts["act"]
    assert [call.index for call in held] == [0, 1, 2]
    assert all(map(torch.equal, held.outputs, values))
    assert all(map(torch.equal, held.grads, gradients))
    assert torch.equal(held.first.output, values[0])
    assert torch.equal(held.last.grad, gradients[2])
    assert torch.equal(held[1].output, values[1])
    assert torch.equal(held.concat(), torch.cat(values))
    assert torch.equal(held.concat(what="grad"), torch.cat(gradients))
    assert len(held) == 3
    for what in ("output", "grad"):
        way_out = rf"called 3 times, so \.{what} is not clear; take \.{what}s .*\.first\.{what}"
        with pytest.raises(CaptureError, match=way_out):
            getattr(held, what)


@pytest.mark.parametrize(("calls", "place"), [("first", 0), ("last", 2)])
def test_only_the_first_or_last_call_may_be_held(calls, place):
    model, x = Thrice(), torch.randn(4, requires_grad=True)
    values, gradients = thrice_by_hand(x)
    with capture(model, "act", calls=calls, what=("input", "output", "grad")) as acts:
        model(x).sum().backward()

    assert torch.equal(acts["act"].output, values[place])
    assert torch.equal(acts["act"].grad, gradients[place])
    assert acts["act"].first.index == place


def test_passes_are_kept_apart_and_backward_may_come_in_any_order():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    batches = [torch.randn(2, 3) for _ in range(3)]
    with capture(model, "0") as acts:
        outs = [model(x) for x in batches]
        for scale, out in zip((5, 3, 4), outs, strict=True):
            out.mul(scale).sum().backward() if scale != 3 else None
        outs[1].mul(3).sum().backward()

    assert len(acts.passes) == 3
    for number, x, scale in zip(acts.passes, batches, (5, 3, 4), strict=True):
        only = acts.in_pass(number)["0"]
        plain = F.linear(x, model[0].weight, model[0].bias).detach()
        assert torch.equal(only.output, plain)
        assert torch.equal(only.grad, scale * (plain > 0).float())
        assert only.first.pass_number == number
        assert torch.equal(acts["0"].in_pass(number).output, plain)


def test_calls_say_which_they_are():
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(model, "0") as acts:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model.eval()
        model(torch.ones(1, 2))

    first, second = acts["0"]
    assert (first.name, first.type, first.root, first.mode) == (
        "0",
        "Linear",
        "Sequential",
        "train",
    )
    assert (second.mode, second.step - first.step) == ("eval", 1)
    assert second.pass_number == first.pass_number + 1
    assert len(acts["0"].where(mode="eval")) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_calls_are_left_out_and_their_gradients_are_not_lost(reentrant):
    block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    x = torch.randn(2, 3, requires_grad=True)
    hidden = block[0](x)
    (gradient,) = torch.autograd.grad(block[1:](hidden).sum(), hidden)
    with capture(block, "0", what=("input", "output", "grad")) as acts:
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()

    assert len(acts["0"]) == 1
    assert torch.equal(acts["0"].output, hidden)
    assert torch.equal(acts["0"].grad, gradient)


def test_a_forward_that_fails_leaves_what_was_captured_before():
    class Fails(nn.Module):
        def forward(self, x):
            raise LookupError

    model = nn.Sequential(nn.ReLU(), Fails())
    with capture(model, what=("input", "output")) as acts:
        with pytest.raises(LookupError):
            model(torch.ones(2))
        model[0](torch.ones(3))

    assert sorted(acts) == ["0"]
    assert [tuple(value.shape) for value in acts["0"].inputs] == [(2,), (3,)]


def test_r5_the_inputs_of_a_call_that_failed_are_not_held():
    class Fails(nn.Module):
        def forward(self, x):
            raise LookupError

    class Summary:
        pass

    made = []

    def summary(_):
        made.append(weakref.ref(found := Summary()))
        return found

    model = Fails()
    acts = capture(model, what="input", reduce=summary)
    with acts, pytest.raises(LookupError) as error:
        model(torch.ones(2))

    assert [ref() for ref in made] == [None]
    assert error.traceback  # the failed call itself is alive in it


def test_once_the_first_call_is_held_no_other_is_looked_at():
    looked_at = []
    model = Thrice()
    options = {"what": ("input", "output"), "calls": "first", "reduce": looked_at.append}
    with capture(model, "act", **options):
        model(torch.ones(2))

    assert len(looked_at) == 2


# Shared modules, several roots.


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        act = nn.ReLU()
        self.a = nn.Sequential(act)
        self.b = nn.Sequential(act)
        self.c = act

    def forward(self, x):
        return self.b(self.a(x) - 1)


def test_a_shared_module_is_found_under_the_path_by_which_it_was_called():
    model = Tied()
    with capture(model, "a.0") as acts:
        model(torch.tensor([3.0]))

    assert list(acts) == ["a.0", "b.0"]
    assert acts["a.0"].output == 3
    assert acts["b.0"].output == 2
    assert acts["a.0"].paths == ("a.0", "b.0", "c")
    with pytest.raises(CaptureKeyError, match=r"called as 'a\.0', 'b\.0'"):
        acts["c"]


def test_a_shared_module_is_found_under_all_its_paths_if_there_is_no_doubt():
    model = Tied()
    with capture(model, "c") as acts:
        model.b(torch.tensor([3.0]))

    (only,) = acts
    assert acts["c"] is acts["a.0"] is acts["b.0"] is acts[only]
    assert "c" in acts
    assert "d" not in acts


def test_a_scope_captures_every_root_and_names_tell_them_apart():
    class Generator(nn.Sequential):
        pass

    class Critic(nn.Sequential):
        pass

    generator, critic = Generator(nn.Linear(2, 3)), Critic(nn.Linear(3, 1), nn.Sigmoid())
    with CaptureHook(what="output") as hook:
        out = critic(generator(torch.ones(1, 2)))

    acts = hook.captured
    assert list(acts) == ["Generator.0", "Generator", "Critic.0", "1", "Critic"]
    assert torch.equal(acts["Critic"].output, out)
    assert acts["Generator.0"].output.shape == (1, 3)
    assert acts["1"].root == "Critic"


def test_a_hook_on_one_module():
    model = cnn()
    hook = CaptureHook()
    hookline.add_hook(model[0], hook)
    model(digits())
    hookline.delete_hook(model[0], "CaptureHook")
    model(digits())

    assert list(hook.captured) == ["0"]
    assert len(hook.captured["0"]) == 1


def test_paths_under_a_wrapper_are_those_of_the_model():
    model = cnn()
    with capture(nn.DataParallel(model), "0", "", what="output") as acts:
        out = nn.DataParallel(model)(digits())

    assert list(acts) == ["0", ""]
    assert torch.equal(acts[""].output, out)


# Scope.


def test_captures_nest_also_on_one_module_and_inside_a_scope_of_the_same_hook():
    model = nn.Sequential(nn.ReLU())
    with CaptureHook() as scope, capture(model, "0") as outer:
        with capture(model, "0", dtype=torch.float64) as inner:
            model(torch.ones(2))
        model(torch.ones(2))

    assert [len(each["0"]) for each in (scope.captured, outer, inner)] == [2, 2, 1]
    assert inner["0"].output.dtype == torch.float64


def test_capturing_begins_at_once_and_ends_with_close():
    model = nn.ReLU()
    acts = capture(model)
    model(torch.ones(2))
    acts.close()
    acts.close()
    model(torch.ones(2))

    assert len(acts[""]) == 1
    assert not hookline.hooks_of(model)


def test_r1_backwards_are_left_alone_if_no_gradient_is_wanted():
    model = cnn()
    with capture(model, what=("input", "output")):
        assert demand.backward == 0
        with capture(model, what="grad"):
            assert demand.backward > 0


def test_clear_forgets_and_goes_on():
    model = nn.Linear(2, 2)
    with capture(model) as acts:
        out = model(torch.ones(1, 2))
        acts.clear()
        out.sum().backward()  # a gradient of what was forgotten
        assert len(acts) == 0
        model(torch.ones(1, 2)).sum().backward()

    assert torch.equal(acts[""].grad, torch.ones(1, 2))


def test_r5_a_capture_that_is_collected_while_open_detaches():
    model = nn.ReLU()
    acts = capture(model)
    model(torch.ones(2))
    held = weakref.ref(acts[""].first)
    with pytest.warns(ResourceWarning, match="collected while open"):
        del acts

    assert held() is None
    assert not hookline.hooks_of(model)


def test_r5_nothing_is_alive_once_the_captures_are_dropped():
    """Without a collection of cycles, and though the graph still lives."""
    model = cnn()
    gc.collect()
    gc.disable()
    try:
        with capture(model, what=EVERYTHING) as acts:
            out = model(digits().requires_grad_())
            loss = out.square().sum()
            loss.backward(retain_graph=True)
        values = [v for entry in acts.values() for call in entry for v in call.values.values()]
        refs = [weakref.ref(t) for v in values for t in tensors(v)]
        del values
        assert len(refs) > 20
        del acts
        assert [ref() for ref in refs if ref() is not None] == []
    finally:
        gc.enable()


def test_r5_a_captured_tensor_keeps_no_graph_alive():
    model = nn.Linear(2, 2)
    with capture(model) as acts:
        out = model(torch.ones(1, 2))
        probe = out.grad_fn.metadata["probe"] = nn.Module()  # lives as long as the graph
        graph = weakref.ref(probe)
        del out, probe

    assert graph() is None
    assert acts[""].output.shape == (1, 2)


def test_r5_the_model_is_not_kept_alive():
    model = cnn()
    with capture(model) as acts:
        model(digits())
    gone = weakref.ref(model)
    del model
    gc.collect()

    assert gone() is None
    assert acts["0"].output.shape == (8, 4, 6, 6)


def test_r11_calls_of_all_threads_are_captured():
    model = nn.ReLU()
    with capture(model) as acts:
        threads = [threading.Thread(target=model, args=(torch.ones(2),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(acts[""]) == 8


# Ending the forward early.


def counting(model):
    """How many layers have run."""
    ran = []
    for place, layer in enumerate(model):
        layer.register_forward_hook(lambda *_, place=place: ran.append(place))
    return ran


def test_stop_ends_the_forward_after_the_last_wanted_module():
    model = cnn()
    ran = counting(model)
    with capture(model, "3", "0", stop=True) as acts:
        model(digits())
        pytest.fail("the block goes on")

    values, _ = by_hand(cnn(inplace=False), digits())
    assert ran == [0, 1, 2, 3]
    assert torch.equal(acts["3"].output, values[4])
    assert list(acts) == ["0", "3"]


def test_r3_stopping_leaves_no_note_and_ends_the_other_hooks():
    class Ends(hookline.ModuleHook):
        def __init__(self):
            self.events = []

        def forward_preprocess(self, call):
            self.events.append(("begin", call.label))

        def forward_postprocess(self, call):
            self.events.append(("end", call.label))

        def aborted(self, call, exception):
            self.events.append(("aborted", call.label, getattr(exception, "__notes__", [])))

    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    with Ends() as hook, capture(model, "0", stop=True):
        model(torch.ones(2))

    # The scope's hooks run first, so the end of the call that is captured is through.
    assert hook.events == [
        ("begin", "Sequential"),
        ("begin", "0"),
        ("end", "0"),
        ("aborted", "Sequential", []),
    ]


def test_stop_goes_through_models_that_catch_errors():
    class Careful(nn.Sequential):
        def forward(self, x):
            try:
                return super().forward(x)
            except Exception:  # noqa: BLE001
                pytest.fail("it is no error")

    with capture(model := Careful(nn.ReLU(), nn.ReLU()), "0", stop=True) as acts:
        model(torch.ones(2))

    assert list(acts) == ["0"]


def test_stop_only_swallows_its_own():
    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    reached = []
    with capture(model, "0", stop=True) as outer:
        with capture(model, "1", stop=True) as inner:
            model(torch.ones(2))
        reached.append("the block of the inner one is left by the outer one's stop")

    assert reached == []
    assert list(outer) == ["0"]
    assert list(inner) == []
    with pytest.raises(ZeroDivisionError), capture(model, "0", stop=True):
        _ = 1 / 0


def test_stop_keeps_the_graph_up_to_there():
    model = cnn(inplace=False)
    with capture(model, "0", stop=True, keep_graph=True) as acts:
        model(digits())
    acts["0"].output.sum().backward()

    assert model[0].weight.grad is not None


def test_without_being_reached_a_stop_lets_the_forward_end():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.ReLU(), nn.ReLU()

        def forward(self, x):
            return self.used(x)

    model = Branch()
    with capture(model, "used", "unused", stop=True) as acts:
        out = model(torch.ones(2))

    assert torch.equal(out, torch.ones(2))
    assert list(acts) == ["used"]


def test_containers_are_not_waited_for():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.ReLU(), nn.Tanh()])
            self.head = nn.Sigmoid()

        def forward(self, x):
            return self.head(self.blocks[1](self.blocks[0](x)))

    with capture(model := Net(), "blocks.**", stop=True) as acts:
        model(torch.ones(2))
        pytest.fail("the head was run")

    assert list(acts) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"what": ("output", "grad")}, "no gradient can be captured"),
        ({"what": "grad_input"}, "no gradient can be captured"),
        ({"calls": "last"}, 'calls="last" cannot be told'),
    ],
)
def test_r10_what_cannot_go_with_stop_is_refused(options, text):
    with pytest.raises(HookValueError, match=text):
        capture(cnn(), "0", stop=True, **options)


# Functions.


def test_functions_are_captured_by_address_forward_and_backward():
    class Attends(nn.Module):
        def forward(self, q, k):
            return F.softmax(q @ k.mT, -1) @ k + F.softmax(q, -1)

    model, x = Attends(), torch.randn(3, 4, requires_grad=True)
    weights, other = (x @ x.mT).softmax(-1), x.softmax(-1)
    expected = torch.autograd.grad((weights @ x + other).square().sum(), (weights, other))
    with capture(model, ":softmax", what=("input", "output", "grad")) as acts:
        model(x, x).square().sum().backward()

    held = acts[":softmax"]
    assert [call.index for call in held] == [0, 1]
    assert all(map(torch.equal, held.outputs, (weights, other)))
    assert all(map(torch.equal, held.grads, expected))
    assert torch.equal(held.first.input, x @ x.mT)
    assert torch.equal(acts[":softmax[1]"].output, other)
    assert held.type == "softmax"


def test_only_what_an_address_means_is_captured():
    model = cnn()
    with capture(model, "*:*conv2d", "6", what="output") as acts:
        model(digits())

    assert list(acts) == ["0:conv2d", "3:conv2d", "6"]


def test_in_place_functions_and_functions_that_only_write():
    class Writes(nn.Module):
        def forward(self, x):
            x = x.clone()
            x[0] = 7
            return x.mul_(2).add(1)

    model = Writes()
    with capture(model, ":setitem", ":mul_", what=("input", "output")) as acts:
        model(torch.ones(2))

    assert torch.equal(acts[":setitem"].input, torch.ones(2))
    assert torch.equal(acts[":setitem"].output, torch.tensor([7.0, 1.0]))
    assert torch.equal(acts[":mul_"].output, torch.tensor([14.0, 2.0]))


def test_a_scope_captures_all_functions_of_the_thread():
    x = torch.ones(2, requires_grad=True)
    with FunctionCaptureHook() as hook:
        torch.split(x * 2, 1)[0].sum().backward()

    assert list(hook.captured) == ["mul", "split", "sum"]
    assert [None if g is None else g.tolist() for g in hook.captured["split"].grad] == [[1.0], None]


def test_stop_at_a_function():
    model = cnn()
    ran = counting(model)
    with capture(model, "2:relu", "0", stop=True) as acts:
        model(digits())

    assert ran == [0, 1]
    assert list(acts) == ["0", "2:relu"]


def test_r10_functions_give_no_gradients_of_inputs():
    with pytest.raises(HookValueError, match="functions give no gradients of their inputs"):
        capture(cnn(), "0:conv2d", what="grad_input")


# Where hooks are seldom run.


def test_values_under_vmap_have_the_batch_in_front():
    model, xs = nn.Linear(3, 2), torch.randn(3, 5)
    with capture(model) as acts:
        out = torch.func.vmap(model, in_dims=1)(xs)

    assert torch.equal(acts[""].output, out)
    assert acts.nbytes == out.nbytes


def test_values_under_nested_transforms():
    model, xs = nn.Linear(2, 1), torch.randn(3, 4, 2)

    def loss(x):
        return model(x).sum()

    with capture(model, what="output") as acts:
        torch.func.vmap(torch.func.vmap(torch.func.grad(loss), in_dims=0), in_dims=1)(xs)

    assert acts[""].output.shape == (4, 3, 1)
    torch.testing.assert_close(acts[""].output, model(xs).detach().movedim(1, 0))


def test_inside_a_transform_values_are_those_of_the_transform():
    model, xs = nn.Linear(3, 2), torch.randn(5, 3)

    def run(x):
        with capture(model, what="output") as acts:
            model(x)
            return acts[""].output

    torch.testing.assert_close(torch.func.vmap(run)(xs), model(xs).detach())


def test_tensors_that_are_not_dense():
    class Sparse(nn.Module):
        def forward(self, x):
            return x.to_sparse(), x.to_mkldnn()

    model = Sparse()
    with capture(model, copy=False) as acts:
        model(torch.eye(3))

    assert all(torch.equal(held.to_dense(), torch.eye(3)) for held in acts[""].output)
    assert acts.nbytes == (2 * 8 + 4) * 3 + 36  # indices and values, then all


# Bad input.


def test_r10_options_are_checked():
    model = nn.ReLU()
    refused = [
        ({"what": "outputs"}, HookValueError, "what='outputs' is unknown"),
        ({"what": ()}, HookValueError, "choose one or several"),
        ({"what": 3}, HookTypeError, "what= takes one or several of 'input'"),
        ({"calls": "some"}, HookValueError, "calls='some' is unknown; choose one of 'all'"),
        ({"overflow": "newest", "limit": 1}, HookValueError, "overflow='newest'"),
        ({"overflow": "oldest"}, HookValueError, "needs limit="),
        ({"limit": 0}, HookValueError, "limit= is a number of bytes"),
        ({"limit": 0.5}, HookValueError, "limit= is a number of bytes"),
        ({"reduce": "mean"}, HookTypeError, "reduce= takes a function"),
        ({"dtype": "float16"}, HookTypeError, "dtype= takes a torch.dtype"),
        ({"device": "moon"}, HookValueError, "device= takes a device"),
        ({"copies": True}, TypeError, "copies"),
    ]
    for options, error, text in refused:
        with pytest.raises(error, match=text):
            capture(model, **options)
    assert not hookline.hooks_of(model)


def test_r10_patterns_are_checked():
    with pytest.raises(SelectionError, match="did you mean"):
        capture(cnn(), "00")
    with pytest.raises(HookTypeError):
        capture("model", "0")


def test_a_set_up_that_fails_half_way_leaves_nothing():
    model = nn.Sequential(nn.ModuleList([nn.ReLU()]))
    with pytest.raises(HookValueError, match="no forward"):
        capture(model, "0.0", "0")
    assert not hookline.hooks_of(model)


def test_r9_the_error_for_a_missing_name_says_what_happened():
    class Bypasses(nn.Module):
        def __init__(self):
            super().__init__()
            self.direct, self.idle = nn.Sequential(nn.ReLU()), nn.ReLU()

        def forward(self, x):
            return self.direct.forward(x)

    model = Bypasses()
    with capture(model, "direct", "idle", "direct.0") as acts:
        model(torch.ones(2))

    for name, cause in [
        ("direct", r"'direct': bypassed; .*forward\(\) was called directly"),
        ("idle", r"'idle': (never|not) called"),
        ("direc", "did you mean 'direct'"),
        ("", "selected are 'direct', 'idle', 'direct.0'"),
    ]:
        with pytest.raises(CaptureKeyError, match=cause):
            acts[name]
    assert [row.path for row in acts.silent()] == ["direct", "idle"]
    with pytest.raises(KeyError, match="not by 3"):
        acts[3]
    assert 3 not in acts


def test_r10_what_was_not_captured_is_told_from_what_did_not_arrive():
    model = nn.Linear(2, 2)
    with capture(model) as acts:
        model(torch.ones(1, 2))

    with pytest.raises(CaptureError, match=r"no gradient of the output .*run backward inside"):
        _ = acts[""].grad
    with pytest.raises(CaptureError, match=r"the input of .* ask for it: what=\('input'"):
        _ = acts[""].input
    with pytest.raises(CaptureError, match="'outcome' is nothing that can be captured"):
        acts[""].first.get("outcome")
    assert acts[""].grads == [None]


def test_calls_that_cannot_be_joined():
    model = nn.ReLU()
    with capture(model) as acts:
        model(torch.ones(2, 3))
        model(torch.ones(2, 4))

    assert acts[""].concat(dim=1).shape == (2, 7)
    with pytest.raises(CaptureError, match="cannot be joined in dimension 0"):
        acts[""].concat()


def test_captures_show_themselves():
    model = nn.Sequential(nn.Linear(2, 3))
    with capture(model, "0") as acts:
        model(torch.ones(1, 2)).sum().backward()

    assert (
        repr(acts["0"])
        == "<Captured '0' (Linear), 1 call: output float32[1, 3], grad float32[1, 3]>"
    )
    assert repr(acts).startswith("<Capture: 1 names, 24 bytes\n  <Captured '0'")
    assert "call 0 of pass" in repr(acts["0"].first)


def test_gradients_of_the_inputs_of_all_calls():
    """Of a layer called twice, each call's own; None for a call whose gradient never came."""
    layer = nn.Linear(3, 2)
    first, second = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    with capture(layer, "", what="grad_input") as acts:
        kept = layer(first)
        layer(second)
        (kept * kept).sum().backward()
    wanted = torch.autograd.grad((layer(first) ** 2).sum(), first)[0]
    got, missing = acts[""].grad_inputs
    assert torch.equal(got, wanted)
    assert missing is None


@pytest.mark.parametrize("what", ["grad", "grad_input", ("output", "grad", "grad_input")], ids=str)
def test_r9_gradients_that_were_asked_for_and_never_came_are_silent(what):
    """Each kind by itself, until one came; gradients that are there by default are no matter."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4, requires_grad=True)
    kinds = [what] if isinstance(what, str) else ["grad", "grad_input"]
    with hookline.capture(model, "0", "1", what=what) as acts:
        assert [row.cause for row in acts.silent()] == ["never called"] * 2
        with torch.no_grad():
            model(x)
        rows = [(row.path, row.type, row.cause, *row.hooks) for row in acts.silent()]
        assert rows == [
            (path, kind, "no gradient", each)
            for path, kind in (("0", "Linear"), ("1", "ReLU"))
            for each in kinds
        ]
        assert "call backward() while" in acts.silent()[0].advice
        model(x).sum().backward()
        assert acts.silent() == []
    with hookline.capture(model) as acts, torch.no_grad():
        model(x)
    assert acts.silent() == []


def test_r10_options_that_there_are_not():
    """With a near name, or all; of each verb its own."""
    model = nn.ReLU()
    with pytest.raises(HookTypeError, match="capture takes no kalls=; did you mean 'calls'"):
        hookline.capture(model, kalls="output")
    with pytest.raises(HookTypeError, match="attention takes no what=; its options are calls,"):
        hookline.attention(model, what="output")
