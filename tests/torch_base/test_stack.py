"""Whose call is it: passes, indexes, modes, steps, and the calls that checkpoints repeat."""

import threading
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from hookline import ModuleHook, add_hook, register_full_backward_hook
from hookline.torch_base.paths import roots
from hookline.torch_base.stack import steps

FORWARD, BACKWARD = ("forward_pre", "forward"), ("backward_pre", "backward")
X = torch.linspace(-1, 1, 6).reshape(3, 2)


class Row(NamedTuple):
    """What a call said of itself at one event."""

    phase: str
    root: str
    path: str
    index: int
    pass_number: int
    step: int
    mode: str
    recomputing: bool
    call: object


class Calls(ModuleHook):
    """Keeps what calls say of themselves, at the given phases."""

    def __init__(self, *phases):
        self.wanted = phases or ("forward",)
        self.rows = []

    def note(self, call, phase=None):
        phase = phase or call.phase
        if phase in self.wanted:
            root = call.root.partition("#")[0]  # another of the class may not be collected yet
            known = (root, call.path, call.index, call.pass_number, call.step, call.mode)
            self.rows.append(Row(str(phase), *known, call.recomputing, call))

    forward_preprocess = forward_postprocess = note
    backward_preprocess = backward_postprocess = note

    def aborted(self, call, exception):
        self.note(call, "aborted")

    def take(self, *fields):
        """The given fields of the events since the last time."""
        rows, self.rows = self.rows, []
        return [tuple(getattr(row, field) for field in fields) for row in rows]


@pytest.fixture
def step():
    """The optimizer steps that were counted before the test."""
    return steps.count


class Net(nn.Module):
    """Calls `act` after each of its two layers."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(2, 4), nn.Linear(4, 2), nn.Tanh()

    def forward(self, x):
        return self.act(self.two(self.act(self.one(x))))


# ------------------------------------------------------------------------------ index and pass


def test_r8_the_index_counts_the_calls_of_a_module_in_its_pass():
    """0 for the first call of a module, 1 for the next, and from 0 again in the next pass."""
    net = Net()
    with Calls() as calls:
        net(X)
        net(X)

    one_pass = [("one", 0), ("act", 0), ("two", 0), ("act", 1), ("", 0)]
    assert calls.take("path", "index", "pass_number") == [
        *[(*row, 0) for row in one_pass],
        *[(*row, 1) for row in one_pass],
    ]


def test_r8_all_phases_of_a_call_tell_the_same():
    """The four events of a call have one object, and what it says does not change."""
    net = Net()
    with Calls(*FORWARD, *BACKWARD) as calls:
        net(X).sum().backward()
    rows = calls.rows

    assert Counter(row.call for row in rows) == dict.fromkeys({row.call for row in rows}, 4)
    for call in {row.call for row in rows}:
        own = [row for row in rows if row.call is call]
        assert [row.phase for row in own] == [*FORWARD, *BACKWARD]
        assert len({row[1:] for row in own}) == 1


def test_r8_backward_events_carry_the_index_of_their_forward():
    """The backward of a module that was called twice comes in reverse, with the right indexes."""
    net = Net()
    with Calls("backward") as calls:
        net(X).sum().backward()

    assert calls.take("path", "index") == [
        *[("act", 1), ("two", 0), ("act", 0), ("one", 0)],
        ("", 0),
    ]


def test_r8_backwards_of_earlier_passes_keep_their_pass():
    """Two forwards, then their backwards: each event belongs to the pass that made it."""
    net = Net()
    with Calls("backward") as calls:
        first, second = net(X), net(X)
        first.sum().backward()
        assert set(calls.take("pass_number")) == {(0,)}
        second.sum().backward()
        assert set(calls.take("pass_number")) == {(1,)}


def test_r8_recursion_counts_up():
    """A module that calls itself has one call inside the other, with the next index."""

    class Recursive(nn.Module):
        def forward(self, x, depth):
            return self(x, depth - 1) if depth else x

    with Calls(*FORWARD) as calls:
        Recursive()(X, 2)

    assert calls.take("phase", "index", "pass_number") == [
        *[("forward_pre", index, 0) for index in (0, 1, 2)],
        *[("forward", index, 0) for index in (2, 1, 0)],
    ]


def test_r8_a_failed_pass_is_a_pass():
    """After an error the next call opens the next pass, with indexes from 0."""
    net = Net()
    with Calls("forward_pre") as calls:
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        net(X)

    assert calls.take("path", "index", "pass_number") == [
        *[("", 0, 0), ("one", 0, 0)],
        *[("", 0, 1), ("one", 0, 1), ("act", 0, 1), ("two", 0, 1), ("act", 1, 1)],
    ]


def test_r8_hooks_on_single_modules_share_the_pass_of_an_unwatched_root():
    """Modules watched one by one have one pass for each call of the model around them."""
    net, calls = Net(), Calls()
    handles = [add_hook(net.act, calls), add_hook(net.two, calls)]
    for _ in range(2):
        net(X)

    rows = calls.take("root", "path", "index", "pass_number")
    first = rows[0][-1]  # passes in which nothing was watched are not counted
    assert rows == [
        ("Net", path, index, first + number)
        for number in (0, 1)
        for path, index in (("act", 0), ("two", 0), ("act", 1))
    ]
    for handle in handles:
        handle.remove()


# ------------------------------------------------------------------------------------- modes


class Mixed(nn.Module):
    """Runs its backbone without gradients."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        with torch.no_grad():
            x = self.backbone(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("training", "context", "mode"),
    [
        (True, torch.enable_grad, "train"),
        (True, torch.no_grad, "no_grad"),
        (True, torch.inference_mode, "no_grad"),
        (False, torch.enable_grad, "eval"),
        (False, torch.no_grad, "eval"),
        (False, torch.inference_mode, "eval"),
    ],
)
@pytest.mark.parametrize("watched", ["all", "children"])
def test_r8_the_mode_is_that_of_the_pass(training, context, mode, watched):
    """`eval` if the root is in eval mode, else `no_grad` or `train` as the pass began."""
    net, calls = Mixed().train(training), Calls()
    hooked = net.modules() if watched == "all" else net.children()
    handles = [add_hook(module, calls) for module in hooked]
    with context():
        net(X)

    assert {row.mode for row in calls.rows} == {mode}
    assert {row.path for row in calls.rows} >= {"backbone", "head"}
    for handle in handles:
        handle.remove()


def test_r8_the_mode_of_a_part_does_not_count():
    """A frozen part in eval mode inside a model in training: a training pass, and vice versa."""
    net = Net()
    net.act.eval()
    with Calls() as calls:
        net(X)
        assert {row[0] for row in calls.take("mode")} == {"train"}

        net.eval()
        net.act.train()
        net(X)
        assert {row[0] for row in calls.take("mode")} == {"eval"}


# -------------------------------------------------------------------- several roots and passes


class Generator(Net):
    """Makes samples."""


class Critic(nn.Sequential):
    """Judges them."""

    def __init__(self):
        super().__init__(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


def test_r8_a_gan_has_three_roots(step):
    """Generator, critic and loss have passes of their own; steps of both optimizers are counted."""
    generator, critic, loss = Generator(), Critic(), nn.BCEWithLogitsLoss()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (critic, generator)]
    real, ones, zeros = X + 1, torch.ones(3, 1), torch.zeros(3, 1)
    with Calls() as calls:
        for _ in range(2):
            optimizers[0].zero_grad()
            judged = loss(critic(real), ones) + loss(critic(generator(X).detach()), zeros)
            judged.backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            loss(critic(generator(X)), ones).backward()
            optimizers[1].step()

    outermost = [row for row in calls.rows if not row.path]
    assert {row.root for row in calls.rows} == {"Generator", "Critic", "BCEWithLogitsLoss"}
    assert [(row.root, row.pass_number, row.step - step) for row in outermost] == [
        *[("Critic", 0, 0), ("BCEWithLogitsLoss", 0, 0)],
        *[("Generator", 0, 0), ("Critic", 1, 0), ("BCEWithLogitsLoss", 1, 0)],
        *[("Generator", 1, 1), ("Critic", 2, 1), ("BCEWithLogitsLoss", 2, 1)],
        *[("Critic", 3, 2), ("BCEWithLogitsLoss", 3, 2)],
        *[("Generator", 2, 2), ("Critic", 4, 2), ("BCEWithLogitsLoss", 4, 2)],
        *[("Generator", 3, 3), ("Critic", 5, 3), ("BCEWithLogitsLoss", 5, 3)],
    ]
    assert all(row.index == 0 for row in calls.rows if row.path != "act")


def test_r8_backwards_of_several_roots_go_to_their_own():
    """One backward through three roots gives each of them its events, with its own pass."""
    generator, critic, loss = Generator(), Critic(), nn.BCEWithLogitsLoss()
    with Calls("backward") as calls:
        critic(X)  # a pass of the critic that takes no part
        loss(critic(generator(X)), torch.ones(3, 1)).backward()

    assert calls.take("root", "path", "index", "pass_number") == [
        ("BCEWithLogitsLoss", "", 0, 0),
        *[("Critic", path, 0, 1) for path in ("2", "1", "0", "")],
        *[("Generator", "act", 1, 0), ("Generator", "two", 0, 0)],
        *[("Generator", "act", 0, 0), ("Generator", "one", 0, 0), ("Generator", "", 0, 0)],
    ]


def test_r8_a_loss_inside_a_model_is_in_it_only_if_it_is_its_child():
    """A loss called from a model's forward is a root, unless the model holds it."""
    criterion = nn.MSELoss()

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.loss = nn.Linear(2, 2), nn.MSELoss()

        def forward(self, x):
            y = self.layer(x)
            return self.loss(y, x) + criterion(y, x) + criterion(y, -x)

    model = Own()
    with Calls() as calls:
        model(X).backward()
        model(X).backward()

    once = [("Own", "layer", 0), ("Own", "loss", 0)]
    once += [("MSELoss", "", 0), ("MSELoss", "", 1), ("Own", "", 0)]
    assert calls.take("root", "path", "index", "pass_number") == [
        *[(*row, 0) for row in once],
        *[(*row, 1) for row in once],
    ]


class Lightning(nn.Module):
    """A model that is never called itself: its training step calls its children."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.act = nn.Linear(2, 4), nn.Linear(4, 2), nn.Tanh()

    def training_step(self, x):
        return self.act(self.decoder(self.act(self.encoder(x)))).square().mean()

    validation_step = training_step


LIGHTNING = [("encoder", 0), ("act", 0), ("decoder", 0), ("act", 1)]


def test_r8_children_called_by_a_training_step_make_one_pass_a_step(step):
    """Built while hooks are on, the children are in their model, with one pass for each step."""
    with Calls() as calls:
        model = Lightning()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model.training_step(X).backward()
            optimizer.step()

    assert calls.take("root", "path", "index", "pass_number", "step", "mode") == [
        ("Lightning", path, index, number, step + number, "train")
        for number in range(3)
        for path, index in LIGHTNING
    ]


def test_r8_accumulated_gradients_make_a_pass_for_each_backward(step):
    """Each part of an accumulated step is a pass of its own, with the step's number."""
    with Calls(*BACKWARD, "forward") as calls:
        model = Lightning()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for part in X.split(1):
                model.training_step(part).backward()
            optimizer.step()

    forwards = [row for row in calls.rows if row.phase == "forward"]
    backwards = [row for row in calls.rows if row.phase == "backward"]
    expected = [(path, index, number) for number in range(6) for path, index in LIGHTNING]
    assert [(row.path, row.index, row.pass_number) for row in forwards] == expected
    assert {(row.pass_number, row.step - step) for row in calls.rows} == {
        *[(0, 0), (1, 0), (2, 0)],
        *[(3, 1), (4, 1), (5, 1)],
    }
    assert [(row.path, row.index, row.pass_number) for row in backwards] == [
        (path, index, number) for number in range(6) for path, index in reversed(LIGHTNING)
    ]


def test_r8_an_update_ends_a_pass(step):
    """After an optimizer step the next call of a child begins a pass, whether a backward ran."""
    with Calls() as calls:
        model = Lightning()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model.training_step(X)
            optimizer.step()

    assert [(row.pass_number, row.step - step) for row in calls.rows] == (
        [(0, 0)] * len(LIGHTNING) + [(1, 1)] * len(LIGHTNING)
    )


def test_r8_evaluation_between_training_steps(step):
    """Evaluation batches are passes of their own, and do not disturb those of training."""
    with Calls() as calls:
        model = Lightning()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model.training_step(X).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                for part in X.split(1):
                    model.validation_step(part)
            model.train()

    assert calls.take("path", "index", "pass_number", "step", "mode") == [
        (path, index, number, step + steps_before, mode)
        for number, (steps_before, mode) in enumerate(
            [(0, "train"), *[(1, "eval")] * 3, (1, "train"), *[(2, "eval")] * 3]
        )
        for path, index in LIGHTNING
    ]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_r8_evaluation_without_eval_mode(context):
    """Without gradients a model in training mode has passes in mode `no_grad`, one a batch."""
    with Calls() as calls:
        model = Lightning()
        model.training_step(X)
        with context():
            for part in X.split(1):
                model.validation_step(part)

    passes = [(row.pass_number, row.mode) for row in calls.rows]
    assert passes == [(0, "train")] * 4 + [
        (number, "no_grad") for number in (1, 2, 3) for _ in LIGHTNING
    ]


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (torch.optim.SGD, 1),
        (torch.optim.AdamW, 1),
        (lambda parameters: torch.optim.LBFGS(parameters, max_iter=3), 1),
    ],
    ids=["SGD", "AdamW", "LBFGS"],
)
def test_r8_steps_of_any_optimizer_are_counted(make, count, step):
    """Each call of an optimizer's `step` counts once, however often it runs the model."""
    net = Net()
    optimizer = make(net.parameters())

    def closure():
        optimizer.zero_grad()
        loss = net(X).square().sum()
        loss.backward()
        return loss

    with Calls() as calls:
        optimizer.step(closure)
        net(X)

    assert {row.step - step for row in calls.rows[:-5]} == {0}
    assert {row.step - step for row in calls.rows[-5:]} == {count}


def test_r8_a_step_without_hooks_is_not_counted(step):
    """Steps are counted while hooks are on, and nothing is hooked otherwise."""
    net = Net()
    torch.optim.SGD(net.parameters(), lr=0.1).step()

    assert steps.count == step


# ------------------------------------------------------------------------------ recomputation


class Block(nn.Module):
    """Uses its activation twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(2, 2), nn.Tanh()

    def forward(self, x):
        return self.act(self.layer(self.act(x)))


class Checkpointed(nn.Module):
    """Runs one block three times, each time under a checkpoint, and once plainly in between."""

    def __init__(self, **options):
        super().__init__()
        self.block, self.options = Block(), options

    def forward(self, x):
        for place in range(4):
            x = self.block(x) if place == 2 else checkpoint(self.block, x, **self.options)
        return x


KINDS = [
    {"use_reentrant": True},
    {"use_reentrant": False},
    {"use_reentrant": False, "early_stop": False},
]


def pairs(rows):
    """Whether each begin is followed by exactly one end or abort of its call."""
    begun, ended = Counter(), Counter()
    for row in rows:
        side = begun if row.phase in ("forward_pre", "backward_pre") else ended
        side[row.call, row.phase.startswith("backward") if row.phase != "aborted" else False] += 1
    return begun == ended


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_r8_a_recomputed_call_has_the_index_of_the_call_it_repeats(options):
    """A layer checkpointed three times is computed again with the right index, innermost too."""
    net = Checkpointed(**options)
    x = X.clone().requires_grad_()
    with Calls("forward_pre") as calls:
        y = net(x)
        first = calls.take("path", "index", "pass_number", "recomputing")
        y.sum().backward()
        repeated = calls.take("path", "index", "pass_number", "recomputing")
        net(x)
        after = calls.take("path", "index", "pass_number", "recomputing")

    def block(place):
        inner = [("block.act", 2 * place), ("block.layer", place), ("block.act", 2 * place + 1)]
        return [("block", place), *inner]

    assert first == [("", 0, 0, False)] + [
        (*row, 0, False) for place in range(4) for row in block(place)
    ]
    # The last layer of a block is reached before an early stop, so all begin again.
    assert repeated == [(*row, 0, True) for place in (3, 1, 0) for row in block(place)]
    assert after == [(path, index, 1, False) for path, index, *_ in first]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_r8_recomputed_calls_are_paired_and_leave_counters_alone(options):
    """Each begin has one end, also where the checkpoint stops early; gradients are unchanged."""
    net = Checkpointed(**options)
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    with Calls(*FORWARD, *BACKWARD, "aborted") as calls:
        net(x).sum().backward()

    assert pairs(calls.rows)
    assert all(row.recomputing for row in calls.rows if row.phase == "aborted")
    assert bool([row for row in calls.rows if row.phase == "aborted"]) == (options == KINDS[1])
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_r8_a_checkpoint_of_a_plain_function(options):
    """What a function calls under a checkpoint is matched too, module by module."""
    net = Net()

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def part(self, x):
            return self.net.two(self.net.act(self.net.one(x)))

        def forward(self, x):
            for _ in range(2):
                x = checkpoint(self.part, x, **options)
            return x

    with Calls("forward_pre") as calls:
        y = Part()(X.clone().requires_grad_())
        calls.take()
        y.sum().backward()

    assert calls.take("path", "index", "recomputing") == [
        (path, index, True) for index in (1, 0) for path in ("net.one", "net.act", "net.two")
    ]


# The inner one is called where gradients are off, of which torch warns.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_r8_nested_checkpoints(options):
    """A checkpoint inside a checkpoint: each repeat has the index of the first call, all paired."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner, self.last = Block(), Block(), Block()

        def forward(self, x):
            return self.last(checkpoint(self.inner, self.first(x), **options))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer = Outer()

        def forward(self, x):
            for _ in range(2):
                x = checkpoint(self.outer, x, **options)
            return x

    model = Model()
    x = X.clone().requires_grad_()
    with Calls(*FORWARD, "aborted", "backward_pre") as calls:
        y = model(x)
        counted = Counter((row.path, row.index) for row in calls.rows if row.phase == "forward_pre")
        y.sum().backward()
        rows, calls.rows = calls.rows, []
        model(x)

    repeated = [row for row in rows if row.phase == "forward_pre" and row.recomputing]
    times = Counter((row.path, row.index) for row in repeated)
    inner = {(path, index) for path, index in counted if path.startswith("outer.inner")}
    assert set(times) == set(counted) - {("", 0)}
    assert all(times[known] == (2 if known in inner else 1) for known in times)
    assert pairs([row for row in rows if row.phase != "backward_pre"])
    assert {row.pass_number for row in rows} == {0}
    assert {row.pass_number for row in calls.rows} == {1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_r8_checkpoints_over_a_sequence(reentrant):
    """Torch's own helper for sequences gives the same."""
    with Calls("forward") as calls:
        net = nn.Sequential(*[Block() for _ in range(4)])
        y = checkpoint_sequential(net, 2, X.clone().requires_grad_(), use_reentrant=reentrant)
        first = calls.take("path", "index")
        y.sum().backward()
        repeated = calls.take("path", "index", "recomputing")

    assert set(repeated) <= {(path, index, True) for path, index in first}
    # Of the segments, only the last is no checkpoint.
    assert {path for path, *_ in repeated if "." in path} >= {"0.act", "0.layer", "1.act"}
    assert not {path for path, *_ in repeated} & {"2", "3"}


def test_r8_backwards_of_two_passes_of_checkpoints():
    """The repeat belongs to the pass whose backward runs, not to the latest one."""
    for options in KINDS:
        net = Checkpointed(**options)
        with Calls("forward_pre") as calls:
            first, second = net(X.clone().requires_grad_()), net(X.clone().requires_grad_())
            calls.take()
            for number, y in enumerate([first, second]):
                y.sum().backward()
                rows = calls.take("path", "index", "pass_number", "recomputing")
                assert [row[1] for row in rows if row[0] == "block"] == [3, 1, 0]
                assert {row[2:] for row in rows} == {(number, True)}


def test_r8_a_retained_graph_is_repeated_each_time():
    """A second backward over the same graph computes again, with the same indexes."""
    net = Checkpointed(use_reentrant=False)
    with Calls("forward_pre") as calls:
        y = net(X.clone().requires_grad_()).sum()
        calls.take()
        y.backward(retain_graph=True)
        first = calls.take("path", "index", "pass_number", "recomputing")
        y.backward()

    assert calls.take("path", "index", "pass_number", "recomputing") == first


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_r8_calls_that_are_seen_only_when_repeated(options):
    """They say that they are repeats, each with a number of its own; what comes after is apart."""
    model = nn.Sequential(Block())
    roots.declare(model)  # it is not called in the steps, only its child

    def step():
        part = lambda x: model[0](model[0](x))  # noqa: E731
        return checkpoint(part, X.clone().requires_grad_(), **options).sum()

    y = step()
    with Calls("forward_pre") as calls:
        y.backward()
        repeated = calls.take("path", "index", "recomputing")
        step()
        after = calls.take("path", "index", "recomputing")

    known = [("0", 0), ("0.act", 0), ("0.layer", 0), ("0.act", 1)]
    known += [("0", 1), ("0.act", 2), ("0.layer", 1), ("0.act", 3)]
    assert repeated == [(path, index, True) for path, index in known]
    assert after[:4] == [(path, index, False) for path, index in known[:4]]


def test_r8_calls_by_a_backward_hook_are_ordinary():
    """A model that a hook calls inside the backward has a pass of its own."""
    net, probe = Net(), nn.Linear(2, 2)
    results = []
    handle = register_full_backward_hook(net.two, lambda *_: results.append(probe(X)))
    with Calls("forward") as calls:
        y = net(X)
        calls.take()
        y.sum().backward()
    handle.remove()

    assert len(results) == 1
    assert calls.take("root", "path", "index", "pass_number", "recomputing") == [
        ("Linear", "", 0, 0, False)
    ]


def test_r8_a_backward_inside_a_forward():
    """A gradient computed in the forward (a penalty) leaves the passes around it alone."""

    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.last = Net(), nn.Linear(2, 1)

        def forward(self, x):
            with torch.enable_grad():
                x = x.requires_grad_()
                (gradient,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
            return self.last(gradient) + self.last(x)

    with Calls("forward", "backward") as calls:
        Penalty()(X.clone()).sum().backward()

    forwards = [row for row in calls.rows if row.phase == "forward"]
    assert {(row.root, row.pass_number, row.recomputing) for row in calls.rows} == {
        ("Penalty", 0, False)
    }
    assert [(row.path, row.index) for row in forwards] == [
        *[("net.one", 0), ("net.act", 0), ("net.two", 0), ("net.act", 1), ("net", 0)],
        *[("last", 0), ("last", 1), ("", 0)],
    ]


# ------------------------------------------------------------------------------------- threads


@pytest.mark.usefixtures("frequent_switches")
def test_r11_threads_that_run_one_model_have_passes_of_their_own():
    """Calls of several threads mix in time, not in passes; no pass number is given twice."""
    net, calls, errors = Net(), Calls("forward", "backward"), []
    handles = [add_hook(module, calls) for module in net.modules()]
    barrier = threading.Barrier(4)

    def work():
        try:
            barrier.wait()
            for _ in range(25):
                net(X).sum().backward()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handle in handles:
        handle.remove()

    one_pass = [("one", 0), ("act", 0), ("two", 0), ("act", 1), ("", 0)]
    passes = {}
    for row in calls.rows:
        passes.setdefault((row.root, row.pass_number), []).append(row)
    assert not errors
    assert len(passes) == 100
    for rows in passes.values():
        forwards = [(row.path, row.index) for row in rows if row.phase == "forward"]
        backwards = [(row.path, row.index) for row in rows if row.phase == "backward"]
        assert forwards == one_pass
        assert sorted(backwards) == sorted(one_pass)
        assert len({row.call.thread for row in rows}) == 1


def test_r11_a_scope_counts_the_passes_of_its_thread():
    """Another thread's passes are numbered too, but the scope sees none of its calls."""
    net = Net()
    with Calls() as calls:
        net(X)
        thread = threading.Thread(target=net, args=(X,))
        thread.start()
        thread.join()
        net(X)

    assert Counter(row.path for row in calls.rows) == {"one": 2, "act": 4, "two": 2, "": 2}
    assert [row.index for row in calls.rows if row.path == ""] == [0, 0]
