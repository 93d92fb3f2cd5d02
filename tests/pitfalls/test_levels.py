"""What torch's own modes do not see, and function hooks do.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hookline import FunctionHook, watch
from tests.functions.reached import BOUND_IS_SEEN


class Log(FunctionHook):
    """Keeps the label of each function, forward and backward, and whether it had a node."""

    def __init__(self):
        self.forward, self.backward, self.nodes = [], [], {}

    def forward_postprocess(self, function, in_data):
        self.forward.append(function.label)
        self.nodes[function.label] = [out.grad_fn is not None for out in function.outputs]

    def backward_postprocess(self, function, in_data, out_grad):
        self.backward.append(function.label)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


def test_p62_custom_functions_and_the_backward_are_seen_and_properties_are_not():
    """The very program of the pitfall, with both directions of each function."""
    x = torch.ones(2, requires_grad=True)
    with Log() as log:
        y = Sine.apply(x)
        _ = y.shape, y.is_leaf, y.dtype, y.device, len(y)
        loss = F.cross_entropy(torch.stack([y, y]), torch.tensor([0, 1]))
        loss.backward()

    assert log.forward == ["Sine[0]", "stack[0]", "tensor[0]", "cross_entropy[0]"]
    assert log.backward == ["cross_entropy[0]", "stack[0]", "Sine[0]"]


bound_before = Sine.apply


@pytest.mark.parametrize("bound", ["late", "bound before"])
@pytest.mark.parametrize("run", [torch.Tensor.backward, torch.autograd.backward])
def test_p62_every_way_to_a_custom_function_and_to_a_backward(bound, run):
    """Bound before, applied twice, and run by `backward` of a tensor or of autograd.

    Where torch leads what was bound before past Python, its forward is that of what it calls.
    """
    x = torch.ones(2, requires_grad=True)
    with Log() as log:
        apply = Sine.apply if bound == "late" else bound_before
        run(apply(apply(x)).sum())
    name = "Sine" if bound == "late" or BOUND_IS_SEEN else "sin"
    assert log.forward == [f"{name}[0]", f"{name}[1]", "sum[0]"]
    assert log.backward == ["sum[0]", "Sine[1]", "Sine[0]"]


def test_p62_autograd_grad_and_a_second_backward():
    """The functions of a backward that makes a graph are seen when that graph runs."""
    x = torch.ones(2, requires_grad=True)
    with Log() as log:
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        assert log.backward == ["sum[0]", "pow[0]"]
        gradient.sum().backward()
    assert "pow[0]" in log.backward[2:]


PROPERTIES = ["shape", "is_leaf", "dtype", "device", "ndim", "requires_grad", "grad", "layout"]


@pytest.mark.parametrize("name", PROPERTIES)
def test_p62_questions_are_no_functions(name):
    """Whatever is asked of a tensor."""
    x = torch.ones(2, 3, requires_grad=True)
    with Log() as log:
        getattr(x, name)
    assert log.forward == []


def test_p62_another_thread_is_not_in_the_scope_but_in_a_watch():
    """A scope is that of its thread; a watch is that of the model, in threads that start later."""
    model, x = nn.Sequential(nn.ReLU()), torch.ones(2)

    def elsewhere():
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()

    with Log() as log:
        elsewhere()
    assert log.forward == []
    with watch(model, Log(), where="0") as watched:
        elsewhere()
    assert watched.silent() == []


def test_p62_what_a_function_calls_inside_belongs_to_it():
    """`F.gumbel_softmax` draws, adds and takes a softmax: one function."""
    x = torch.zeros(2, 3, requires_grad=True)
    with Log() as log:
        F.gumbel_softmax(x).sum().backward()
    assert log.forward == ["gumbel_softmax[0]", "sum[0]"]
    assert log.backward == ["sum[0]", "gumbel_softmax[0]"]


# Below autograd.

LAYERS = {
    "linear": (lambda: nn.Linear(2, 2), (1, 2), "linear"),
    "conv": (lambda: nn.Conv1d(1, 2, 1), (1, 1, 3), "conv1d"),
    "transposed": (lambda: nn.ConvTranspose1d(1, 2, 1), (1, 1, 3), "conv_transpose1d"),
    "layer norm": (lambda: nn.LayerNorm(2), (1, 2), "layer_norm"),
    "batch norm": (lambda: nn.BatchNorm1d(2), (4, 2), "batch_norm"),
    "gelu": (nn.GELU, (1, 2), "gelu"),
    "softmax": (lambda: nn.Softmax(-1), (1, 2), "softmax"),
    "bilinear": (lambda: nn.Bilinear(2, 2, 2), (1, 2), "bilinear"),
    "attention": (
        lambda: nn.MultiheadAttention(2, 1, batch_first=True),
        (1, 3, 2),
        "multi_head_attention_forward",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_p63_one_public_function_with_its_node_in_every_mode(name):
    """`F.linear` is `linear`, not `t` and `addmm`; its name is the same in inference mode."""
    make, shape, function = LAYERS[name]
    layer, x = make(), torch.ones(shape, requires_grad=True)
    inputs = [x] * {"bilinear": 2, "attention": 3}.get(name, 1)
    with Log() as log:
        out = layer(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        out.sum().backward()
    with torch.inference_mode(), Log() as inference:
        layer(*inputs)

    label = f":{function}[0]"
    assert any(log.nodes[label])
    assert label in log.backward
    assert label in inference.forward
    assert not any(inference.nodes[label])
    assert [each for each in log.forward if each.startswith(":")] == inference.forward


def test_p63_the_backward_is_tied_to_the_forward():
    """Both see the same object, so that what the one noted the other finds."""
    seen = {}

    class Same(FunctionHook):
        def forward_postprocess(self, function, in_data):
            function.mark = function.label

        def backward_postprocess(self, function, in_data, out_grad):
            seen[function.label] = function.mark

    linear, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    with Same():
        nn.Sequential(linear, linear)(x).sum().backward()
    assert seen == {label: label for label in ("0:linear[0]", "0:linear[1]", "sum[0]")}
