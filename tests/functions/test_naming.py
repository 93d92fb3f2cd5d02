"""What counts as a function, and what each is called, in the forward and by its node."""

import copy
import io
import operator
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.nn import functional as F
from torch.overrides import get_testing_overrides, resolve_name

from hookline import FunctionHook
from hookline.functions.naming import ALIASES, Kind, classify, name_of_node, writes
from tests.custom import Cube


class Names(FunctionHook):
    """Notes the names of functions, forward and backward."""

    def __init__(self):
        self.forward = []
        self.backward = []

    def forward_preprocess(self, function, in_data):
        self.forward.append(function.name)

    def backward_preprocess(self, function, in_data, out_grad):
        self.backward.append(function.name)


def names(call, *inputs):
    """The names of the functions that a call consists of."""
    with Names() as hook:
        call(*inputs)
    return hook.forward


def floats():
    return torch.tensor([1.0, 2.0, 3.0])


def integers():
    return torch.tensor([1, 2, 3])


# ------------------------------------------------------------------------------ the operators

OPERATORS = {
    "x + x": (lambda x: x + x, "add"),
    "1 + x": (lambda x: 1 + x, "add"),
    "x - 1": (lambda x: x - 1, "sub"),
    "1 - x": (lambda x: 1 - x, "rsub"),
    "x * 2": (lambda x: x * 2, "mul"),
    "2 * x": (lambda x: 2 * x, "mul"),
    "x / 2": (lambda x: x / 2, "div"),
    "2 / x": (lambda x: 2 / x, "rdiv"),
    "x // 2": (lambda x: x // 2, "floor_divide"),
    "2 // x": (lambda x: 2 // x, "floor_divide"),
    "x % 2": (lambda x: x % 2, "remainder"),
    "5 % x": (lambda x: 5 % x, "remainder"),
    "x ** 2": (lambda x: x**2, "pow"),
    "2 ** x": (lambda x: 2**x, "rpow"),
    "x @ x": (lambda x: x @ x, "matmul"),
    "-x": (lambda x: -x, "neg"),
    "+x": (lambda x: +x, "positive"),
    "abs(x)": (abs, "abs"),
    "x == x": (lambda x: x == x, "eq"),  # noqa: PLR0124
    "x != 1": (lambda x: x != 1, "ne"),
    "x < 1": (lambda x: x < 1, "lt"),
    "1 < x": (lambda x: 1 < x, "gt"),  # noqa: SIM300
    "x >= 1": (lambda x: x >= 1, "ge"),
    "x[0]": (lambda x: x[0], "getitem"),
    "x[...]": (lambda x: x[...], "getitem"),
    "x[None]": (lambda x: x[None], "getitem"),
    "x[1:]": (lambda x: x[1:], "getitem"),
    "x[()] = 1": (lambda x: operator.setitem(x, (), 1), "setitem"),
    "x[0] = 1": (lambda x: operator.setitem(x, 0, 1), "setitem"),
    "reversed(x)": (reversed, "flip"),
    "list(x)": (list, "unbind"),
    "x += 1": (lambda x: operator.iadd(x, 1), "add_"),
    "x -= 1": (lambda x: operator.isub(x, 1), "sub_"),
    "x *= 2": (lambda x: operator.imul(x, 2), "mul_"),
    "x **= 2": (lambda x: operator.ipow(x, 2), "pow_"),
    "x //= 2": (lambda x: operator.ifloordiv(x, 2), "floor_divide_"),
    "x %= 2": (lambda x: operator.imod(x, 2), "remainder_"),
}
INTEGER_OPERATORS = {
    "x & 1": (lambda x: x & 1, "bitwise_and"),
    "1 & x": (lambda x: 1 & x, "bitwise_and"),
    "x | 1": (lambda x: x | 1, "bitwise_or"),
    "1 | x": (lambda x: 1 | x, "bitwise_or"),
    "x ^ 1": (lambda x: x ^ 1, "bitwise_xor"),
    "1 ^ x": (lambda x: 1 ^ x, "bitwise_xor"),
    "~x": (lambda x: ~x, "bitwise_not"),
    "x << 1": (lambda x: x << 1, "bitwise_left_shift"),
    "1 << x": (lambda x: 1 << x, "bitwise_left_shift"),
    "x >> 1": (lambda x: x >> 1, "bitwise_right_shift"),
    "1 >> x": (lambda x: 1 >> x, "bitwise_right_shift"),
    "x &= 1": (lambda x: operator.iand(x, 1), "bitwise_and_"),
    "x |= 1": (lambda x: operator.ior(x, 1), "bitwise_or_"),
    "x ^= 1": (lambda x: operator.ixor(x, 1), "bitwise_xor_"),
    "x <<= 1": (lambda x: operator.ilshift(x, 1), "bitwise_left_shift_"),
    "x >>= 1": (lambda x: operator.irshift(x, 1), "bitwise_right_shift_"),
}


@pytest.mark.parametrize("written", OPERATORS)
def test_names_of_operators(written):
    """An operator has the name of the function that it stands for."""
    call, name = OPERATORS[written]

    assert names(call, floats()) == [name]


@pytest.mark.parametrize("written", INTEGER_OPERATORS)
def test_names_of_operators_on_integers(written):
    """So have the operators that only integers and truths have."""
    call, name = INTEGER_OPERATORS[written]

    assert names(call, integers()) == [name]


def test_every_alias_is_the_name_of_a_tensor_method():
    """No row of the table is a misspelling, and each gives the name it promises."""
    for method, readable in ALIASES.items():
        if method == "__rdiv__":  # `2 / x` alone has it
            continue
        assert classify(getattr(Tensor, method)) == (Kind.FUNCTION, readable)
    assert not any(name.startswith("__") for name in ALIASES.values())


# ------------------------------------------------------------------ methods, functions, modules


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x.add(x), "add"),
        (lambda x: torch.add(x, x), "add"),
        (lambda x: Tensor.add(x, x), "add"),
        (lambda x: torch.ops.aten.add(x, x), "add"),
        (lambda x: torch.ops.aten.add.Tensor(x, x), "add"),
        (lambda x: torch.ops.aten.add_.Tensor(x, x), "add_"),
        (lambda x: torch.ops.aten.add.out(x, x, out=torch.empty_like(x)), "add"),
        (lambda x: x.softmax(0), "softmax"),
        (lambda x: F.softmax(x, 0), "softmax"),
        (lambda x: F.linear(x, x[None]), "linear"),
        (F.gelu, "gelu"),
        (torch.nn.init.normal_, "normal_"),
        (torch.fft.rfft, "fft_rfft"),
        (torch.linalg.norm, "linalg_norm"),
        (torch.special.expit, "special_expit"),
        (lambda x: torch.einsum("i,i", x, x), "einsum"),
        (lambda x: x.to(torch.float64), "to"),
        (lambda x: x.double(), "double"),
        (lambda x: x.cpu(), "cpu"),
    ],
)
def test_names_of_methods_and_functions(call, name):
    """A function has one name, whether it is called as a method, a function or an operator."""
    assert names(call, floats())[-1] == name


def test_names_of_operators_of_a_library():
    """They go by their own name, whatever torch calls that, and by their own schema."""
    with torch.library._scoped_library("hookline_naming", "FRAGMENT") as library:
        library.define("size(Tensor x) -> Tensor")
        library.define("rows(Tensor x) -> int")
        library.impl("size", lambda x: x * 2, "CPU")
        library.impl("rows", lambda x: x.size(0), "CPU")
        ops, x = torch.ops.hookline_naming, floats()

        assert names(ops.size.default, x) == ["size"]
        assert names(ops.size, x) == ["size"]
        assert names(ops.rows.default, x) == names(ops.rows, x) == []


def test_names_of_functions_on_lists():
    """`_foreach_*` functions are functions, also those that only write and return nothing."""
    x = floats()

    assert names(torch._foreach_add, [x], 1) == ["_foreach_add"]
    assert names(torch._foreach_add_, [x], 1) == ["_foreach_add_"]
    assert names(torch._foreach_zero_, [x]) == ["_foreach_zero_"]
    assert names(torch._foreach_norm, [x]) == ["_foreach_norm"]


def test_names_of_modules_functions():
    """A module's call has the names of the functions that its forward calls."""
    modules = [nn.Linear(3, 2), nn.ReLU(), nn.Dropout(), nn.LayerNorm(3), nn.Softmax(0)]
    expected = ["linear", "relu", "dropout", "layer_norm", "softmax"]

    assert [names(module, floats()) for module in modules] == [[name] for name in expected]


# ------------------------------------------------------------------------ what is no function


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torch.zeros(2), "zeros"),
        (lambda: torch.ones(2), "ones"),
        (lambda: torch.empty(2), "empty"),
        (lambda: torch.full((2,), 1.0), "full"),
        (lambda: torch.rand(2), "rand"),
        (lambda: torch.randn(2), "randn"),
        (lambda: torch.randint(3, (2,)), "randint"),
        (lambda: torch.randperm(3), "randperm"),
        (lambda: torch.arange(3), "arange"),
        (lambda: torch.linspace(0, 1, 3), "linspace"),
        (lambda: torch.eye(2), "eye"),
        (lambda: torch.tensor([1.0]), "tensor"),
        (lambda: torch.as_tensor([1.0]), "as_tensor"),
    ],
)
def test_factories_are_functions(call, name):
    """What makes a tensor from none is a function without inputs."""
    seen = []

    class Looks(FunctionHook):
        def forward_postprocess(self, function, in_data):
            seen.append((function.name, in_data, len(function.outputs)))

    with Looks():
        call()

    assert seen == [(name, (), 1)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x.T, "T"),
        (lambda x: x.mT, "mT"),
        (lambda x: x.H, "H"),
        (lambda x: x.mH, "mH"),
        (lambda x: x.real, "real"),
        (lambda x: x.imag, "imag"),
    ],
)
def test_properties_that_compute_are_functions(make, name):
    """Those that give a transposed, real or imaginary tensor."""
    assert names(make, torch.ones(2, 2, dtype=torch.complex64)) == [name]


PASSED = {
    "properties": lambda x: (
        *(x.shape, x.dtype, x.device, x.layout, x.ndim, x.requires_grad, x.is_leaf, x.grad),
        *(x.grad_fn, x.data, x.names if hasattr(x, "names") else None, x.is_cuda, x.itemsize),
    ),
    "setting properties": lambda x: (setattr(x, "requires_grad", True), setattr(x, "grad", None)),
    "sizes": lambda x: (x.size(), x.size(0), x.dim(), x.numel(), x.stride(), x.nelement(), len(x)),
    "memory": lambda x: (x.data_ptr(), x.storage_offset(), x.untyped_storage(), x.element_size()),
    "numbers": lambda x: (float(x[:1]), int(x[:1]), bool(x[:1]), x[:1].item(), x.tolist()),
    "questions": lambda x: (
        *(x.is_contiguous(), x.is_floating_point(), x.is_complex(), torch.is_tensor(x)),
        *(torch.is_floating_point(x), torch.equal(x, x), torch.allclose(x, x), 1.0 in x),
    ),
    "texts": lambda x: (repr(x), str(x), f"{x}", hash(x), x.type()),
    "copies": lambda x: (copy.deepcopy(x), pickle.dumps(x)),
    "files": lambda x: torch.save(x, io.BytesIO()),
    "numpy": lambda x: (x.numpy(), np.asarray(x)),
    "gradients": lambda x: (x.requires_grad_(), x.retain_grad(), x.register_hook(lambda g: g)),
    "modes": lambda x: (
        *(torch.no_grad().__enter__(), torch.set_grad_enabled(True)),
        *(torch.manual_seed(0), torch.get_default_dtype(), torch.result_type(x, x)),
    ),
    "parameters": nn.Parameter,
    "ranges": lambda x: record_function("range").__enter__().__exit__(None, None, None),
    "sharing": lambda x: x.share_memory_(),
}


@pytest.mark.parametrize("what", PASSED)
def test_questions_and_descriptions_are_no_functions(what):
    """What neither makes nor writes a tensor has no events."""
    slices = 4 if what == "numbers" else 0

    assert names(PASSED[what], floats()) == ["getitem"] * slices


def test_a_run_of_autograd_is_no_function():
    """`backward` and `grad` have no forward events, nor has what they make by themselves."""
    x = floats().requires_grad_()
    with Names() as hook:
        y = x * 2
        torch.autograd.backward([y], [torch.ones_like(x)], retain_graph=True)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        y.sum().backward()

    assert hook.forward == ["mul", "ones_like", "sum", "sum"]


def test_all_that_torch_lets_override_is_told_apart():
    """Functions of torch's own list of what can be overridden; what is passed gives no tensor."""
    kinds = {Kind.FUNCTION: set(), Kind.PASSED: set()}
    for func in get_testing_overrides():
        kinds[classify(func).kind].add((resolve_name(func) or "").rpartition(".")[2])

    assert len(kinds[Kind.FUNCTION]) > 800
    common = {
        "add",
        "relu",
        "linear",
        "matmul",
        "__getitem__",
        "__setitem__",
        "view",
        "zero_",
        "cat",
    }
    assert common <= kinds[Kind.FUNCTION]
    asked = {"size", "dim", "item", "numpy", "is_complex", "__len__", "__bool__", "data_ptr"}
    assert asked <= kinds[Kind.PASSED]


@pytest.mark.parametrize("name", ["add_", "setitem", "zero_", "_foreach_add_"])
def test_functions_that_write(name):
    """They are told by an underscore at the end."""
    assert writes(name)


@pytest.mark.parametrize("name", ["add", "getitem", "__init__", "_foreach_add", "set"])
def test_functions_that_do_not_write(name):
    """Neither inner underscores nor those of Python's own names say that a function writes."""
    assert not writes(name)


# ------------------------------------------------------------------------- names by the node


def square():
    return torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()


def image():
    return torch.rand(1, 2, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


ONE_NODE = {
    "add": lambda x: x + x,
    "sub": lambda x: x - 1,
    "rsub": lambda x: 1 - x,
    "mul": lambda x: x * x,
    "div": lambda x: x / 2,
    "pow": lambda x: x**2,
    "neg": lambda x: -x,
    "abs": abs,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(),
    "std": lambda x: x.std(),
    "cumsum": lambda x: x.cumsum(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "topk": lambda x: x.topk(2)[0],
    "view": lambda x: x.view(-1),
    "t": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.expand(2, 4, 4),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "split": lambda x: x.split(2)[0],
    "clone": lambda x: x.clone(),
    "gather": lambda x: x.gather(0, torch.tensor([[0, 1, 2, 3]])),
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 1])),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "embedding": lambda x: F.embedding(torch.tensor([0, 1]), x),
    "linalg_svd": lambda x: torch.linalg.svd(x)[1],
    "_foreach_mul": lambda x: torch._foreach_mul([x], 2)[0],
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.ones(4, 4)
    ),
    "Cube": Cube.apply,
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_the_name_is_the_same_in_both_directions(name):
    """A function with one node has one name, recorded or told by its node."""
    call, x = ONE_NODE[name], square()
    with Names() as recorded:
        out = call(x)
        out.backward(torch.ones_like(out))
    unrecorded = call(x)
    one = torch.ones_like(unrecorded)
    with Names() as by_node:
        unrecorded.backward(one)

    assert recorded.backward[0] == name
    assert by_node.backward[0] == name


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: F.linear(x, x), ["mm", "t"]),
        (lambda x: x[1:], ["slice"]),
        (lambda x: x[0], ["select"]),
        (lambda x: x.T, ["permute"]),
        (lambda x: x.double(), ["_to_copy"]),
        (lambda x: x.flatten(), ["view"]),
        (lambda x: F.layer_norm(x, (4,)), ["native_layer_norm"]),
        (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])), ["nll_loss", "log_softmax"]),
        (lambda x: (x * 1).add_(1), ["add", "mul"]),
    ],
)
def test_names_of_nodes_are_those_of_operators(call, expected):
    """Where a function is made of others, its nodes have the names of those."""
    out = call(square())
    one = torch.ones_like(out)
    with Names() as hook:
        out.backward(one)

    assert hook.backward == expected


def test_names_of_the_nodes_of_a_convolution():
    """The kinds of nodes of a small convolution network."""
    x, w = image(), torch.ones(3, 2, 3, 3)
    out = F.avg_pool2d(F.batch_norm(F.conv2d(x, w), None, None, training=True), 2).sum()
    with Names() as hook:
        out.backward()

    assert hook.backward == ["sum", "avg_pool2d", "native_batch_norm", "convolution"]


class Node:
    """A stand-in for a node of a given name."""

    def __init__(self, name):
        self._name = name

    def name(self):
        return self._name


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("MulBackward0", "mul"),
        ("NativeLayerNormBackward0", "native_layer_norm"),
        ("TanhBackwardBackward0", "tanh_backward"),
        ("SelectBackwardAutogradNestedTensor0", "select"),
        ("ForeachMulBackward1Scalar", "_foreach_mul"),
        ("ViewBackward0_copy", "view"),
        ("CopyBackwards", "copy"),
        ("torch::autograd::CopyBackwards", "copy"),
        ("CopySlices", "CopySlices"),
        ("SomethingOfMine", "SomethingOfMine"),
    ],
)
def test_names_of_nodes(node, name):
    """The part before the last `Backward`, spelled as the operator of these letters is."""
    assert name_of_node(Node(node)) == name


def test_nearly_all_nodes_of_torch_have_the_name_of_an_operator():
    """Of all kinds of nodes of this torch, few have a name that is no operator's."""
    kinds = [kind for kind in dir(torch._C._functions) if not kind.startswith("_")]
    operators = {schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas()}

    missed = [kind for kind in kinds if name_of_node(Node(kind)) not in operators]

    assert len(kinds) > 600
    assert len(missed) <= 12, missed
