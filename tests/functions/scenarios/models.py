"""Modules, checkpoints and compiled regions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.functions.scenario import Case, leaf, scenario

# ----------------------------------------------------------------------------------- modules


def of(model: nn.Module, *inputs: torch.Tensor) -> Case:
    """A model on its inputs."""
    return Case(lambda: model(*inputs), [*inputs, *model.parameters()])


@scenario("modules", "conv2d (add_) batch_norm relu max_pool2d flatten linear")
def convolution() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(18, 3),
    )
    return of(model, leaf(2, 1, 8, 8))


@scenario(
    "modules",
    "layer_norm transpose multi_head_attention_forward transpose dropout add"
    " layer_norm linear relu dropout linear dropout add",
)
def encoder_layer() -> Case:
    return of(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), leaf(2, 5, 4))


@scenario("modules", "_weight_norm linear")
def normed_weight() -> Case:
    # Torch's parametrizations hold each other in cycles.
    return replace(of(weight_norm(nn.Linear(3, 2)), leaf(4, 3)), cyclic=True)


@scenario("modules", "linear dropout linear alpha_dropout")
def random_numbers() -> Case:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 8), nn.AlphaDropout())
    return of(model, leaf(4, 3))


@scenario("modules", "embedding (zeros) (zeros) lstm getitem linear")
def recurrent_classifier() -> Case:
    embed, lstm, head = nn.Embedding(7, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    parameters = [p for layer in (embed, lstm, head) for p in layer.parameters()]
    return Case(lambda: head(lstm(embed(tokens))[0][:, -1]), parameters)


@scenario("modules", "(zeros) gru_cell lstm_cell linear")
def cells() -> Case:
    gru, lstm, head = nn.GRUCell(3, 4), nn.LSTMCell(4, 2), nn.Linear(2, 1)
    x, h, c = leaf(2, 3), leaf(2, 2), leaf(2, 2)
    parameters = [p for layer in (gru, lstm, head) for p in layer.parameters()]
    return Case(lambda: head(lstm(gru(x, torch.zeros(2, 4)), (h, c))[0]), [x, h, c, *parameters])


@scenario("modules", "transpose transpose multi_head_attention_forward transpose")
def attention() -> Case:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x, memory = leaf(2, 5, 4), leaf(2, 6, 4)
    return Case(lambda: layer(x, memory, memory), [x, memory, *layer.parameters()])


@scenario("modules", "linear linear linear")
def shared_layer() -> Case:
    layer = nn.Linear(3, 3)
    return of(nn.Sequential(layer, layer, layer), leaf(2, 3))


@scenario("modules", "bilinear sum add cosine_similarity pixel_shuffle")
def others() -> Case:
    first, second, third = nn.Bilinear(2, 2, 4), nn.CosineSimilarity(), nn.PixelShuffle(2)
    x, y = leaf(3, 2), leaf(3, 2)

    def forward():
        return second(first(x, y), y.sum() + first.bias), third(first.weight)

    return Case(forward, [x, y, *first.parameters()])


# -------------------------------------------------------------------------------- checkpoints


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


@scenario("checkpoint", "mul linear tanh linear mul", repeated="linear tanh linear")
def of_modules() -> Case:
    part, x = block(), leaf(2, 3)

    def forward():
        return checkpoint(part, x * 2, use_reentrant=False) * 3

    return Case(forward, [x, *part.parameters()])


@scenario("checkpoint", "mul exp sin mul", repeated="exp sin")
def of_functions() -> Case:
    x = leaf(3)

    def forward():
        return checkpoint(lambda v: v.exp().sin(), x * 2, use_reentrant=False) * 3

    return Case(forward, [x])


@scenario("checkpoint", "mul linear tanh linear mul", repeated="linear tanh linear")
def of_modules_reentrant() -> Case:
    part, x = block(), leaf(2, 3)

    def forward():
        return checkpoint(part, x * 2, use_reentrant=True) * 3

    return Case(forward, [x, *part.parameters()], referenced=False)


@scenario("checkpoint", "mul exp sin mul", repeated="exp sin")
def of_functions_reentrant() -> Case:
    x = leaf(3)

    def forward():
        return checkpoint(lambda v: v.exp().sin(), x * 2, use_reentrant=True) * 3

    return Case(forward, [x], referenced=False)


@scenario("checkpoint", "mul linear tanh linear tanh", repeated="linear tanh")
def of_a_sequence() -> Case:
    part, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh()), leaf(2, 3)
    return Case(
        lambda: checkpoint_sequential(part, 2, x * 2, use_reentrant=False),
        [x, *part.parameters()],
    )


# --------------------------------------------------------------------------- compiled regions


@torch.compile(backend="aot_eager")
def compiled(x, w):
    """A region that is one function."""
    return (x @ w).tanh() * 2


@scenario("compiled", "CompiledFunction mul")
def function() -> Case:
    x, w = leaf(2, 3), leaf(3, 3)
    return Case(lambda: compiled(x, w) * 3, [x, w])
