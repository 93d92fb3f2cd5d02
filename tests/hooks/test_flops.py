"""`FlopHook` at both levels, against torch's own counter and formulas worked out by hand."""

from __future__ import annotations

import this
from collections import Counter

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hookline import function_hooks, module_hooks
from hookline.hooks.formulas import flops_of

LEVELS = [module_hooks.FlopHook, function_hooks.FlopHook]
TEXT = torch.tensor(list("".join(this.d.get(c, c) for c in this.s).encode()))


def images(count):
    data, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(data[:count], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return pixels, torch.tensor(labels[:count])


def tokens(rows, length):
    return TEXT[: rows * length].view(rows, length)


def mlp():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 10), nn.GELU())
    )
    pixels, labels = images(16)
    return model, lambda: F.cross_entropy(model(pixels), labels)


def cnn():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, stride=2, groups=4),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    pixels, labels = images(16)
    model(pixels)
    return model, lambda: F.cross_entropy(model(pixels), labels)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=128, n_positions=32, n_embd=16, n_layer=2, n_head=2, attn_implementation="eager"
    )
    model = GPT2LMHeadModel(config)
    ids = tokens(2, 20)
    return model, lambda: model(ids, labels=ids).loss


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=128,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config)
    return model, lambda: model(tokens(2, 20), labels=torch.tensor([0, 1])).loss


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        attn_implementation="eager",
    )
    model = ViTForImageClassification(config)
    pixels, labels = images(4)
    return model, lambda: model(pixels, labels=labels).loss


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(128, 16), nn.TransformerEncoder(layer, 2))
    # With gradients of the weights asked for, attention is computed by plain products.
    for each in model.modules():
        if isinstance(each, nn.MultiheadAttention):
            each.dropout = 0.1
    return model, lambda: model(tokens(2, 20)).square().mean()


MODELS = [mlp, cnn, gpt2, bert, vit, encoder]


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def case(request):
    torch.manual_seed(0)
    return request.param()


def counted(work):
    """What torch counts, by operator in all and by module path below the root."""
    with FlopCounterMode(display=False) as counter:
        work()
    tables = counter.get_flop_counts()
    by_operator = {str(k): v for k, v in tables.pop("Global", {}).items()}
    by_path = {key.partition(".")[2]: sum(table.values()) for key, table in tables.items()}
    return by_operator, by_path


def operators(rows):
    found = Counter()
    for row in rows:
        found.update(dict(row.operators))
    return dict(found)


@pytest.mark.parametrize("make", LEVELS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
def test_every_operator_is_counted_as_torch_counts_it(case, make, backward):
    """The sum by operator is that of `FlopCounterMode`, forward alone and with the backward."""
    _, loss = case
    work = (lambda: loss().backward()) if backward else loss
    by_operator, _ = counted(work)
    with make() as flops:
        work()

    assert by_operator
    assert operators(flops.rows()) == by_operator
    assert flops.total_flops() == sum(by_operator.values())
    assert flops.uncounted() == []


def by_path(rows, direction):
    """The totals of modules that are not zero, by path."""
    found = Counter()
    for row in rows:
        if row.path is not None and row.direction == direction and row.total_flops:
            found[row.path] += row.total_flops
    return dict(found)


def test_every_module_makes_in_forward_what_torch_counts_for_it(case):
    """A path's total is its line in torch's table by module."""
    _, loss = case
    _, table = counted(loss)
    with module_hooks.FlopHook() as flops:
        loss()

    assert by_path(flops.rows(), "forward") == table


@pytest.mark.parametrize(
    ("make", "fed"),
    [
        (mlp, "1"),
        (gpt2, None),
        (bert, None),
        (vit, "vit.embeddings.patch_embeddings.projection"),
        (encoder, None),
    ],
)
def test_every_module_makes_in_backward_two_gradients_of_each_product(make, fed):
    """Of a product both matrices get a gradient, each a product of its size; data gets none.

    Torch's table by module is no measure here: where two layers feed one, it takes what the
    backward of that does for the backward of one of the two.
    """
    _, loss = make()
    with module_hooks.FlopHook() as flops:
        loss().backward()

    expected = {path: 2 * n for path, n in by_path(flops.rows(), "forward").items()}
    for path in expected if fed else ():
        if f"{fed}.".startswith(f"{path}." if path else ""):
            expected[path] -= by_path(flops.rows(), "forward")[fed]
    assert by_path(flops.rows(), "backward") == expected


# Formulas that torch lacks.


def product(m, k, n):
    return 2 * m * k * n


@pytest.mark.parametrize("make", LEVELS)
@pytest.mark.parametrize("heads", [6, 2], ids=["plain", "grouped"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_on_a_cpu_is_counted_by_hand(make, heads, masked):
    """Scores and weighted values; in backward the scores again and four gradients."""
    b, h, s, t, d, e = 2, 6, 5, 7, 8, 8
    query = torch.randn(b, h, s, d, requires_grad=True)
    key, value = torch.randn(b, heads, t, d), torch.randn(b, heads, t, e)
    mask = torch.zeros(s, t) if masked else None

    def attend():
        return F.scaled_dot_product_attention(
            query, key.requires_grad_(), value.requires_grad_(), mask, enable_gqa=heads != h
        )

    with make() as flops:
        attend().sum().backward()

    scores, values = product(s, d, t), product(s, t, e)
    assert operators(flops.rows()) == {
        "aten._scaled_dot_product_flash_attention_for_cpu": b * h * (scores + values),
        "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
            b * h * (scores + 2 * scores + 2 * values)
        ),
    }
    assert counted(lambda: attend().sum().backward())[0] == {}


def test_attention_on_a_cpu_makes_as_much_as_torch_counts_on_a_gpu():
    """The number is that of torch's formula for the same operator of CUDA devices."""
    aten = torch.ops.aten
    query, key = torch.empty(2, 6, 5, 8), torch.empty(2, 3, 7, 8)
    out = torch.empty(2, 6, 5, 8)
    for ours, theirs, args in (
        ("", "", (query, key, key)),
        ("_backward", "_backward", (out, query, key, key)),
    ):
        operator = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{ours}").default
        formula = flop_registry[getattr(aten, f"_scaled_dot_product_flash_attention{theirs}")]
        assert flops_of(operator, args, {}, out) == formula(*args, out_val=out)


GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
SEQUENCES, STEPS, SIZE, STATES = 3, 5, 4, 6


@pytest.mark.parametrize("mode", ["train", "no_grad", "inference"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("cls", GATES)
def test_recurrent_layers_are_counted_by_hand(cls, options, mode):
    """Each step of each sequence makes an input and a recurrent product for each gate."""
    layer = cls(SIZE, STATES, batch_first=True, **options)
    rows = torch.randn(SEQUENCES, STEPS, SIZE)
    directions = 2 if layer.bidirectional else 1
    gate_rows = GATES[cls] * STATES
    expected = 0
    for depth in range(layer.num_layers):
        size = SIZE if depth == 0 else directions * STATES
        step = product(1, size, gate_rows) + product(1, STATES, gate_rows)
        expected += SEQUENCES * STEPS * directions * step

    context = {
        "train": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }
    with context[mode](), module_hooks.FlopHook() as flops:
        layer(rows)

    (row,) = flops.rows()
    assert row.self_flops == row.total_flops == expected
    assert flops.uncounted() == []


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_backward_of_an_lstm_is_counted_by_hand(bidirectional):
    """Each product of the forward has a gradient of its weight and one of its vector."""
    layer = nn.LSTM(SIZE, STATES, num_layers=2, bidirectional=bidirectional)
    with module_hooks.FlopHook() as flops:
        layer(torch.randn(STEPS, SEQUENCES, SIZE))[0].sum().backward()

    forward, backward = flops.rows()
    assert backward.direction == "backward"
    assert backward.self_flops == 2 * forward.self_flops
    assert dict(backward.operators) == {"aten.mkldnn_rnn_layer_backward": backward.self_flops}


def test_packed_sequences_make_no_flops_for_padding():
    """Only the steps that there are count."""
    lengths = [5, 3, 2]
    rows = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, SIZE), lengths, batch_first=True)
    with module_hooks.FlopHook() as flops:
        nn.LSTM(SIZE, STATES)(rows)

    assert flops.total_flops() == sum(lengths) * product(1, SIZE + STATES, 4 * STATES)


def test_recurrent_layers_of_other_devices_are_counted_by_their_weights():
    """CUDA's operators do all layers at once; the mask of the backward counts."""
    layer = nn.GRU(SIZE, STATES, num_layers=2, bidirectional=True)
    rows = torch.empty(STEPS, SEQUENCES, SIZE)
    weights = list(layer.parameters())
    with module_hooks.FlopHook() as flops:
        layer(rows)  # on a CPU it is made of plain products
    operator = torch.ops.aten._cudnn_rnn.default
    expected = flops.total_flops()
    assert flops_of(operator, (rows, weights, 4, None, None, None, 2), {}, None) == expected
    backward = torch.ops.aten._cudnn_rnn_backward.default
    for mask, times in (([True] * 4, 2), ([True, True, True, False], 1)):
        args = (rows, weights, 4, None, [1, 2, 3, 4], mask)
        assert flops_of(backward, args, {}, None) == times * expected


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: torch.ones(3, 4) @ torch.ones(4), product(3, 4, 1)),
        (lambda: torch.addmv(torch.ones(3), torch.ones(3, 4), torch.ones(4)), product(3, 4, 1)),
        (lambda: torch.ones(4) @ torch.ones(4), product(1, 4, 1)),
        (lambda: torch.vdot(torch.ones(4), torch.ones(4)), product(1, 4, 1)),
        (
            lambda: torch.addbmm(torch.ones(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
            2 * product(3, 4, 5),
        ),
        (
            lambda: torch._addmm_activation(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
            product(3, 4, 5),
        ),
        (lambda: torch.einsum("bij,kj->bik", torch.ones(2, 3, 4), torch.ones(5, 4)), 240),
        (lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5), out=torch.ones(3, 5)), 120),
    ],
    ids=["mv", "addmv", "dot", "vdot", "addbmm", "activation", "einsum", "out"],
)
def test_products_with_vectors_and_others_are_counted_by_hand(work, expected):
    """Two for each multiplication that a product of matrices needs."""
    with function_hooks.FlopHook() as flops:
        work()

    assert flops.total_flops() == expected
    assert flops.uncounted() == []
