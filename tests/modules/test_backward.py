"""The backward of module calls: where it begins and ends, in all kinds of models and runs."""

import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

import hookline
from hookline import ModuleHook, add_hook
from hookline.torch_base import backward
from hookline.torch_base.marks import Mark
from hookline.torch_base.window import Window


class Log(ModuleHook):
    """Notes begins and ends as `(what, direction, call)`, `what` being one of `<`, `>` and `!`."""

    def __init__(self, note=lambda call: f"{call.label}:{call.index}"):
        self.events = []
        self.note = note

    def forward_preprocess(self, call):
        self.events.append(("<", "recompute" if call.recomputing else "forward", self.note(call)))

    def forward_postprocess(self, call):
        self.events.append((">", "recompute" if call.recomputing else "forward", self.note(call)))

    def backward_preprocess(self, call):
        self.events.append(("<", "backward", self.note(call)))

    def backward_postprocess(self, call):
        self.events.append((">", "backward", self.note(call)))

    def aborted(self, call, exception):
        self.events.append((">", "recompute" if call.recomputing else "forward", self.note(call)))

    def trees(self, *directions):
        """The calls of these directions as nested lists `[note, inner, inner, ...]`."""
        return trees([event for event in self.events if event[1] in directions])


def trees(events):
    top = []
    stack = [top]
    for what, direction, note in events:
        if what == "<":
            stack.append([(direction, note)])
        else:
            done = stack.pop()
            assert done[0] == (direction, note), "an end without its begin"
            stack[-1].append(done)
    assert len(stack) == 1, "a begin without its end"
    return top


def mirrored(forest):
    """What the backward of some forward trees must be: the same nesting, the last one first."""
    return [[("backward", tree[0][1]), *mirrored(tree[1:])] for tree in reversed(forest)]


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Several(nn.Module):
    """Two inputs, of which one is a keyword; outputs in a nested structure."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, y):
        return {"pair": (self.one(x), [self.two(y)]), "number": 3}


class Mixed(nn.Module):
    """Calls one layer three times, shares another under two names, and joins several outputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.again = self.layer
        self.norm = nn.LayerNorm(4)
        self.several = Several()

    def forward(self, x):
        x = self.layer(self.norm(x))
        x = self.again(F.relu(x))
        out = self.several(x, y=self.layer(x))
        return out["pair"][0] * out["pair"][1][0].sigmoid()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        out, (hidden, _) = self.lstm(x.unsqueeze(1))
        return self.head(out[:, -1]) + hidden.sum()


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        y += x
        y = self.relu(y)
        return self.second(y).mul_(2)


class Views(nn.Module):
    """Outputs that are views of one tensor, and an identity."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.flatten = nn.Flatten()
        self.same = nn.Identity()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        a, b = self.linear(x).chunk(2, dim=1)
        return self.same(self.flatten(a)) * self.dropout(b)


MODELS = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
    "nested": lambda: nn.Sequential(
        Residual(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Residual(nn.Linear(4, 4)))),
        Residual(Residual(nn.Linear(4, 4))),
    ),
    "mixed": Mixed,
    "recurrent": Recurrent,
    "in place": InPlace,
    "views": Views,
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Flatten()
    ),
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def made(make):
    torch.manual_seed(0)
    return make()


def inputs(*, needs_grad=False):
    return torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(needs_grad)


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(one, other):
    return all(map(torch.equal, one, other))


@pytest.fixture
def alive():
    """Finds the objects of some types that are alive and were not before."""
    gc.collect()
    gc.freeze()
    yield lambda *kinds: [o for o in gc.get_objects() if issubclass(type(o), kinds)]
    gc.unfreeze()


# ---------------------------------------------------------------------------------- nesting


@each_model
@pytest.mark.parametrize("needs_grad", [False, True])
def test_p5_begins_and_ends_nest_as_in_forward(make, needs_grad):
    """Each call of the forward has one backward, nested in the same way, the last one first."""
    model = made(make)
    with Log() as log:
        model(inputs(needs_grad=needs_grad)).sum().backward()

    forward = log.trees("forward")
    if not needs_grad and make is MODELS["convolutions"]:
        forward[0].pop(1)  # reshaping an input without gradient
    assert log.trees("backward") == mirrored(forward)


def test_p5_calls_nest_in_one_of_which_only_inputs_are_marked():
    """A hook of the root that goes at once leaves marks at its inputs; what is inside nests."""

    class Once(ModuleHook):
        needs_grad_input = True

        def forward_preprocess(self, call):
            handle.remove()

    repeated = nn.Identity()
    model = nn.Sequential(nn.Sequential(repeated, repeated))
    log = Log()
    handle = add_hook(model, Once())
    with add_hook(repeated, log):
        model(inputs(needs_grad=True)).sum().backward()

    places = [("backward", f"0.0:{index}") for index in (1, 0)]
    assert log.trees("backward") == [[place] for place in places]


@each_model
def test_p5_the_end_comes_when_the_parameters_have_their_gradients(make):
    """At a call's end, the parameters that no other call feeds have their final gradients."""
    model = made(make)
    at_end = []

    class Grads(ModuleHook):
        def backward_postprocess(self, call):
            own = [p for p in call.module.parameters() if id(p) not in shared]
            at_end.extend((p, p.grad.clone()) for p in own)

    shared = {id(p) for p in model.layer.parameters()} if make is Mixed else set()
    with Grads():
        model(inputs()).sum().backward()

    assert {id(p) for p, _ in at_end} == {id(p) for p in model.parameters()} - shared
    assert all(torch.equal(p.grad, grad) for p, grad in at_end)


@each_model
def test_p5_begins_come_before_the_parameters_get_their_gradients(make):
    """At a call's begin, nothing has arrived at its own parameters yet."""
    model, seen = made(make), []

    class Grads(ModuleHook):
        def backward_preprocess(self, call):
            seen.extend(p.grad is None for p in call.module.parameters())

    with Grads():
        model(inputs()).sum().backward()

    assert seen
    assert all(seen)


@each_model
def test_grad_output_is_the_gradient_of_the_output(make):
    """It equals what a plain hook on the output's node gets in a run without us, call by call."""
    model, expected = made(make), []

    def watch(module, args, output):
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            return None
        if output is args[0] and output.grad_fn is seen[module]:
            output = output.view_as(output)  # its node is another module's
        place, kind = output.output_nr, type(module)
        output.grad_fn.register_prehook(lambda grads: expected.append((kind, grads[place].clone())))
        return output

    seen = {}
    for module in model.modules():
        module.register_forward_pre_hook(lambda m, args: seen.update({m: args[0].grad_fn}))
    handles = [module.register_forward_hook(watch) for module in model.modules()]
    model(inputs()).sum().backward()
    for handle in handles:
        handle.remove()
    got = []

    class Watch(ModuleHook):
        def backward_postprocess(self, call):
            if isinstance(call.grad_output, tuple) and isinstance(
                call.grad_output[0], torch.Tensor
            ):
                got.append((type(call.module), call.grad_output[0].clone()))

    with Watch():
        model(inputs()).sum().backward()

    def key(pair):
        return (pair[0].__name__, pair[1].shape, pair[1].flatten().tolist())

    if make is Recurrent:  # its LSTM has a structure, which is looked at elsewhere
        got = [pair for pair in got if pair[0] is not nn.LSTM]
    assert sorted(map(key, got)) == sorted(map(key, expected))


def test_grad_output_has_the_structure_of_the_output():
    """Of an LSTM and of nested containers: a gradient for each tensor, None for what got none."""
    torch.manual_seed(0)
    lstm, x = nn.LSTM(4, 3), inputs().unsqueeze(1)
    got = {}

    class Watch(ModuleHook):
        def backward_postprocess(self, call):
            got[call.type] = call.grad_output

    with Watch():
        out, (hidden, _) = lstm(x)
        (out.pow(2).sum() + (hidden * 5).sum()).backward()
        result = Several()(inputs(), y=inputs())
        result["pair"][1][0].sum().backward()

    grad_out, (grad_hidden, grad_cell) = got["LSTM"]
    assert torch.equal(grad_out, 2 * out)
    assert torch.equal(grad_hidden, torch.full_like(hidden, 5))
    assert grad_cell is None
    assert got["Several"]["pair"][0] is None
    assert torch.equal(got["Several"]["pair"][1][0], torch.ones(3, 4))
    assert got["Several"]["number"] is None


def test_a_transformer():
    """GPT-2 with tied weights: all calls have their backward, and gradients are the plain ones."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=6)
    ).eval()
    tokens = torch.arange(6).view(1, 6)
    model(tokens, labels=tokens).loss.backward()
    plain = gradients(model)
    model.zero_grad()
    with Log() as log:
        model(tokens, labels=tokens).loss.backward()

    expected = mirrored(log.trees("forward"))
    assert log.trees("backward") == expected
    assert same(gradients(model), plain)


# ----------------------------------------------------------------------------- checkpointing


class Checkpointed(nn.Module):
    """Runs its layers under activation checkpointing, one of them twice."""

    def __init__(self, *, reentrant, together=False):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()) for _ in range(2)
        )
        self.head = nn.Linear(4, 1)
        self.reentrant, self.together = reentrant, together

    def _all(self, x):
        for layer in (*self.layers, self.layers[0]):
            x = layer(x)
        return x

    def forward(self, x):
        if self.reentrant is None:
            return self.head(self._all(x))
        if self.together:
            return self.head(checkpoint(self._all, x, use_reentrant=self.reentrant))
        for layer in (*self.layers, self.layers[0]):
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


each_checkpoint = pytest.mark.parametrize(
    ("reentrant", "together"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["new", "new, together", "reentrant", "reentrant, together"],
)


@each_checkpoint
def test_checkpoints_have_each_call_forward_recomputed_and_backward(reentrant, together):
    """The backward has the calls of the forward, each once; repeated forwards are told apart."""
    model = made(lambda: Checkpointed(reentrant=reentrant, together=together))
    with Log() as log:
        model(inputs(needs_grad=True)).sum().backward()

    assert trees(log.events)
    (forward,) = log.trees("forward")
    calls = [note for what, _, note in log.events if what == "<"]
    layers = {note for note in calls if note.startswith("layers")}
    assert len(layers) == 3 * 4
    if reentrant or not together:  # else calls of one module are not told apart when repeated
        assert {note: calls.count(note) for note in layers} == dict.fromkeys(layers, 3)
    assert [calls.count(note) for note in ("Checkpointed:0", "head:0")] == [2, 2]
    assert [tree[0][1] for tree in forward[1:]] == [
        "layers.0:0",
        "layers.1:0",
        "layers.0:1",
        "head:0",
    ]
    backward_of_layers = [
        note
        for what, direction, note in log.events
        if (what, direction) == ("<", "backward") and note in layers
    ]
    assert sorted(backward_of_layers) == sorted(layers)
    tops = [note for note in backward_of_layers if note.count(".") == 1]
    assert tops == ["layers.0:1", "layers.1:0", "layers.0:0"]


@each_checkpoint
def test_checkpoints_give_the_plain_gradients(reentrant, together):
    """With hooks on, outputs and gradients are bitwise those without; dropout is repeated."""
    results = []
    for watch in (False, True):
        model = made(lambda: Checkpointed(reentrant=reentrant, together=together))
        x = inputs(needs_grad=True)
        with Log() if watch else contextlib.nullcontext():
            torch.manual_seed(1)
            out = model(x)
            out.sum().backward()
        results.append([out, x.grad, *gradients(model), torch.get_rng_state()])

    assert same(*results)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_repeated_forward_runs_inside_the_backward(reentrant):
    """It has the index of the call that it repeats, and its begin and end lie in the backward."""
    model = made(lambda: Checkpointed(reentrant=reentrant))
    with Log(lambda call: (call.label, call.index, call.pass_number)) as log:
        for _ in range(2):
            model(inputs(needs_grad=True)).sum().backward()

    for number in range(2):
        indices = [
            note[1]
            for what, direction, note in log.events
            if (what, direction, note[0], note[2]) == ("<", "recompute", "layers.0", number)
        ]
        assert indices == [1, 0]
    (first, second) = [
        tree for tree in log.trees("backward", "recompute") if tree[0][1][0] == "Checkpointed"
    ]
    for tree in (first, second):
        assert str(tree).count("'recompute'") == 3 * 4


# ------------------------------------------------------------------------- all kinds of runs


def test_a_partial_backward_has_the_calls_on_its_way():
    """`inputs=` and `autograd.grad`: just the calls that autograd has to run."""
    model = made(MODELS["plain"])
    with Log() as log:
        loss = model(inputs()).sum()
        log.events.clear()
        (gradient,) = torch.autograd.grad(loss, model[2].weight, retain_graph=True)
        assert log.trees("backward") == [[("backward", "Sequential:0"), [("backward", "2:0")]]]
        assert model[2].weight.grad is None
        log.events.clear()
        loss.backward(inputs=[model[0].bias])

    assert [note for what, _, note in log.events if what == "<"] == [
        "Sequential:0",
        "2:0",
        "1:0",
        "0:0",
    ]
    assert [p.grad is None for p in model.parameters()] == [True, False, True, True]
    plain = made(MODELS["plain"])
    plain(inputs()).sum().backward()
    assert torch.equal(gradient, plain[2].weight.grad)
    assert torch.equal(model[0].bias.grad, plain[0].bias.grad)


@each_model
def test_a_retained_graph_has_its_events_each_time(make):
    """Two backwards over one graph: all events twice, gradients add up as without hooks."""
    plain = made(make)
    loss = plain(inputs()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    model = made(make)
    with Log() as log:
        loss = model(inputs()).sum()
        loss.backward(retain_graph=True)
        once = log.trees("backward")
        loss.backward()

    assert log.trees("backward") == once * 2
    assert len(once) == 1
    assert same(gradients(model), gradients(plain))


def test_two_losses_of_one_forward():
    """Each backward has the calls of its own way."""

    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.body(x)
            return x, self.head(x)

    with Log() as log:
        body, head = made(Auxiliary)(inputs())
        log.events.clear()
        head.sum().backward(retain_graph=True)
        first = log.trees("backward")
        log.events.clear()
        body.sum().backward()

    around = ("backward", "Auxiliary:0")
    assert first == [[around, [("backward", "head:0")], [("backward", "body:0")]]]
    assert log.trees("backward") == [[around, [("backward", "body:0")]]]


@each_model
def test_create_graph_and_double_backward(make):
    """A gradient of gradients: both runs have paired events, and the values are the plain ones."""
    results, log = [], Log()
    for watch in (False, True):
        model, x = made(make), inputs(needs_grad=True)
        with log if watch else contextlib.nullcontext():
            (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
            assert log.trees("backward") == mirrored(log.trees("forward"))
            gradient.pow(2).sum().backward()
        trees(log.events)
        results.append([gradient, *(p.grad for p in model.parameters() if p.grad is not None)])

    assert same(*results)


class Penalty(nn.Module):
    """A critic's loss with a gradient penalty, whose backward runs inside of the forward."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        x = x.clone().requires_grad_(True)
        out = self.critic(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        return out + (gradient.norm(2, dim=1) - 1).pow(2).mean()


def test_a_gradient_penalty_inside_a_forward():
    """The inner run's calls lie in the forward around it; the outer run has all; values agree."""
    plain = made(Penalty)
    plain(inputs()).backward()
    model = made(Penalty)
    with Log() as log:
        loss = model(inputs())
        inside = log.trees("forward", "backward")
        log.events.clear()
        loss.backward()

    critic = ["critic.2:0", "critic.1:0", "critic.0:0"]
    assert inside == [
        [
            ("forward", "Penalty:0"),
            [("forward", "critic:0"), *([("forward", note)] for note in reversed(critic))],
            [("backward", "critic:0"), *([("backward", note)] for note in critic)],
        ]
    ]
    (outer,) = log.trees("backward")
    assert outer[0] == ("backward", "Penalty:0")
    assert [note for what, _, note in log.events if what == "<"][1:] == ["critic:0", *critic]
    assert same(gradients(model), gradients(plain))


def test_a_backward_called_in_another_thread():
    """Local hooks have their events there, in order; gradients are the plain ones."""
    plain = made(MODELS["nested"])
    plain(inputs()).sum().backward()
    model, log = made(MODELS["nested"]), Log()
    for module in model.modules():
        add_hook(module, log)
    loss = model(inputs()).sum()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()

    assert log.trees("backward") == mirrored(log.trees("forward"))
    assert same(gradients(model), gradients(plain))


def test_forwards_in_several_threads_and_one_backward():
    """Calls of each thread begin and end in order, though their nodes' numbers overlap."""
    models, log = (
        [made(MODELS["nested"]) for _ in range(3)],
        Log(lambda call: (call.thread, call.path)),
    )
    for model in models:
        for module in model.modules():
            add_hook(module, log)
    losses = []
    for model in models:
        with ThreadPoolExecutor(1) as pool:
            losses.append(pool.submit(lambda model=model: model(inputs()).sum()).result())
    sum(losses).backward()

    forward = [event for event in log.events if event[1] == "forward"]
    for thread in {note[0] for _, _, note in forward}:
        own = [event for event in log.events if event[2][0] == thread]
        assert trees([e for e in own if e[1] == "backward"]) == mirrored(
            trees([e for e in own if e[1] == "forward"])
        )
    assert same(gradients(models[0]), gradients(models[2]))


class Routed(nn.Module):
    """Its output is joined by a loss of its own, which is no output."""

    def __init__(self):
        super().__init__()
        self.gate, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        weights = self.gate(x).softmax(dim=1)
        self.extra = weights.pow(2).sum()
        return self.expert(x) * weights


def test_a_loss_that_is_no_output():
    """The call's backward begins before its first node, also where only the loss inside is used."""
    plain = made(lambda: nn.Sequential(Routed(), nn.Linear(4, 2)))
    (plain(inputs()).sum() + plain[0].extra).backward()
    model = made(lambda: nn.Sequential(Routed(), nn.Linear(4, 2)))
    with Log() as log:
        loss = model(inputs()).sum() + model[0].extra
        loss.backward()
        assert log.trees("backward") == mirrored(log.trees("forward"))
        assert same(gradients(model), gradients(plain))

        log.events.clear()
        model(inputs())
        model[0].extra.backward()

    gate = [("backward", "0:0"), [("backward", "0.gate:0")]]
    assert log.trees("backward") == [[("backward", "Sequential:0"), gate]]


def test_an_output_that_is_not_used_has_no_gradient():
    """With only the inner loss used, `grad_output` is there with None in it."""
    model, got = made(Routed), []

    class Watch(ModuleHook):
        def backward_preprocess(self, call):
            got.append((call.label, call.grad_output))

        backward_postprocess = backward_preprocess

    with Watch():
        model(inputs())
        model.extra.backward()

    assert [label for label, _ in got] == ["Routed", "gate", "gate", "Routed"]
    assert got[0][1] == got[3][1] == (None,)
    assert got[1][1][0].shape == (3, 4)


def test_gradients_that_come_late_are_there_at_the_end():
    """Outputs of different nodes: at the begin some gradients may be None, at the end none is."""
    model, got = made(Several), {}

    class Watch(ModuleHook):
        def backward_preprocess(self, call):
            if not call.path:
                got["begin"] = call.grad_output

        def backward_postprocess(self, call):
            if not call.path:
                got["end"] = call.grad_output

    with Watch():
        out = model(inputs(), y=inputs())
        (out["pair"][0].sum() + 2 * out["pair"][1][0].sum()).backward()

    first, second = got["end"]["pair"]
    assert torch.equal(first, torch.ones(3, 4))
    assert torch.equal(second[0], torch.full((3, 4), 2.0))
    assert got["begin"]["pair"][0] is None


# -------------------------------------------------------------------- no gradients, no events


def test_without_gradients_there_is_no_backward():
    """Calls under `no_grad`, and those that no gradient reaches, have no backward events."""
    model = made(MODELS["plain"])
    for p in model[0].parameters():
        p.requires_grad_(False)
    with Log() as log:
        with torch.no_grad():
            model(inputs())
        log.events.clear()
        model(inputs()).sum().backward()

    assert [
        note for what, direction, note in log.events if (what, direction) == ("<", "backward")
    ] == [
        "Sequential:0",
        "2:0",
    ]


def test_p5_an_input_that_needs_no_gradient():
    """An embedding of whole numbers has its begin, and its end after its weight's gradient."""
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), []

    class Watch(ModuleHook):
        def backward_preprocess(self, call):
            seen.append((call.label, model[0].weight.grad is not None))

        backward_postprocess = backward_preprocess

    with Watch():
        model(torch.tensor([1, 3])).sum().backward()

    assert seen == [
        ("Sequential", False),
        ("1", False),
        ("1", False),
        ("0", False),
        ("0", True),
        ("Sequential", True),
    ]


def test_frozen_layers_on_the_way_have_their_events():
    """A layer without trainable parameters has a backward if a gradient passes through it."""
    model = made(MODELS["plain"])
    for p in model[2].parameters():
        p.requires_grad_(False)
    with Log() as log:
        model(inputs()).sum().backward()

    assert log.trees("backward") == mirrored(log.trees("forward"))


def test_two_models_in_one_graph():
    """A generator and a discriminator: each has its calls under its own name."""

    class Generator(nn.Linear):
        pass

    class Discriminator(nn.Linear):
        pass

    generator, discriminator = Generator(4, 4), Discriminator(4, 1)
    with Log() as log:
        discriminator(generator(inputs())).sum().backward()

    assert log.trees("backward") == [
        [("backward", "Discriminator:0")],
        [("backward", "Generator:0")],
    ]


# ------------------------------------------------------------------------- nothing stays


def test_r5_nothing_is_alive_once_the_graph_is_gone():
    """With garbage collection off: outputs, calls and the model go when they are let go."""
    for run in ("backward", "no backward", "failing backward"):
        model = made(MODELS["nested"])
        calls = []
        log = Log(lambda call, calls=calls: calls.append(weakref.ref(call)))
        gc.disable()
        try:
            with log:
                out = model(inputs(needs_grad=True))
                kept = [weakref.ref(out), weakref.ref(model), weakref.ref(model[0].inner)]
                if run == "failing backward":
                    out.register_hook(lambda grad: 1 / 0)
                    with contextlib.suppress(ZeroDivisionError):
                        out.sum().backward()
                elif run == "backward":
                    out.sum().backward()
            del out, model
            assert [ref() for ref in kept] == [None] * 3, run
            assert {ref() for ref in calls} == {None}, run
        finally:
            gc.enable()


def test_r5_steps_that_follow_do_not_add_up(alive):
    """Ten steps with hooks leave as many tensors and calls alive as one."""
    model = made(MODELS["mixed"])

    def steps(count):
        for _ in range(count):
            model(inputs()).sum().backward()
            model.zero_grad()
        kinds = (torch.Tensor, hookline.ModuleCall, Mark, Window)
        return len(alive(*kinds))

    with Log(lambda call: None):
        assert steps(2) == steps(10)


@pytest.mark.parametrize("run", ["plain", "partial", "create_graph", "failing"])
def test_r5_nothing_is_left_on_the_nodes(run, alive):
    """While the graph is still there, nothing of a run that is over is."""
    model, x = made(MODELS["nested"]), inputs(needs_grad=True)
    with Log():
        loss = model(x).sum()
        if run == "plain":
            loss.backward(retain_graph=True)
        elif run == "partial":
            torch.autograd.grad(loss, model[0].inner[0].weight, retain_graph=True)
        elif run == "create_graph":
            torch.autograd.grad(loss, x, create_graph=True)
        else:
            failing = hookline.register_full_backward_pre_hook(model[0], lambda *_: 1 / 0)
            with failing, pytest.raises(ZeroDivisionError):
                loss.backward(retain_graph=True)
        assert alive(backward.Run, backward.Stop, Window) == []
    assert loss.grad_fn is not None
    assert x._backward_hooks is None
    assert all(p._backward_hooks is None for p in model.parameters())


def test_p5_a_hook_may_make_the_output_need_a_gradient():
    """As in fine-tuning, where the embedding is frozen and what comes after it is not."""
    frozen, seen = nn.Embedding(4, 3).requires_grad_(False), []
    hookline.register_forward_hook(frozen, lambda module, args, out: out.requires_grad_())
    hookline.register_full_backward_hook(frozen, lambda module, given, made: seen.append(made))
    (frozen(torch.tensor([1, 2])) * 2).sum().backward()
    assert [grad.tolist() for (grad,) in seen] == [[[2.0] * 3] * 2]
    hookline.clear_hooks(frozen)
