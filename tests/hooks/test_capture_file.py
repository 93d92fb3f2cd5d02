"""Captures written to a safetensors file and read back."""

import json
import math
import os
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import hookline
from hookline import CaptureError, capture, load_capture
from hookline.module_hooks import CaptureHook


class Pair(NamedTuple):
    first: object
    second: object


class Gives(nn.Module):
    """Gives what it was made with."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self):
        return self.value


def through_a_file(tmp_path, value, **options):
    """A value, captured, saved and loaded."""
    with capture(model := Gives(value), what="output", **options) as acts:
        model()
    acts.save(tmp_path / "acts.safetensors")
    return load_capture(tmp_path / "acts.safetensors")[""].output


def test_everything_that_was_captured_comes_back(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters())
    with capture(model, "*", "1:relu", what=("input", "output", "grad")) as acts:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        model.eval()(torch.randn(5, 3)).sum().backward()
    acts.save(tmp_path / "acts.safetensors")
    loaded = load_capture(tmp_path / "acts.safetensors")

    assert list(loaded) == list(acts)
    assert loaded.nbytes == acts.nbytes
    for name in acts:
        for call, back in zip(acts[name], loaded[name], strict=True):
            for what in ("name", "type", "root", "index", "pass_number", "step", "mode"):
                assert getattr(back, what) == getattr(call, what), what
            for what in ("input", "output", "grad"):
                assert torch.equal(back.get(what), call.get(what)), (name, what)
    assert torch.equal(loaded["1"].concat(), acts["1"].concat())
    assert torch.equal(loaded.in_pass(acts.passes[1])["2"].output, acts["2"].last.output)


def test_the_file_is_plain_safetensors_with_readable_names(tmp_path):
    model = nn.LSTM(2, 3)
    path = tmp_path / "acts.safetensors"
    with capture(model, what=("output", "input")) as acts:
        _, (_, cell) = model(torch.ones(4, 2))
    acts.save(os.fspath(path))

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    root = "#0.output"
    assert sorted(tensors) == ["#0.input[0][0]", f"{root}[0]", f"{root}[1][0]", f"{root}[1][1]"]
    assert torch.equal(tensors[f"{root}[1][1]"], cell)
    assert metadata["hookline"] == hookline.__version__
    assert metadata["torch"] == torch.__version__
    assert json.loads(metadata["captures"])["entries"][0]["type"] == "LSTM"


@pytest.mark.parametrize(
    "name",
    ["bfloat16", "float16", "bool", "int64", "uint16", "float8_e4m3fn", "complex64", "complex128"],
)
def test_dtypes(tmp_path, name):
    value = torch.tensor([[0, 1], [2, 3]]).to(getattr(torch, name))
    back = through_a_file(tmp_path, value)

    assert back.dtype == value.dtype
    assert torch.equal(back.to(torch.complex128), value.to(torch.complex128))


def test_shapes_and_strides(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4)
    values = {
        "transposed": base.mT,
        "sliced": base[:, ::2],
        "expanded": torch.ones(1).expand(5),
        "scalar": torch.tensor(3.0),
        "empty": torch.ones(0, 3),
        "conjugated": torch.tensor([1 + 2j]).conj(),
    }
    back = through_a_file(tmp_path, values)

    assert back.keys() == values.keys()
    assert all(torch.equal(back[key], values[key]) for key in values)


def test_tensors_that_share_memory(tmp_path):
    base = torch.arange(6.0)
    values = [base, base, base[:4], base[2:], base.view(2, 3)]
    back = through_a_file(tmp_path, values, copy=False)

    assert all(map(torch.equal, back, values))
    assert back[0] is back[1]  # stored once
    with safe_open(tmp_path / "acts.safetensors", "pt") as file:
        assert len(file.keys()) == 4


def test_tied_parameters(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self):
            return self.a.weight, self.b.weight

    with capture(model := Tied(), what="output", copy=False) as acts:
        model()
    acts.save(tmp_path / "acts.safetensors")
    first, second = load_capture(tmp_path / "acts.safetensors")[""].output

    assert torch.equal(first, model.a.weight)
    assert second is first


def test_structures(tmp_path):
    one, two = torch.ones(2), torch.zeros(3)
    value = (
        [one, {"a": two, 3: None, None: "text"}],
        Pair(one * 2, (True, 2.5, math.inf)),
        BaseModelOutput(last_hidden_state=two + 1, hidden_states=(one, two)),
        OrderedDict(x=one * 3),
        object(),
        torch.float16,
    )
    back = through_a_file(tmp_path, value)

    assert type(back) is tuple
    assert type(back[0]) is list
    assert torch.equal(back[0][0], one)
    assert list(back[0][1]) == ["a", 3, None]
    assert back[0][1][None] == "text"
    assert torch.equal(back[1].first, one * 2)
    assert back[1].second == (True, 2.5, math.inf)
    assert torch.equal(back[2].last_hidden_state, two + 1)
    assert torch.equal(back[2].hidden_states[1], two)
    assert repr(back[4]) == "<object, not captured>"
    assert repr(back[5]) == "<dtype, not captured>"


def test_odd_names(tmp_path):
    names = ["a#0", "a#0#0", "with space", "é", "__metadata__", "a:b[0]"]
    model = nn.Sequential()
    for number, name in enumerate(names):
        model.add_module(name, Gives(torch.full((2,), float(number))))
    with capture(model, Gives, what="output") as acts:
        for child in model:
            child()
    acts.save(tmp_path / "acts.safetensors")
    loaded = load_capture(tmp_path / "acts.safetensors")

    assert [loaded[name].output[0].item() for name in names] == [0, 1, 2, 3, 4, 5]


def test_several_roots(tmp_path):
    generator, critic = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    with CaptureHook(what="output") as hook:
        critic(generator(torch.ones(2)))
    hook.captured.save(tmp_path / "acts.safetensors")
    loaded = load_capture(tmp_path / "acts.safetensors")

    assert list(loaded) == list(hook.captured)
    assert len(loaded) == 4
    assert all(torch.equal(loaded[n].output, hook.captured[n].output) for n in loaded)


def test_a_file_may_be_replaced_while_what_was_read_from_it_is_in_use(tmp_path):
    path = tmp_path / "acts.safetensors"
    first = through_a_file(tmp_path, torch.arange(10_000.0))
    with capture(model := Gives(torch.zeros(3))) as acts:
        model()
    acts.save(path)

    assert torch.equal(first, torch.arange(10_000.0))
    assert torch.equal(load_capture(path)[""].output, torch.zeros(3))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (torch.ones(2, requires_grad=True), {"keep_graph": True}, "keep_graph=True"),
        (torch.ones(2, device="meta"), {}, "meta"),
        (torch.eye(2).to_sparse(), {}, "only dense tensors"),
    ],
)
def test_r10_what_cannot_be_stored_is_named(tmp_path, value, options, text):
    with capture(model := Gives([torch.ones(1), value]), what="output", **options) as acts:
        model()
    with pytest.raises(CaptureError, match=rf"cannot save #0\.output\[1\] .*{text}"):
        acts.save(tmp_path / "acts.safetensors")
    assert not any(tmp_path.iterdir())


def test_a_subclass_cannot_be_stored(tmp_path):
    class Mine(torch.Tensor):
        pass

    with pytest.raises(CaptureError, match="a Mine cannot be stored"):
        through_a_file(tmp_path, torch.ones(2).as_subclass(Mine))


def test_an_overwritten_alias_is_not_stored(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    with capture(model, "0", copy=False, what="output") as acts:
        model(torch.ones(1, 2))
    with pytest.raises(CaptureError, match="overwritten"):
        acts.save(tmp_path / "acts.safetensors")


def test_r10_files_that_hold_no_captures(tmp_path):
    path = tmp_path / "other"
    with pytest.raises(FileNotFoundError):
        load_capture(path)
    path.write_bytes(b"something else")
    with pytest.raises(CaptureError, match="no safetensors file"):
        load_capture(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(CaptureError, match="holds no captures of hookline"):
        load_capture(path)
    metadata = {"format": "hookline.capture", "version": "99", "hookline": "9.9"}
    save_file({"x": torch.ones(1)}, path, metadata)
    with pytest.raises(CaptureError, match=r"written by hookline 9\.9 in version 99"):
        load_capture(path)
    save_file({"x": torch.ones(1)}, path, {"format": "hookline.capture", "version": "1"})
    with pytest.raises(CaptureError, match="damaged"):
        load_capture(path)
