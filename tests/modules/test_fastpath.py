"""Torch's fused path through encoders: hooks inside fire, and nobody else loses it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import hookline
from hookline import ModuleHook, add_hook, clear_hooks

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

X = torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def encoder():
    """An encoder of two layers, in eval mode."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


class Paths(ModuleHook):
    def __init__(self):
        self.seen = []

    def forward_postprocess(self, call):
        self.seen.append(call.path)


@pytest.fixture
def fused(monkeypatch):
    """How often torch's fused kernel ran, as a list that grows."""
    runs, kernel = [], torch._transformer_encoder_layer_fwd

    def counting(*args, **kwargs):
        runs.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counting)
    return runs


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_the_fused_path_is_there_without_hooks(fused):
    """What the other tests are about: torch calls no inner module in eval without gradients."""
    encoder()(X)

    assert len(fused) == 2


def test_a_scope_sees_the_modules_inside(fused):
    """In a scope, every module that computes has its event; the result is as good as equal."""
    model = encoder()
    plain = model(X)
    fused.clear()
    with Paths() as paths:
        out = model(X)

    assert fused == []
    layer = ["self_attn", "dropout1", "norm1", "linear1", "dropout", "linear2", "dropout2", "norm2"]
    inner = [[f"layers.{n}.{name}" for name in layer] + [f"layers.{n}"] for n in range(2)]
    assert paths.seen == [*inner[0], *inner[1], ""]
    torch.testing.assert_close(out, plain)


def test_where_a_mask_is_given_the_places_that_count_agree(fused):
    """The fused path fills padded places with zeros; all others are the same."""
    model = encoder()
    plain = model(X, src_key_padding_mask=PADDING)
    with Paths():
        out = model(X, src_key_padding_mask=PADDING)

    torch.testing.assert_close(out[~PADDING], plain[~PADDING])
    assert torch.count_nonzero(plain[PADDING]) == 0
    assert out.shape == plain.shape


def test_a_hook_on_one_inner_module_is_enough(fused):
    """The hooked module is called, inside of modules that nobody watches."""
    model, seen = nn.Sequential(encoder()), []
    inner = model[0].layers[1].linear1
    hookline.register_forward_hook(inner, lambda module, args, out: seen.append(out.shape))
    model(X)

    assert seen == [(2, 5, 16)]
    assert fused == []
    clear_hooks(model)
    model(X)
    assert len(fused) == 2


def test_a_layer_by_itself(fused):
    """What holds of an encoder holds of one of its layers."""
    layer = encoder().layers[0]
    add_hook(layer.norm2, paths := Paths())
    layer(X)

    assert paths.seen == ["norm2"]
    assert fused == []


def test_a_hook_on_the_encoder_itself_leaves_it_fused(fused):
    """With nothing watched inside, results are bitwise those without hooks."""
    model = encoder()
    plain = model(X, src_key_padding_mask=PADDING)
    add_hook(model, paths := Paths())
    hookline.register_forward_pre_hook(model, lambda module, args: None)
    out = model(X, src_key_padding_mask=PADDING)

    assert paths.seen == [""]
    assert len(fused) == 4
    assert torch.equal(out, plain)


def test_other_models_are_untouched(fused):
    """Hooks on one encoder leave another one fused, and its results bitwise the same."""
    hooked, other = encoder(), encoder()
    plain = other(X)
    fused.clear()
    add_hook(hooked.layers[0].linear1, Paths())
    hooked(X)
    out = other(X)

    assert len(fused) == 2
    assert torch.equal(out, plain)


def test_another_thread_is_untouched(fused):
    """A scope in one thread leaves calls of another fused."""
    model = encoder()
    with Paths() as paths, ThreadPoolExecutor(1) as pool:
        pool.submit(torch.inference_mode()(model), X).result()

    assert len(fused) == 2
    assert paths.seen == []


def test_r2_attention_keeps_its_own_fused_path():
    """`nn.MultiheadAttention` calls no module anyway: its results are bitwise the same."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    flags = []
    plain, _ = attention(X, X, X)
    attention.register_forward_pre_hook(
        lambda *_: flags.append(torch.backends.mha.get_fastpath_enabled())
    )
    with Paths() as paths:
        out, _ = attention(X, X, X)

    assert paths.seen == [""]
    assert flags == [True]
    assert torch.equal(out, plain)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_r1_the_setting_is_put_back(enabled, fail):
    """After the call it is what it was, also after an error, also if the user turned it off."""
    model, flags = encoder(), []

    def look(module, args):
        flags.append(torch.backends.mha.get_fastpath_enabled())
        if fail:
            raise LookupError

    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with hookline.register_forward_pre_hook(model.layers[1].linear2, look):
            if fail:
                with pytest.raises(LookupError):
                    model(X)
            else:
                model(X)
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert flags == [False]


def test_r11_two_threads_inside_at_once():
    """The first one out does not turn the fused path on under the other one's feet."""
    second_is_in, first_is_out = threading.Event(), threading.Event()
    first, second = encoder(), encoder()
    add_hook(first.layers[1], Paths())
    add_hook(second.layers[1].linear2, seen := Paths())

    def wait_in_first(module, args):
        second_is_in.wait(60)

    def wait_in_second(module, args):
        second_is_in.set()
        first_is_out.wait(60)

    hookline.register_forward_pre_hook(first.layers[0].linear1, wait_in_first)
    hookline.register_forward_pre_hook(second.layers[0].linear1, wait_in_second)

    def run_first():
        with torch.no_grad():
            first(X)
        first_is_out.set()

    def run_second():
        with torch.no_grad():
            second(X)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run_first), pool.submit(run_second)]:
            future.result()

    assert seen.seen == ["layers.1.linear2"]
    assert torch.backends.mha.get_fastpath_enabled()
