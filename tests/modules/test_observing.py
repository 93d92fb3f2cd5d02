"""R2: observing never changes the result, in models with all that may be upset by it."""

import copy
from contextlib import ExitStack

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree
from transformers import AlbertConfig, AlbertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import hookline
from hookline import ModuleHook
from hookline.module_hooks import TimerHook


class Everything(ModuleHook):
    """Has all callbacks and looks at all that it is given."""

    def __init__(self):
        self.count = 0

    def _look(self, *values):
        self.count += 1
        for tensor in _pytree.tree_leaves(values):
            if isinstance(tensor, torch.Tensor):
                tensor.detach().float().sum()

    def forward_preprocess(self, call):
        self._look(call.args, call.kwargs)

    def forward_postprocess(self, call):
        self._look(call.args, call.kwargs, call.out)

    def backward_preprocess(self, call):
        self._look(call.grad_output)

    def backward_postprocess(self, call):
        self._look(call.grad_output)

    def aborted(self, call, exception):
        pytest.fail("a call was aborted")


class TorchStyle(ExitStack):
    """Torch's hooks on all modules, none of which returns anything."""

    def __init__(self, *kinds):
        super().__init__()
        self.kinds = kinds
        self.count = 0

    def __enter__(self):
        for kind in self.kinds:
            self.enter_context(getattr(hookline, f"register_module_{kind}")(self._look))
        return super().__enter__()

    def _look(self, module, first, second=None):
        self.count += 1


class Timed(TimerHook):
    name = "TimerHook"

    @property
    def count(self):
        return sum(row.calls for row in self.rows())


class Gradients(Everything):
    """Asks for the gradients of the inputs too."""

    needs_grad_input = True

    def backward_postprocess(self, call):
        self._look(call.grad_input, call.grad_output)


OBSERVERS = {
    "module hook": Everything,
    "timer": Timed,
    "torch style": lambda: TorchStyle("forward_pre_hook", "forward_hook"),
}
# These may put aliases in the place of inputs, or of several outputs, whose gradients they could
# change together; values stay as they are.
ALIASING = {
    "gradients of inputs": Gradients,
    "torch's backward": lambda: TorchStyle("full_backward_hook"),
    "torch's backward pre": lambda: TorchStyle("full_backward_pre_hook"),
}
each_observer = pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
each_of_all = pytest.mark.parametrize(
    "observe", [*OBSERVERS.values(), *ALIASING.values()], ids=[*OBSERVERS, *ALIASING]
)


class Block(nn.Module):
    """A residual block with batch norm, in-place ReLUs and dropout."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.3),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.body(x)
        y += x
        return self.relu(y)


def resnet():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        Block(4),
        Block(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4, 10),
    )
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images[:24], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return model, lambda m: F.cross_entropy(m(x), torch.tensor(classes[:24]))


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    return model, lambda m: (m(x, src_key_padding_mask=padding) * x.flip(1)).sum()


def lstm():
    model = nn.LSTM(6, 5, num_layers=2, dropout=0.3, bidirectional=True)
    x = torch.linspace(-1, 1, 7 * 3 * 6).view(7, 3, 6)

    def loss(m):
        out, (hidden, cell) = m(x)
        return out.pow(2).sum() + hidden.sum() * 2 + cell.sum()

    return model, loss


def gpt2():
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=13, n_positions=8)
    tokens = torch.arange(12).view(2, 6)
    return GPT2LMHeadModel(config), lambda m: m(tokens, labels=tokens).loss


def albert():
    """One layer, used three times."""
    config = AlbertConfig(
        vocab_size=13,
        embedding_size=6,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.2,
    )
    tokens, labels = torch.arange(12).view(2, 6), torch.tensor([0, 1])
    return AlbertForSequenceClassification(config), lambda m: m(tokens, labels=labels).loss


MODELS = {"resnet": resnet, "encoder": encoder, "lstm": lstm, "gpt2": gpt2, "albert": albert}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def made(make, *, training):
    torch.manual_seed(0)
    model, loss = make()
    return model.train(training), loss


def train(make, *, training):
    """Two steps of training; all that may differ afterwards."""
    model, loss_of = made(make, training=training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    found = {}
    for step in range(2):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        found |= {f"grad {step} {n}": p.grad for n, p in model.named_parameters()}
        found = copy.deepcopy(found)
        optimizer.step()
    found |= {f"state {name}": value for name, value in model.state_dict().items()}
    found["random numbers"] = torch.get_rng_state()
    return found


def assert_same(one, other):
    """Bitwise equal, name by name."""
    assert one.keys() == other.keys()
    different = [
        name
        for name, value in one.items()
        if (value is None) != (other[name] is None)
        or (value is not None and not torch.equal(value, other[name]))
    ]
    assert different == []


def is_reached_by_aliases(make, observe):
    """Whether torch itself goes another way for aliases: attention looks if q, k, v are one."""
    return make is encoder and observe in list(ALIASING.values())[:2]


def assert_close(one, other):
    """The first step is equal but for the last bits; random numbers are the same."""
    for name, value in one.items():
        if name.startswith(("loss 0", "grad 0", "random")):
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


@each_model
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@each_of_all
def test_r2_training_is_bitwise_the_same(make, training, observe):
    """Losses, gradients, weights, statistics and random numbers are those without observers."""
    plain = train(make, training=training)
    with observe() as observer:
        observed = train(make, training=training)

    assert observer.count > 0
    if is_reached_by_aliases(make, observe):
        assert_close(plain, observed)
    else:
        assert_same(plain, observed)
    assert_same(plain, train(make, training=training))


@each_model
@each_observer
def test_r2_no_autograd_node_is_added(make, observe):
    """In training mode, the graph has the same nodes as without observers."""

    def graph(loss):
        names, todo, seen = [], [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                names.append(node.name())
                todo += [following for following, _ in node.next_functions]
        return names

    model, loss_of = made(make, training=True)
    plain = graph(loss_of(model))
    with observe():
        observed = graph(loss_of(model))

    assert observed == plain


@each_model
@each_observer
def test_r2_the_same_tensor_objects(make, observe):
    """What one module returns is what the next one gets, exactly where it was so without us."""

    def objects(*, watch):
        """The tensors that modules get and return, each known by where it was seen first."""
        model, loss_of = made(make, training=True)
        seen, order = {}, []

        def note(_, values):
            tensors = [t for t in _pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
            # Kept alive, so that no other tensor gets its identity.
            order.append([seen.setdefault(id(t), (len(seen), t))[0] for t in tensors])

        for module in model.modules():
            module.register_forward_pre_hook(note)
            module.register_forward_hook(lambda m, args, output: note(m, output))
        if not watch:
            loss_of(model)
            return order
        with observe():
            loss_of(model)
        return order

    assert objects(watch=True) == objects(watch=False)


@each_observer
def test_r2_a_call_returns_what_forward_returned(observe):
    """Tensors and containers alike are the objects that `forward` made."""
    results = []

    class Returns(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.wrap = wrap

        def forward(self, x):
            results.append(self.wrap(x * 2))
            return results[-1]

    x = torch.ones(2, requires_grad=True)
    wraps = (
        lambda t: t,
        lambda t: (t, [t]),
        lambda t: {"a": t},
        lambda t: None,
        lambda t: t.tolist(),
    )
    with observe():
        for wrap in wraps:
            assert Returns(wrap)(x) is results[-1]


@pytest.mark.parametrize("observe", [*OBSERVERS.values(), ALIASING["torch's backward pre"]])
def test_r2_a_module_may_fill_the_dict_that_it_was_given(observe):
    """The dict that it returns is the one that the caller has; gradients are the plain ones."""

    class Fills(nn.Module):
        def __init__(self, source, target):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.source, self.target = source, target

        def forward(self, batch):
            batch[self.target] = self.layer(batch[self.source])
            return batch

    def work():
        torch.manual_seed(0)
        first, second = Fills("x", "h"), Fills("h", "y")
        x = torch.ones(2, 3, requires_grad=True)
        batch = {"x": x * 2}
        given = batch["x"]
        assert first(batch) is batch
        second(batch)
        assert batch["x"] is given
        (batch["y"] * batch["h"] + batch["x"]).sum().backward()
        return [x.grad, *(p.grad for p in (*first.parameters(), *second.parameters()))]

    plain = work()
    with observe() as observer:
        observed = work()

    assert all(map(torch.equal, plain, observed))
    assert observer.count >= 4


@each_observer
def test_r2_a_module_gets_what_the_caller_gave(observe):
    """Inputs are handed on as they are: parameters, leaves, attributes and all."""
    seen = []

    class Looks(nn.Module):
        def forward(self, x, *, extra):
            seen.append((x, extra))
            return x * 2

    parameter, extra = nn.Parameter(torch.ones(2)), [torch.ones(1)]
    with observe():
        Looks()(parameter, extra=extra)

    assert seen[0][0] is parameter
    assert seen[0][1] is extra


@each_observer
def test_r2_an_identity_passes_the_gradient_on_once(observe):
    """A module that returns its input, or a parameter: gradients are right, nothing is left."""

    class Gives(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self):
            return self.weight

    x, same, gives = torch.ones(2, requires_grad=True), nn.Identity(), Gives()
    with observe():
        for _ in range(3):
            (same(same(x)) * 10 + x + gives()).sum().backward()

    assert x.grad.tolist() == [33.0, 33.0]
    assert gives.weight.grad.tolist() == [3.0, 3.0]
    assert x._backward_hooks is None
    assert gives.weight._backward_hooks is None


@each_of_all
def test_r2_in_place_operations_stay_legal(observe):
    """On outputs and inputs of observed modules, before and after; buffers may be written."""

    class Writes(nn.Module):
        def forward(self, x, buffer):
            buffer[0] = x.sum()
            return x.mul_(2), buffer

    def work():
        x = torch.ones(3, requires_grad=True)
        first, second = nn.Linear(3, 3), nn.Linear(3, 1)
        torch.manual_seed(0)
        for p in (*first.parameters(), *second.parameters()):
            nn.init.uniform_(p)
        y = first(x)
        y += 1
        out, buffer = Writes()(y, torch.zeros(2))
        out.relu_()
        total = second(out).add_(buffer.sum())
        total.backward()
        return [total.detach(), x.grad, first.weight.grad, second.weight.grad]

    plain = work()
    with observe():
        observed = work()

    assert all(map(torch.equal, plain, observed))


@each_observer
def test_r2_inference_mode_and_no_grad(observe):
    """Tensors of inference mode are handed through."""
    model, _ = made(resnet, training=False)
    x = torch.linspace(0, 1, 128).view(2, 1, 8, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            plain = model(x)
            with observe():
                observed = model(x)
        assert torch.equal(plain, observed)
        assert observed.is_inference() == plain.is_inference()


def test_r2_several_observers_at_once():
    """All kinds together change nothing either."""
    plain = train(resnet, training=True)
    with ExitStack() as stack:
        for observe in (*OBSERVERS.values(), *ALIASING.values()):
            stack.enter_context(observe())
        observed = train(resnet, training=True)

    assert_same(plain, observed)
