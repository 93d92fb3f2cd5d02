"""Troubles people report: inputs and outputs that are no plain tensors.

The numbers are those of the list of reported troubles that this library was built against.
"""

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from hookline import (
    Inputs,
    ModuleHook,
    register_forward_hook,
    register_forward_pre_hook,
    register_full_backward_hook,
    with_hooks,
)
from hookline.torch_base.tree import leaves, map_tensors


class Gradients(ModuleHook):
    """Keeps gradients of outputs and inputs, by path."""

    needs_grad_input = True

    def __init__(self):
        self.outputs, self.inputs = {}, {}

    def backward_postprocess(self, call):
        self.outputs[call.path], self.inputs[call.path] = call.grad_output, call.grad_input


def packed(x):
    return pack_padded_sequence(x, [5, 3], batch_first=True)


class DictOutput(nn.Module):
    def forward(self, x):
        return {"a": x * 2, "n": 3, "text": "as it was"}


@dataclasses.dataclass
class Result(OrderedDict):
    """A dataclass that is a mapping too, as libraries have them."""

    y: torch.Tensor = None

    def __post_init__(self):
        self["y"] = self.y


@pytest.mark.parametrize(
    ("build", "make", "names"),
    [
        (lambda: nn.LSTM(3, 4, batch_first=True), lambda x: x, ["[0]", "[1][0]", "[1][1]"]),
        (lambda: nn.GRU(3, 4, batch_first=True), lambda x: x, ["[0]", "[1]"]),
        (lambda: nn.LSTM(3, 4, batch_first=True), packed, ["[0].data", "[1][0]", "[1][1]"]),
        (DictOutput, lambda x: x, ["['a']"]),
    ],
    ids=["LSTM", "GRU", "packed LSTM", "dict"],
)
def test_c03_a_hook_maps_over_the_tensors_of_any_output(build, make, names):
    """The structure is kept, each tensor has a path, and what is no tensor is left alone."""
    module, x = build(), torch.randn(2, 5, 3)
    expected = module(make(x))
    seen = []

    def half(tensor):
        return tensor / 2 if tensor.is_floating_point() else tensor

    def halve(module, args, output):
        seen.extend(path for path, tensor in leaves(output) if tensor.is_floating_point())
        return map_tensors(half, output)

    with register_forward_hook(module, halve):
        found = module(make(x))

    assert seen == [f"output{name}" for name in names]
    assert type(found) is type(expected)
    for (path, new), (same, old) in zip(leaves(found), leaves(expected), strict=True):
        assert path == same
        assert torch.equal(new, half(old))
    if isinstance(expected, dict):
        assert (found["n"], found["text"]) == (3, "as it was")


def test_c03_gradients_of_a_packed_sequence():
    """They come back in a packed sequence, and are those of plain autograd."""
    lstm, seen = nn.LSTM(3, 4, batch_first=True), []
    x = torch.randn(2, 5, 3, requires_grad=True)

    def hook(module, grad_input, grad_output):
        seen.append((grad_input, grad_output))

    with register_full_backward_hook(lstm, hook):
        out, _ = lstm(packed(x))
        (out.data * torch.arange(32.0).reshape(8, 4)).sum().backward()

    (((of_input,), (of_output, of_state)),) = seen
    assert isinstance(of_output, PackedSequence)
    assert torch.equal(of_output.data, torch.arange(32.0).reshape(8, 4))
    assert of_state == (None, None)
    assert isinstance(of_input, PackedSequence)
    assert torch.equal(of_input.data, packed(x.grad).data)


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=9, intermediate_size=8, **sizes)).eval()


def test_c03_every_module_of_a_real_model():
    """Mappings, tuples and None of a transformer: outputs and gradients of all its modules."""
    model, rows = bert(), {}

    class Shapes(Gradients):
        def forward_postprocess(self, call):
            rows[call.path] = [(path, tuple(tensor.shape)) for path, tensor in leaves(call.out)]

    with Shapes() as seen:
        model(torch.tensor([[1, 2, 3]])).last_hidden_state.sum().backward()

    assert dict(rows[""])["output.last_hidden_state"] == (1, 3, 8)
    assert rows["encoder.layer.0.attention.self.query"] == [("output", (1, 3, 8))]
    assert type(seen.outputs[""]).__name__ == "BaseModelOutputWithPoolingAndCrossAttentions"
    assert seen.outputs[""].last_hidden_state.tolist() == torch.ones(1, 3, 8).tolist()
    assert seen.outputs[""].pooler_output is None


class Scale(nn.Module):
    def forward(self, x, scale=None, *rest, bias=0, **more):
        return x * scale + bias


@pytest.mark.parametrize(
    "call",
    [
        lambda module, x, scale: module(x, scale),
        lambda module, x, scale: module(x, scale=scale),
        lambda module, x, scale: module(scale=scale, x=x),
    ],
    ids=["positional", "mixed", "keywords"],
)
def test_c11_inputs_have_one_view(call):
    """However they are passed, a hook finds inputs by the names of the parameters of `forward`."""
    module, seen = Scale(), []

    class Notes(ModuleHook):
        def forward_preprocess(self, call):
            seen.append(call.arguments)

        def forward_postprocess(self, call):
            seen.append(call.arguments)

    x, scale = torch.ones(2), torch.tensor(3.0)
    with Notes():
        call(module, x, scale)

    assert len(seen) == 2
    for arguments in seen:
        assert list(arguments) == ["x", "scale"]
        assert arguments["x"] is x
        assert arguments["scale"] is scale


def test_c11_defaults_and_extra_inputs():
    """What was not given is not invented; extra inputs are under their parameter's name."""
    module, seen = Scale(), []

    class Notes(ModuleHook):
        def forward_preprocess(self, call):
            seen.append(call.arguments)

    with Notes():
        module(1, 2, 3, 4, bias=5, other=6)
        module(1, 2)
    assert seen == [
        {"x": 1, "scale": 2, "rest": (3, 4), "bias": 5, "more": {"other": 6}},
        {"x": 1, "scale": 2},
    ]


def test_c11_keyword_inputs_reach_every_manner_of_hook():
    """Torch-style hooks by signature, value hooks as `Inputs`; each can replace them."""
    module, seen = Scale(), []

    def pre(module, args, kwargs):
        seen.append((args, sorted(kwargs)))
        return Inputs(args, kwargs | {"scale": 10})

    def post(module, args, kwargs, output):
        seen.append((args, kwargs["scale"], output))

    with register_forward_pre_hook(module, pre), register_forward_hook(module, post):
        assert module(x=1, scale=2) == 10
    assert seen == [((), ["scale", "x"]), ((), 10, 10)]

    wrapped, hooks = with_hooks(Scale())
    hooks.add_forward_pre_hook(lambda inputs: Inputs((5,), {"scale": inputs.kwargs["scale"]}))
    assert wrapped(x=1, scale=2) == 10
    hooks.registry.clear()


def test_c11_a_pre_hook_may_move_arguments():
    """All positional to all keywords, and one more: complete inputs can be anything."""
    module = Scale()

    def moves(module, args, kwargs):
        return Inputs((), {"x": args[0], "scale": args[1], "bias": 100})

    with register_forward_pre_hook(module, moves):
        assert module(2, 3) == 106


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list", "dict", "mapping dataclass"])
def test_c20_backward_hooks_run_for_every_kind_of_output(kind):
    """One run of the hook with the gradient in the output's structure, and no warning."""
    wrap = {
        "tensor": lambda y: y,
        "tuple": lambda y: (y,),
        "list": lambda y: [y],
        "dict": lambda y: {"y": y},
        "mapping dataclass": lambda y: Result(y=y),
    }[kind]

    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return wrap(self.linear(x))

    module, fired = Wraps(), []
    with register_full_backward_hook(module, lambda module, gi, go: fired.append((gi, go))):
        out = module(torch.randn(2, 3, requires_grad=True))
        (((path, tensor),),) = [list(leaves(out))]
        tensor.sum().backward()

    (((of_input,), of_output),) = fired
    assert type(of_output) is (tuple if kind == "tensor" else type(out))
    assert [gradient.tolist() for _, gradient in leaves(of_output)] == [[[1.0] * 3] * 2]
    assert torch.equal(of_input, module.linear.weight.sum(0).expand(2, 3))
    ends = {"tensor": "", "dict": "['y']", "mapping dataclass": ".y"}
    assert path == f"output{ends.get(kind, '[0]')}"


def test_c20_a_language_model_with_a_loss():
    """The output of a real model, a mapping with loss and logits: both have their gradients."""
    model, seen = gpt2(), Gradients()
    ids = torch.tensor([[1, 2, 3, 4]])
    with seen:
        out = model(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()

    # The loss was made of the logits, so these have a gradient too.
    logits = model(input_ids=ids).logits.detach().requires_grad_()
    nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
    grads = seen.outputs[""]
    assert type(grads) is type(out)
    assert grads.loss.item() == 1.0
    assert torch.allclose(grads.logits, logits.grad, atol=1e-6)
    assert torch.allclose(seen.outputs["lm_head"][0], logits.grad, atol=1e-6)
    assert list(seen.inputs[""].kwargs) == ["input_ids", "labels", "use_cache"]
    assert set(seen.inputs[""].kwargs.values()) == {None}
