"""Troubles people report: keeping what flows through a model.

The numbers are those of the list of reported troubles that this library was built against.
"""

import gc
import re
import weakref

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.modules import module as torch_module

import hookline
from hookline import capture

DIGITS = torch.tensor(load_digits().images[:16], dtype=torch.float32).unsqueeze(1) / 16


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)],
        *[nn.Conv2d(4, 8, 3), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True)],
        *[nn.Flatten(), nn.Linear(128, 10)],
    )


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        out, _ = self.lstm(x.squeeze(1))
        return self.head(out[:, -1])


MODELS = {
    "cnn": cnn,
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)),
    "lstm": Rows,
    "residual": lambda: nn.Sequential(nn.Flatten(), Residual(64), Residual(64)),
    "transformer": lambda: nn.Sequential(nn.Flatten(1, 2), Encoder()),
}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer, self.act = nn.Linear(width, width), nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.layer(x)
        out += x
        return self.act(out)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def by_hand(model, x):
    """What people write: a dict of copies, filled by torch's own hooks."""
    kept, handles = {}, []

    def keep(path):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            kept.setdefault(path, []).append(output.detach().clone())

        return hook

    for path, module in model.named_modules():
        handles.append(module.register_forward_hook(keep(path)))
    model(x)
    for handle in handles:
        handle.remove()
    return kept


@pytest.mark.parametrize("name", MODELS)
def test_c08_one_line_equals_the_loop_written_by_hand(name):
    """All modules by name, each with its own value; nothing is left on the model."""
    model = MODELS[name]().eval()
    expected = by_hand(model, DIGITS)
    with capture(model) as acts:
        model(DIGITS)

    assert set(acts) == set(expected)
    for path, values in expected.items():
        found = acts[path].outputs
        found = [out[0] if isinstance(out, tuple) else out for out in found]
        assert all(map(torch.equal, found, values))
        assert len(found) == len(values)
    assert not any(module._forward_hooks for module in model.modules())
    assert not torch_module._global_forward_hooks
    assert hookline.hooks_of(model) == []


def fails_afterwards(model):
    model(DIGITS)
    model(DIGITS)
    model(DIGITS.double())


def test_c08_the_defaults_are_safe():
    """Detached, copied, one entry for each call, and gone from the model after an error."""
    model = cnn()
    acts = capture(model, "*")
    with pytest.raises(RuntimeError), acts:
        fails_afterwards(model)
    assert len(acts["0"]) == 2
    assert not acts["0"].first.output.requires_grad
    assert acts["0"].first.output.min() < 0  # an in-place ReLU came afterwards
    assert hookline.hooks_of(model) == []


# Graphs.


class Box:
    """Holds what a graph saved for its backward."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"copy": False}, {"dtype": torch.float64}])
def test_c09_captures_keep_no_graph_alive(name, options):
    """However many steps are captured, the graph of each goes with its output."""
    model = MODELS[name]().eval()
    boxes = weakref.WeakSet()

    def pack(tensor):
        box = Box(tensor.detach())
        boxes.add(box)
        return box

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor),
        capture(model, **options) as acts,
    ):
        for _ in range(3):
            out = model(DIGITS)
            assert len(boxes)
            del out
            gc.collect()
            assert len(boxes) == 0
    assert {len(entry) for entry in acts.values()} >= {3}
    assert all(call.kinds == ["output"] for entry in acts.values() for call in entry)


def test_c09_the_bytes_are_counted_and_bounded():
    """`nbytes` is what is held; a limit is an error with a remedy, or the oldest give way."""
    model = cnn().eval()
    with capture(model, "*") as acts:
        model(DIGITS)
    held = sum(value.output.numel() * 4 for value in acts.values())
    assert acts.nbytes == held

    with (
        pytest.raises(hookline.CaptureLimitError, match=r"limit=.*select fewer modules"),
        capture(model, "*", limit=held - 1),
    ):
        model(DIGITS)
    with capture(model, "*", limit=held, overflow="oldest") as bounded:
        for _ in range(5):
            model(DIGITS)
            assert bounded.nbytes <= held
    assert bounded.dropped == 4 * len(acts)


# In-place operations afterwards.

IN_PLACE = {
    "relu": lambda: nn.ReLU(inplace=True),
    "hardswish": lambda: nn.Hardswish(inplace=True),
    "elu": lambda: nn.ELU(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
    "threshold": lambda: nn.Threshold(0.1, 0.0, inplace=True),
}


@pytest.mark.parametrize("after", IN_PLACE)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_c10_what_is_captured_is_what_the_layer_gave(after, mode):
    """Whatever in-place layer stands behind it, in every mode."""
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 2, 3)
    model = nn.Sequential(layer, IN_PLACE[after]())
    with mode():
        expected = layer(DIGITS).clone()
        with capture(model, "0", "1", what=("input", "output")) as acts:
            out = model(DIGITS)

    assert torch.equal(acts["0"].output, expected)
    assert torch.equal(acts["1"].input, expected)
    assert torch.equal(acts["1"].output, out)
    assert not torch.equal(out, expected)


def test_c10_writes_through_views_and_by_operators():
    """Not only layers: `+=`, indices, `.data`, and a view that is written to."""

    class Writes(nn.Module):
        def forward(self, x):
            x += 1
            x[0] = 7
            x.view(-1)[3] = 9
            x.data.mul_(2)
            return x

    model = nn.Sequential(nn.Linear(3, 3, bias=False), Writes())
    x = torch.randn(2, 3)
    with torch.no_grad():
        expected = model[0](x)
        with capture(model, "0") as acts:
            model(x)
    assert torch.equal(acts["0"].output, expected)


@pytest.mark.parametrize("after", IN_PLACE)
def test_c10_an_alias_that_was_overwritten_is_refused(after):
    """Where a copy was declined, reading it says so and names the remedy."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), IN_PLACE[after]())
    with capture(model, "*", copy=False) as acts:
        model(DIGITS)
    with pytest.raises(hookline.CaptureError, match=r"overwritten in place .* copy=True"):
        _ = acts["0"].output
    assert acts["1"].output.shape == (16, 2, 6, 6)


# Only what is needed.


def deep(count=20):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(count)])


X = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pattern", ["2", re.compile(r"^2$"), lambda path, _: path == "2"])
def test_c31_one_layer_costs_one_layer(pattern):
    """Selected by path, expression or predicate: the bytes are those of its output alone."""
    model = deep()
    with capture(model, pattern) as acts:
        model(X)
    assert list(acts) == ["2"]
    assert acts.nbytes == 32 * 64 * 4


@pytest.mark.parametrize("last", [0, 2, 19])
def test_c31_the_forward_ends_after_the_last_one_that_is_wanted(last):
    """The layers behind it are not run."""
    model, ran = deep(), []
    for number, layer in enumerate(model):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    with capture(model, "0", str(last), stop=True) as acts:
        model(X)
    assert ran == list(range(last + 1))
    assert torch.equal(acts[str(last)].output, model[: last + 1](X))


def test_c31_a_result_in_place_of_the_tensor():
    """A reducer's value takes its place: bytes and numbers are those of the value."""
    model = deep()
    with capture(model, reduce=lambda t: t.mean(0)) as acts:
        out = model(X)
    assert acts.nbytes == 21 * 64 * 4
    assert torch.equal(acts[""].output, out.mean(0))


# A graph that is wanted.


def test_c44_a_loss_on_features_trains():
    """With `keep_graph`, gradients are those of the loss written without hooks."""
    model, target = cnn().eval(), torch.zeros(16, 8, 4, 4)
    features = model[:4](DIGITS)
    expected = torch.autograd.grad((features - target).square().mean(), model[0].weight)

    with capture(model, "3", keep_graph=True, what="output", copy=True) as acts:
        model(DIGITS)
    loss = (acts["3"].output - target).square().mean()
    assert torch.equal(torch.autograd.grad(loss, model[0].weight)[0], expected[0])


def test_c44_by_default_there_is_none():
    """And torch says so in its own words."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with capture(model, "0") as acts:
        model(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="does not require grad"):
        acts["0"].output.sum().backward()


def test_c44_distillation_of_two_models():
    """The teacher detached, the student with its graph: only the student learns."""
    teacher, student = deep(3), deep(3)
    student.load_state_dict({k: v + 0.1 for k, v in teacher.state_dict().items()})
    with capture(teacher, "1") as wanted, capture(student, "1", keep_graph=True) as found:
        teacher(X)
        student(X)
        (found["1"].output - wanted["1"].output).square().mean().backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert [p.grad is not None for p in student.parameters()] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("options", [{"keep_graph": True}])
def test_c44_what_cannot_work_is_refused(options, tmp_path):
    """No graph in inference mode, and none in a file."""
    model = deep(1)
    with (
        torch.inference_mode(),
        capture(model, "0", **options),
        pytest.raises(hookline.CaptureError, match="inference"),
    ):
        model(X)
    with capture(model, "0", **options) as acts:
        model(X)
    with pytest.raises(hookline.CaptureError, match="graph"):
        acts.save(tmp_path / "acts.safetensors")
