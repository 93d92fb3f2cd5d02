"""R2: a function hook with every callback on changes no bit of what a model computes."""

from collections import Counter

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from hookline import FunctionHook


class Everything(FunctionHook):
    """Takes part in all phases, keeps inputs, and looks at all that it is given."""

    retain_inputs = True

    def __init__(self):
        self.counts = Counter()

    def _look(self, phase, *tensors):
        self.counts[phase] += 1
        for tensor in tensors:
            if tensor is not None and tensor.is_floating_point() and tensor.numel():
                tensor.detach().abs().max()
                tensor.sum()

    def forward_preprocess(self, function, in_data):
        self._look("forward_pre", *in_data)

    def forward_postprocess(self, function, in_data):
        self._look("forward", *function.outputs)

    def backward_preprocess(self, function, in_data, out_grad):
        self._look("backward_pre", *in_data, *out_grad)

    def backward_postprocess(self, function, in_data, out_grad):
        self._look("backward", *in_data, *out_grad)


def gpt2():
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=32)
    ids = torch.randint(32, (2, 8))
    return GPT2LMHeadModel(config), lambda model: model(input_ids=ids, labels=ids).loss


def cnn():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(36, 10),
    )
    images, labels = torch.rand(8, 1, 8, 8), torch.randint(10, (8,))
    return model, lambda model: nn.functional.cross_entropy(model(images), labels)


def lstm():
    model, x = nn.LSTM(3, 5, num_layers=2, dropout=0.2, bidirectional=True), torch.randn(7, 2, 3)

    def loss(model):
        out, (h, c) = model(x)
        return out.square().sum() + h.sum() * c.sum()

    return model, loss


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 8)
    return model, lambda model: model(x).square().mean()


def train(make):
    """Two steps of training: all losses, gradients, parameters, buffers, and the random state."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
    return [*seen, *(t.clone() for t in model.state_dict().values()), torch.get_rng_state()]


def nodes(tensor):
    """How many autograd nodes of each kind a tensor depends on."""
    found, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [following for following, _ in node.next_functions]
    return Counter(node.name() for node in found)


MODELS = [gpt2, cnn, lstm, encoder]


@pytest.mark.parametrize("make", MODELS)
def test_r2_training_is_bitwise_the_same(make):
    """Losses, gradients, weights, buffers and random numbers of a training are bitwise equal."""
    expected = train(make)
    with Everything() as hook:
        seen = train(make)

    assert set(hook.counts) == {"forward_pre", "forward", "backward_pre", "backward"}
    assert hook.counts["backward_pre"] == hook.counts["backward"]
    assert len(seen) == len(expected)
    for place, (new, old) in enumerate(zip(seen, expected, strict=True)):
        assert torch.equal(new, old), place


@pytest.mark.parametrize("make", MODELS)
def test_r2_graph_is_the_same(make):
    """No autograd node is added or missing."""
    torch.manual_seed(0)
    model, loss_of = make()
    expected = nodes(loss_of(model))
    with Everything():
        assert nodes(loss_of(model)) == expected


@pytest.mark.parametrize("make", [gpt2, cnn, lstm])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_r2_evaluation_is_bitwise_the_same(make, context):
    """The same for evaluation without gradients."""
    torch.manual_seed(0)
    model, loss_of = make()
    model.eval()
    with context():
        expected = loss_of(model)
        with Everything() as hook:
            seen = loss_of(model)

    assert torch.equal(seen, expected)
    assert set(hook.counts) == {"forward_pre", "forward"}


def test_r2_fast_path_of_encoders_is_off():
    """In evaluation an encoder runs as with torch's fast path turned off, since a mode is on."""
    torch.manual_seed(0)
    model, loss_of = encoder()
    model.eval()
    with torch.no_grad():
        fast = loss_of(model)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            slow = loss_of(model)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        with Everything():
            seen = loss_of(model)

    assert torch.equal(seen, slow)
    torch.testing.assert_close(seen, fast)
    assert torch.backends.mha.get_fastpath_enabled()


def test_r2_returned_object_is_what_the_function_made():
    """What the caller gets is the object that the function returned, and that hooks saw."""
    seen = []

    class Keep(FunctionHook):
        def forward_postprocess(self, function, in_data):
            seen.extend([*in_data, *function.outputs])

        def backward_preprocess(self, function, in_data, out_grad):
            pass

    x = torch.ones(2, requires_grad=True)
    with Keep():
        y = torch.exp(x)
        z = y.mul_(2)

    assert [id(t) for t in seen] == [id(x), id(y), id(y), id(y)]
    assert z is y
    del seen[:]
