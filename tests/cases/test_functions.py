"""Troubles people report: what lies between modules.

The numbers are those of the list of reported troubles that this library was built against.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import layer_norm as imported_early

from hookline import FunctionHook, capture, patch, watch
from hookline.edits import add, zero
from hookline.function_hooks import PrintHook, TimerHook


class Log(FunctionHook):
    def __init__(self):
        self.labels, self.paths = [], []

    def forward_postprocess(self, function, in_data):
        self.labels.append(function.label)
        self.paths.append(function.module_path)


def names_in(log):
    """The labels without the index."""
    return [label.partition("[")[0] for label in log.labels]


class Net(nn.Module):
    """A layer, and operations that are no modules."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([F.relu(self.a(x)) + x, x.softmax(-1)], -1)


def test_c04_every_operation_is_seen_with_its_place():
    """Name, module and index of each, and nothing once the scope is left."""
    net, x = Net(), torch.randn(2, 4)
    with Log() as log:
        net(x)
    assert log.labels == ["a:linear[0]", ":relu[0]", ":add[0]", ":softmax[0]", ":cat[0]"]
    net(x)
    assert len(log.labels) == 5


def test_c04_they_can_be_captured_patched_and_timed():
    """As modules can, by their address."""
    net, x = Net(), torch.randn(2, 4)
    with capture(net, ":relu", ":softmax", what=("output", "grad")) as acts:
        net(x.requires_grad_()).sum().backward()
    assert torch.equal(acts[":relu"].output, F.relu(net.a(x)))
    assert torch.equal(acts[":softmax"].output, x.softmax(-1))
    assert torch.equal(acts[":relu"].grad, torch.ones(2, 4))
    with patch(net, {":relu": zero(), ":softmax": add(1.0)}):
        assert torch.equal(net(x), torch.cat([x, x.softmax(-1) + 1], -1))
    with watch(net, timer := TimerHook()):
        net(x)
    assert {row.name for row in timer.rows()} == {"linear", "relu", "add", "softmax", "cat"}


OPERATIONS = {
    "getitem": lambda x: x[0],
    "matmul": lambda x: x @ x.T,
    "where": lambda x: torch.where(x > 0, x, -x),
    "einsum": lambda x: torch.einsum("ij,ij->i", x, x),
    "linalg_norm": torch.linalg.norm,
    "fft_rfft": torch.fft.rfft,
    "interpolate": lambda x: F.interpolate(x[None], 8),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "setitem": lambda x: x.clone().__setitem__(0, 1.0),
    "chunk": lambda x: x.chunk(2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_c04_whatever_the_operation(name):
    """Operators, indexing, functions of sub-packages, several outputs, none."""
    with Log() as log:
        OPERATIONS[name](torch.randn(4, 4))
    assert name in names_in(log)


# Nothing is patched.


def namespace():
    return {
        f"{owner.__name__}.{name}": vars(owner)[name]
        for owner in (F, torch, torch.Tensor, torch.fft, torch.linalg)
        for name in vars(owner)
        if callable(vars(owner)[name])
    }


def test_c28_torchs_functions_stay_the_same_objects():
    """Before, while and after hooks are on, and after an error."""
    before = namespace()
    with Log():
        assert namespace() == before
    with pytest.raises(RuntimeError), Log():
        torch.ones(2) + torch.ones(3)
    assert namespace() == before


@pytest.mark.parametrize("times", [1, 2, 5])
def test_c28_equal_work_gives_equal_numbers(times):
    """However often hooks were on before; functions imported earlier are counted as well."""
    module, ones, counts = nn.LayerNorm(4), torch.ones(1, 4), []
    for _ in range(times):
        with Log() as log:
            module(ones)
            imported_early(ones, (4,))
        counts.append(names_in(log))
    assert counts == [[":layer_norm", "layer_norm"]] * times


def test_c28_counters_belong_to_the_hook():
    """Two hooks that are on for different times count their own."""
    with TimerHook() as outer:
        F.relu(torch.ones(1))
        with TimerHook().renamed("inner") as inner:
            F.relu(torch.ones(1))
    calls = [{row.name: row.calls for row in timer.rows()} for timer in (outer, inner)]
    assert calls == [{"ones": 2, "relu": 2}, {"ones": 1, "relu": 1}]


# The residual stream.


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(2, 2)

    def forward(self, x):
        x = x + self.f(x)
        return F.layer_norm(x, (2,))


def stream(model, x):
    """The sums, computed by hand."""
    sums = []
    for block in model:
        x = x + block.f(x)
        sums.append(x)
        x = F.layer_norm(x, (2,))
    return sums, x


def test_c48_a_sum_that_is_no_modules_output():
    """By address: listed, captured, with its gradient, and patched."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Residual(), Residual()), torch.randn(3, 2, requires_grad=True)
    with Log() as log:
        model(x)
    addresses = [f"{block}:add[0]" for block in "01"]
    assert [label for label in log.labels if "add" in label] == addresses

    sums, out = stream(model, x)
    expected = torch.autograd.grad(out.square().sum(), sums)
    with capture(model, "*:add") as acts:
        model(x).square().sum().backward()
    for block, value, gradient in zip("01", sums, expected, strict=True):
        assert torch.equal(acts[f"{block}:add"].output, value)
        assert torch.equal(acts[f"{block}:add"].grad, gradient)

    steer = torch.tensor([1.0, -2.0])
    with patch(model, {"1:add": add(steer)}):
        steered = model(x)
    assert torch.equal(steered, F.layer_norm(sums[1] + steer, (2,)))


def test_c48_gpt2s_two_sums_a_block():
    """The first and the second are told apart by index; the second is the hidden state."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
    model, tokens = GPT2Model(config).eval(), torch.arange(6)[None]
    with torch.no_grad(), capture(model, "h.*:add", "h.*.attn", "h.*.mlp") as acts:
        hidden = model(tokens, output_hidden_states=True).hidden_states
    first, second = acts["h.0:add[0]"].output, acts["h.0:add[1]"].output
    assert torch.equal(second, hidden[1])
    assert torch.equal(first, acts["h.0.attn"].output[0] + hidden[0])
    assert torch.equal(second, first + acts["h.0.mlp"].output)


@pytest.mark.parametrize("write", ["x + y", "x += y", "torch.add(x, y)", "x.add_(y)"])
def test_c48_however_the_sum_is_written(write):
    """In place or not; the address is the operation's name."""
    name = {"x += y": "add_", "x.add_(y)": "add_"}.get(write, "add")

    class Adds(nn.Module):
        def forward(self, x, y):
            if write == "x += y":
                x += y
                return x
            return eval(write)  # noqa: S307 - one of the above

    model, x, y = Adds(), torch.ones(2), torch.ones(2)
    with capture(model, f":{name}") as acts:
        out = model(x, y)
    assert torch.equal(acts[f":{name}"].output, out)


# Granularity.


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: F.layer_norm(x, (4,)), "layer_norm"),
        (F.gumbel_softmax, "gumbel_softmax"),
        (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])), "cross_entropy"),
        (lambda x: F.interpolate(x[None], 8), "interpolate"),
        (lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2])), "multi_margin_loss"),
    ],
)
def test_c79_the_outermost_public_function_is_the_event(function, name):
    """What it calls inside belongs to it, and nothing is seen twice."""
    with Log() as log:
        function(torch.randn(3, 4))
    names = names_in(log)
    assert names.count(name) == 1
    assert set(names) <= {name, "randn", "tensor", "getitem"}


def test_c79_scopes_in_scopes_end():
    """Entering another hook inside of one does not repeat or lose anything."""
    x = torch.randn(3, 4)
    with Log() as outer:
        F.gumbel_softmax(x)
        with Log().renamed("inner") as inner:
            F.gumbel_softmax(x)
        F.layer_norm(x, (4,))
    assert names_in(inner) == ["gumbel_softmax"]
    assert names_in(outer) == ["gumbel_softmax", "gumbel_softmax", "layer_norm"]


def test_c79_a_hooks_own_calls_are_no_events():
    """A hook that calls torch in a callback would never end otherwise."""

    class Calls(Log):
        def forward_postprocess(self, function, in_data):
            super().forward_postprocess(function, in_data)
            F.layer_norm(torch.ones(4), (4,))

    with Calls() as log:
        torch.ones(2).relu()
    assert names_in(log) == ["ones", "relu"]


def test_c79_modules_are_the_coarser_level():
    """The functions of a module say in which module they ran."""
    net = nn.Sequential(Net(), nn.ReLU())
    with Log() as log:
        net(torch.ones(2, 4))
    assert log.paths[1:] == ["0.a", "0", "0", "0", "0", "1"]


# Names.


def test_c80_names_are_readable():
    """Of operators, methods, in-place variants and functions: what a user would call them."""
    with Log() as log:
        x = torch.ones(2, 2)
        _ = x + 1, 1 - x, x @ x, F.relu(x), x[0], x.T, torch.cat([x]), -x, x > 0, x**2, 2 / x
        x.relu_()
        x.add_(1)
        _ = x.shape
    names = names_in(log)
    assert names == [
        *["ones", "add", "rsub", "matmul", "relu", "getitem", "T", "cat", "neg", "gt", "pow"],
        *["rdiv", "relu_", "add_"],
    ]


def test_c80_the_same_operation_has_one_name():
    """As operator, method and function, forward and backward."""
    backward = []

    class Both(Log):
        def backward_postprocess(self, function, in_data, out_grad):
            backward.append(function.name)

    x = torch.ones(2, requires_grad=True)
    with Both() as log:
        (x + 1).sum().backward()
        x.add(1).sum().backward()
        torch.add(x, 1).sum().backward()
    names = names_in(log)
    assert names == ["add", "sum"] * 3
    assert backward == ["sum", "add"] * 3


def test_c80_filters_work_on_the_name():
    """By address, with a glob over modules."""
    model = nn.Sequential(Net(), nn.Linear(8, 4), Net())
    lines = []

    class Lines:
        def write(self, text):
            lines.extend(text.splitlines())

    with watch(model, PrintHook(file=Lines()), where="**:softmax"):
        model(torch.ones(1, 4))
    assert len(lines) == 2
    assert all("softmax" in line for line in lines)
