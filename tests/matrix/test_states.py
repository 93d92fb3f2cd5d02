"""What hooks see in hard places, where the matrix says only that nothing is changed.

Numbers are those of the lists of pitfalls in torch 2.13 (p) and of troubles people report (c) that
this library was built against.
"""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import hookline
from hookline import FunctionHook, HookValueError, ModuleHook, register_full_backward_hook
from hookline.module_hooks import CaptureHook, NonFiniteHook, StatsHook
from tests.matrix.case import net, rows, smooth, squares


class Notes(ModuleHook):
    """Keeps a row for each event."""

    def __init__(self, *, inputs=False):
        self.needs_grad_input = inputs
        self.rows = []

    def note(self, call):
        self.rows.append((str(call.phase), call.path, call.type))

    forward_postprocess = backward_preprocess = note

    def of(self, phase):
        """The paths of one phase, in order."""
        return [path for each, path, _ in self.rows if each == phase]


# --------------------------------------------------------------------------- state and precision


def test_p58_a_hook_keeps_the_state_of_the_forward_on_the_call():
    """What was on in the forward is noted on the call by the hook that wants to know it later."""
    seen = []

    class States(ModuleHook):
        def forward_preprocess(self, call):
            call.autocast = torch.is_autocast_enabled("cpu")
            call.grad = torch.is_grad_enabled()

        def backward_postprocess(self, call):
            now = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
            seen.append((call.type, call.autocast, call.grad, *now))

    model = smooth()
    with States():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model[0](rows())
        squares(model[1](hidden.float())).backward()

    assert [row[:2] for row in seen] == [
        *[("Linear", False), ("Tanh", False), ("Sequential", False), ("Linear", True)],
    ]
    assert {row[2:] for row in seen} == {(True, False, False)}


@pytest.mark.parametrize("create_graph", [False, True])
def test_p58_gradients_are_on_in_hooks_where_they_are_in_the_backward(create_graph):
    """With `create_graph` hooks may add to the graph; without, they cannot by mistake."""
    states = []
    model = smooth()
    with register_full_backward_hook(model, lambda *_: states.append(torch.is_grad_enabled())):
        torch.autograd.grad(squares(model(rows())), model[0].weight, create_graph=create_graph)

    assert states == [create_graph]


def test_c32_statistics_are_free_of_the_loss_scale():
    """The norms of gradients under a scaler are those without one, as its scale changes too."""

    def norms(scaler):
        torch.manual_seed(0)
        model = smooth()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with StatsHook(every=1, scaler=scaler) as stats:
            for _ in range(4):
                loss = squares(model(rows()))
                (loss if scaler is None else scaler.scale(loss)).backward()
                optimizer.step() if scaler is None else scaler.step(optimizer)
                _ = scaler is None or scaler.update()
                optimizer.zero_grad()
        rows_of = [row for row in stats.rows() if row.direction == "backward"]
        return {(row.path, row.leaf): row.norm for row in rows_of}

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    assert norms(scaler) == norms(None)
    assert scaler.get_scale() == 2.0**12


# ------------------------------------------------------------------------------ others' hooks


def test_gradients_are_those_that_other_hooks_left():
    """What hooks on tensors and nodes change before a call's backward begins is what it gets."""
    layer, seen = nn.Linear(4, 2), []

    class Gradients(ModuleHook):
        def backward_preprocess(self, call):
            seen.append(call.grad_output[0].clone())

    with Gradients():
        out = layer(rows())
        out.register_hook(lambda gradient: gradient * 2)
        out.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
        out.sum().backward()

    assert torch.equal(seen[0], torch.full((3, 2), 6.0))
    assert torch.equal(layer.bias.grad, torch.full((2,), 18.0))


def test_an_optimizer_in_the_backward_finds_its_gradient_once():
    """Hooks that update a weight as soon as its gradient is there; ours see it at the end or not.

    The end of a call comes after its parameters' gradients were written, so after such a hook.
    """
    layer, at_end = nn.Linear(4, 2), []

    def update(weight):
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None

    for weight in layer.parameters():
        weight.register_post_accumulate_grad_hook(update)
    before = layer.weight.detach().clone()
    with register_full_backward_hook(layer, lambda m, *_: at_end.append(m.weight.grad)):
        layer(torch.ones(1, 4)).sum().backward()

    assert at_end == [None]
    assert torch.equal(layer.weight, before - 1)


# --------------------------------------------------------------------------------- transforms


def test_p40_what_is_seen_in_transforms():
    """Of vmap the forward; of grad both; of forward mode the forward: by level and number."""
    model, weights = smooth(), dict(smooth().named_parameters())
    weights = {name: value.detach() for name, value in weights.items()}
    x = rows(grad=False)

    def loss(weights, x):
        return functional_call(model, weights, (x,)).pow(2).sum()

    def dual():
        with forward_ad.dual_level():
            model(forward_ad.make_dual(x, x))

    once, back = ["0", "1.0", "1.1", "1", ""], ["", "1", "1.1", "1.0", "0"]
    seen = {
        "vmap": (lambda: squares(vmap(model)(x)).backward(), once, []),
        "grad": (lambda: grad(loss)(weights, x), once, back),
        "samples": (lambda: vmap(grad(loss), (None, 0))(weights, x), once, back),
        "forward mode": (dual, once, []),
    }
    for run, forward, backward in seen.values():
        with Notes() as notes:
            run()
        assert notes.of("forward") == forward
        assert notes.of("backward_pre") == backward


def test_captures_inside_transforms():
    """What is captured under vmap is the whole batch once the transform is over."""
    model, x = smooth(), rows(grad=False)
    with CaptureHook() as hook:
        vmap(model)(x)

    assert torch.allclose(hook.captured["0"].output, model[0](x))


# -------------------------------------------------------------------------------- other tensors


def test_the_gradient_of_a_sparse_input_is_not_seen():
    """Torch has no views of sparse tensors, so they are passed on as they are; the rest is seen."""

    class Product(nn.Module):
        def forward(self, matrix, x):
            self.given = matrix
            return torch.sparse.mm(matrix, x)

    module, seen = Product(), []
    matrix, x = torch.eye(3).to_sparse().requires_grad_(), rows()
    with register_full_backward_hook(module, lambda m, gi, go: seen.append((gi, go))):
        module(matrix, x).sum().backward()

    ((given, out),) = seen
    assert module.given is matrix
    assert given[0] is None
    assert torch.equal(given[1], torch.ones(3, 4))
    assert torch.equal(out[0], torch.ones(3, 4))
    assert matrix.grad is not None


class ToDense(nn.Module):
    def forward(self, x):
        return x.to_dense()


class ToSparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


def test_a_sparse_output_that_is_an_input():
    """It cannot be told from what made it, so the module has no backward; its neighbours have."""
    model, x = nn.Sequential(ToSparse(), nn.Identity(), ToDense()), rows()
    with Notes() as notes:
        model(x).sum().backward()

    assert notes.of("forward") == ["0", "1", "2", ""]
    assert notes.of("backward_pre") == ["", "2", "0"]
    assert torch.equal(x.grad, torch.ones(3, 4))


def test_several_outputs_of_which_one_is_sparse():
    """A hook that might change their gradients together sees them, and all are right."""

    class Both(nn.Module):
        def forward(self, x):
            return x.to_sparse(), x * 2

    module, x, seen = Both(), rows(), []

    with hookline.register_full_backward_pre_hook(module, lambda m, go: seen.append(len(go))):
        sparse, dense = module(x)
        (sparse.to_dense() + dense).sum().backward()

    assert seen == [2]
    assert torch.equal(x.grad, torch.full((3, 4), 3.0))


def test_nested_tensors_that_are_changed_in_place():
    """Torch cannot change a view of one in place; so not where a hook asks for its gradient."""

    def run():
        parts = [torch.ones(2, 4), torch.ones(3, 4)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        model(x * 1).values().sum().backward()

    model = nn.ReLU(inplace=True)
    with Notes() as notes:
        run()
    assert notes.of("backward_pre") == [""]
    with Notes(inputs=True), pytest.raises(NotImplementedError, match="new_empty_strided"):
        run()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_values_in_nested_tensors_are_found_and_replaced():
    """A NaN in a strided nested tensor, which has no shape, is told; an edit of one fits it."""
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    x = torch.nested.nested_tensor(parts)
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight[1, 2] = torch.nan
        with NonFiniteHook() as nonfinite:
            layer(x)
        with hookline.patch(layer, {"": lambda out: out * 0 + 3}):
            patched = layer(x)
        with (
            hookline.patch(layer, {"": lambda out: torch.nested.nested_tensor(parts)}),
            pytest.raises(HookValueError, match="shape, dtype and device must stay"),
        ):
            layer(x)

    assert (nonfinite.first.nan, nonfinite.first.verdict) == (5, "bad parameter")
    assert nonfinite.first.shape == (2, -1, 2)
    assert [tuple(part.shape) for part in patched.unbind()] == [(2, 2), (3, 2)]


def test_function_hooks_see_a_subclass_as_the_program_does():
    """The functions that the program calls on it once each, not those of its own protocol."""

    class Halves(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_function__(func, types, args, kwargs or {})
            return super().__torch_function__(torch.Tensor.mul, types, (out, 0.5), {})

    names = []

    class Names(FunctionHook):
        def forward_postprocess(self, function, in_data):
            names.append((function.name, type(function.outputs[0])))

    x = torch.ones(2).as_subclass(Halves)
    with Names():
        y = F.relu(x)

    assert names == [("relu", Halves)]
    assert y.as_subclass(torch.Tensor).tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------ changing modules


def test_hooks_set_before_a_lazy_module_has_its_weights():
    """They run in the call that makes the weights, which begins as lazy, and in the next."""
    model, notes = nn.Sequential(nn.LazyLinear(3)), Notes()
    hookline.add_hook(model[0], notes)
    for _ in range(2):
        model(rows())
    hookline.clear_hooks(model)

    types = [kind for phase, _, kind in notes.rows if phase == "forward"]
    assert types == ["LazyLinear", "Linear"]
    assert type(model[0]) is nn.Linear


def test_hooks_stay_on_a_module_that_is_parametrized_and_made_plain_again():
    """The class changes twice; the registration is by object."""
    layer, notes = nn.Linear(4, 2), Notes()
    hookline.add_hook(layer, notes)
    layer(rows())
    nn.utils.parametrizations.weight_norm(layer)
    layer(rows())
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    layer(rows())

    types = [kind for _, _, kind in notes.rows]
    assert {row.hook for row in hookline.hooks_of(layer)} == {notes}
    hookline.clear_hooks(layer)

    assert types == ["Linear", "ParametrizedLinear", "Linear"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_a_quantised_module_is_another_module():
    """What quantisation puts in a module's place has no hooks of ours; selecting again finds it."""
    model = net(0).eval()
    notes = Notes()
    hookline.add_hook(model[0], notes)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    with torch.no_grad():
        quantised(rows(grad=False))
        assert notes.rows == []
        with hookline.capture(quantised, "0") as acts:
            quantised(rows(grad=False))
    hookline.clear_hooks(model)

    assert type(quantised[0]).__module__.startswith("torch.ao.nn.quantized")
    assert acts["0"].output.shape == (3, 4)
