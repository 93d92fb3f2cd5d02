"""The memory hooks: every number against a plain count, and nothing that it changes or keeps."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline.core.thread import local
from hookline.errors import HookValueError
from hookline.hooks.memory import FunctionMemoryHook, ModuleMemoryHook

BOTH = pytest.mark.parametrize("hook_class", [ModuleMemoryHook, FunctionMemoryHook])
REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


class Plain:
    """Counts by `saved_tensors_hooks`: distinct storages, for the innermost module at first."""

    def __init__(self, model):
        self.model = model
        self.stack = []
        self.own = {}
        self.kept = []  # so that no address is used again
        self.state = {
            t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())
        }
        self.seen = set()

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if self.stack and key not in self.state | self.seen:
            self.seen.add(key)
            self.kept.append(storage)
            self.own[self.stack[-1]] = self.own.get(self.stack[-1], 0) + storage.nbytes()
        return tensor

    def leave(self, *_):
        self.stack.pop()

    def run(self, work):
        handles = []
        for path, module in self.model.named_modules():
            pre = module.register_forward_pre_hook(lambda *_, path=path: self.stack.append(path))
            handles += [pre, module.register_forward_hook(self.leave)]
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor):
            result = work()
        for handle in handles:
            handle.remove()
        return result

    def whole(self, path):
        inside = (
            own for p, own in self.own.items() if not path or (p + ".").startswith(path + ".")
        )
        return sum(inside)


def by_path(hook):
    """The rows of modules by path."""
    return {row.path: row for row in hook.rows()}


def by_name(hook):
    """The rows of functions by name."""
    return {row.name: row for row in hook.rows()}


# The numbers.


def test_saved_bytes_are_those_of_a_plain_saved_tensors_hooks_count(case):
    """Five kinds of models: of each module, with and without what is in it."""
    plain = Plain(case.model)
    torch.manual_seed(1)
    plain.run(case.loss)
    torch.manual_seed(1)
    with ModuleMemoryHook() as memory:
        case.loss().backward()
    # A loss that the model makes for the occasion is a root of its own; torch's hooks miss it.
    rows = [row for row in memory.rows() if row.type != "CrossEntropyLoss"]
    loss = sum(row.saved_bytes for row in memory.rows() if row.type == "CrossEntropyLoss")
    assert plain.whole("") > 0
    for row in rows:
        own = row.self_saved_bytes + (loss if row.path == "" else 0)
        assert (row.path, own) == (row.path, plain.own.get(row.path, 0))
        assert (row.path, row.saved_bytes) == (row.path, plain.whole(row.path))
        assert row.packed == row.packed_bytes == 0
    assert set(plain.own) <= {row.path for row in rows}


def test_output_bytes_are_those_of_storages_that_no_input_has(case):
    """Five kinds of models: of each module, by torch's own hooks."""
    expected = {}

    def storages(value):
        found = hookline.torch_base.tree.tensors(value)
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}

    def look(path):
        def hook(module, args, kwargs, output):
            given = storages((args, kwargs))
            new = sum(size for key, size in storages(output).items() if key not in given)
            expected[path] = expected.get(path, 0) + new

        return hook

    handles = [
        module.register_forward_hook(look(path), with_kwargs=True)
        for path, module in case.model.named_modules()
    ]
    case.loss()
    for handle in handles:
        handle.remove()
    with ModuleMemoryHook() as memory:
        case.loss()
    assert {path: row.output_bytes for path, row in by_path(memory).items()} == expected


def test_functions_keep_in_all_what_the_modules_keep(case):
    """Each storage belongs to one function; what they keep is what a plain count gives."""
    plain = Plain(case.model)
    torch.manual_seed(1)
    plain.run(case.loss)
    torch.manual_seed(1)
    with FunctionMemoryHook() as memory:
        case.loss()
    inside = [row for row in memory.rows() if row.path is not None]
    for path in plain.own:
        found = sum(row.saved_bytes for row in inside if row.path == path)
        assert (path, found) == (path, plain.own[path])
    assert all(row.saved_bytes == row.self_saved_bytes for row in inside)


def test_outputs_in_place_views_and_identities_hold_nothing_new():
    """What comes with an input is not counted again."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Identity())
    with ModuleMemoryHook() as memory:
        model(torch.ones(3, 4))
    found = {path: row.output_bytes for path, row in by_path(memory).items()}
    assert found == {"0": 48, "1": 0, "2": 0, "3": 0, "": 48}


def test_a_view_holds_the_whole_storage():
    """A slice of something larger keeps all of it."""

    class Slice(nn.Module):
        def forward(self, x):
            return (x + 1)[:1]

    with ModuleMemoryHook() as memory:
        Slice()(torch.ones(100, 4))
    assert memory.rows()[0].output_bytes == 1600


def test_functions_that_write_hold_nothing_new():
    """In place, by `out=` and by assignment."""
    x, out = torch.ones(4), torch.empty(4)
    with FunctionMemoryHook() as memory:
        x.add_(1)
        torch.neg(x, out=out)
        x[0] = 2
    found = {row.name: row.output_bytes for row in memory.rows()}
    assert found == {"add_": 0, "neg": 0, "setitem": 0}


def test_a_storage_belongs_to_the_call_that_kept_it_first():
    """Also where a function of the outer module came before the inner module."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(torch.sigmoid(x))

    with ModuleMemoryHook() as memory:
        Net()(torch.ones(8, 4, requires_grad=True))
    rows = by_path(memory)
    assert (rows["inner"].saved_bytes, rows["inner"].output_bytes) == (0, 128)
    assert (rows[""].saved_bytes, rows[""].self_saved_bytes) == (128, 128)


def test_what_an_inner_call_hides_from_its_output_is_still_its_own():
    """A loss put aside belongs to the module that made it, though only the outer returns it."""

    class Inner(nn.Module):
        def forward(self, x):
            self.aside = (x * 1).exp().sum()
            return x + 1

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x).sum() + self.inner.aside

    model = Outer()
    with ModuleMemoryHook() as memory:
        model(torch.ones(10, requires_grad=True))
    del model.inner.aside
    rows = by_path(memory)
    assert (rows["inner"].saved_bytes, rows[""].self_saved_bytes) == (40, 0)


def test_a_shared_module_adds_up_in_a_pass_and_tells_of_one_call():
    """Called three times a pass, in two passes of different size."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x):
            return self.act(self.act(self.act(x)))

    model = Net()
    with ModuleMemoryHook() as memory:
        model(torch.ones(10, requires_grad=True))
        model(torch.ones(5, requires_grad=True))
    row = by_path(memory)["act"]
    assert (row.calls, row.passes) == (6, 2)
    assert (row.output_bytes, row.saved_bytes) == (120, 120)
    assert (row.output_bytes_call, row.saved_bytes_call) == (40, 40)
    assert (row.output_bytes_last, row.saved_bytes_last) == (60, 60)


def test_one_storage_is_counted_once_a_pass_and_in_every_pass():
    """The batch is the same each time, and two layers that are watched apart keep it."""
    x = torch.ones(16, 4)
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    net = nn.Module()
    net.layers = model
    net.forward = lambda x: net.layers[0](x) + net.layers[1](x)
    with hookline.watch(net, memory := ModuleMemoryHook(), where="layers.*"):
        for _ in range(3):
            net(x)
    rows = by_path(memory)
    assert [rows["layers.0"].saved_bytes, rows["layers.1"].saved_bytes] == [256, 0]
    assert [rows["layers.0"].passes, rows["layers.0"].saved_bytes_last] == [3, 256]


def test_parameters_and_buffers_are_left_out():
    """Frozen ones too, views of them, and what batch norm keeps of its statistics."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.requires_grad_(requires_grad=False)
    x = torch.ones(8, 4, requires_grad=True)
    with ModuleMemoryHook() as memory:
        model(x)
    rows = by_path(memory)
    assert rows["0"].saved_bytes == 0  # its input is needed for the frozen weight's gradient only
    assert rows["1"].saved_bytes == 128 + 2 * 16  # the input, mean and deviation of the batch


def test_a_lazy_modules_parameters_are_left_out_from_the_first_pass_on():
    """They get their storage while the call runs."""
    model = nn.Sequential(nn.LazyLinear(4))
    with ModuleMemoryHook() as memory:
        model(torch.ones(8, 4, requires_grad=True))
    assert by_path(memory)["0"].saved_bytes == 128


def test_parameters_of_no_module_are_left_out_at_functions():
    """A weight that is passed to a function, and a view of it."""
    weight = nn.Parameter(torch.ones(4, 4))
    x = torch.ones(8, 4, requires_grad=True)
    with FunctionMemoryHook() as memory:
        F.linear(x, weight)
    assert by_name(memory)["linear"].saved_bytes == 128


def test_parameter_and_gradient_bytes_are_those_of_now():
    """Tied ones once; gradients once they are there; nothing once the module is gone."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with ModuleMemoryHook() as memory:
        out = model(torch.ones(2, 4))
    assert [(row.parameter_bytes, row.gradient_bytes) for row in memory.rows()] == [
        (80, 0),
        (80, 0),
        (96, 0),
    ]
    out.sum().backward()
    assert by_path(memory)[""].gradient_bytes == 96
    del model, out
    gc.collect()
    assert [row.parameter_bytes for row in memory.rows()] == [None] * 3


def test_a_thread_beside_the_program_reads_no_gradients(monkeypatch):
    """Torch may crash where a backward writes them meanwhile; parameters are told all the same."""
    model = nn.Linear(4, 4)
    with ModuleMemoryHook() as memory:
        model(torch.ones(2, 4)).sum().backward()
    with monkeypatch.context() as patched:
        patched.setattr(local.thread, "onlooker", True)
        (row,) = memory.rows()
    assert (row.parameter_bytes, row.gradient_bytes) == (80, None)
    assert memory.rows()[0].gradient_bytes == 80


# Packed tensors, checkpoints and other kinds of nodes.


class Block(nn.Module):
    """Something worth a checkpoint."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x).sigmoid().exp()


class Checkpointed(nn.Module):
    """A block in a checkpoint."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.block = Block()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.block, x * 1, use_reentrant=self.reentrant)


@BOTH
@REENTRANT
def test_a_checkpoint_computes_nothing_again(hook_class, reentrant):
    """Until the backward; there the repeated forward is left out."""
    model = Checkpointed(reentrant=reentrant)
    with hook_class() as memory:
        out = model(torch.ones(8, 4, requires_grad=True))
        rows = memory.rows()
        assert model.block.calls == 1
        out.sum().backward()
    assert model.block.calls == 2
    assert [row.calls for row in memory.rows() if row.path is not None] == [
        row.calls for row in rows if row.path is not None
    ]


def test_what_is_in_a_checkpoint_is_packed_without_bytes():
    """Five tensors are known to be there: input and weight, sigmoid's and exp's results."""
    model = Checkpointed(reentrant=False)
    packed = []
    x = torch.ones(8, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        model.block(x * 1)
    with ModuleMemoryHook() as memory:
        model(x)
    row = by_path(memory)["block"]
    assert row.packed == len(packed) > 0
    assert (row.saved_bytes, row.packed_bytes) == (0, 0)


def test_a_reentrant_checkpoint_keeps_its_input():
    """Its node does; the block in it, run without gradients, keeps nothing."""
    with ModuleMemoryHook() as memory:
        Checkpointed(reentrant=True)(torch.ones(8, 4, requires_grad=True))
    rows = by_path(memory)
    assert rows["block"].saved_bytes == 0
    assert rows[""].self_saved_bytes == 128


@BOTH
def test_packed_tensors_are_counted_apart_and_not_unpacked(hook_class):
    """With the bytes of the tensors that they were packed into."""
    unpacked = []

    def unpack(pair):
        unpacked.append(pair)
        return pair[1].to(torch.float32)

    x = torch.ones(8, 4, requires_grad=True)
    with hook_class() as memory:
        hidden = nn.functional.softplus(x)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: ("half", tensor.to(torch.float16)), unpack
        ):
            out = nn.Sigmoid()(hidden)
        assert unpacked == []
        out.sum().backward()
    assert len(unpacked) == 1
    row = next(row for row in memory.rows() if row.type == "Sigmoid" or row.name == "sigmoid")
    assert (row.saved_bytes, row.packed, row.packed_bytes) == (0, 1, 64)


def test_save_on_cpu_is_packed():
    """Torch's own hooks pack into a tuple."""
    with ModuleMemoryHook() as memory, torch.autograd.graph.save_on_cpu():
        nn.Tanh()(torch.ones(10, requires_grad=True))
    row = memory.rows()[0]
    assert (row.saved_bytes, row.packed, row.packed_bytes) == (0, 1, 40)


@BOTH
def test_a_custom_function_keeps_what_it_saved(hook_class):
    """A view and what it is of are one storage; None is nothing."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            square = x * x
            ctx.save_for_backward(x, square, None, square[0])
            return square * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3 * ctx.saved_tensors[1]

    class Net(nn.Module):
        def forward(self, x):
            return Cube.apply(x)

    x = torch.ones(8, 4, requires_grad=True)
    with hook_class() as memory:
        out = Net()(x)
    out.sum().backward()
    assert sum(row.saved_bytes for row in memory.rows()) == 256
    assert torch.equal(x.grad, torch.full_like(x, 3))


def test_lists_of_tensors_are_seen():
    """An index, which autograd keeps in a list."""
    index = torch.tensor([0, 2])
    x = torch.ones(4, 4, requires_grad=True)
    with FunctionMemoryHook() as memory:
        x[index]
    assert by_name(memory)["getitem"].saved_bytes == 16


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_region_is_what_its_node_keeps():
    """One function; what it saved is a plain count of its pack hook."""
    torch.compiler.reset()
    region = torch.compile(lambda x: (x.sin() * x.cos()).exp(), backend="aot_eager")
    x = torch.ones(10, requires_grad=True)
    sizes = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.update({t.untyped_storage().data_ptr(): t.nbytes}) or t, lambda t: t
    ):
        region(x)
    with FunctionMemoryHook() as memory:
        region(x)
    assert by_name(memory)["CompiledFunction"].saved_bytes == sum(sizes.values()) > 0
    torch.compiler.reset()


def test_a_backward_inside_of_a_call_does_not_disturb():
    """What it has freed was kept until then, and is not asked for again."""

    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x):
            hidden = self.act(x)
            torch.autograd.grad(hidden.sum(), x)
            return hidden

    class Indexed(nn.Module):
        def forward(self, x):
            out = x[torch.tensor([0])]
            torch.autograd.grad(out.sum(), x)
            return out

    with ModuleMemoryHook() as memory:
        Penalty()(torch.ones(10, requires_grad=True))
        Indexed()(torch.ones(10, requires_grad=True))
    assert [row.saved_bytes for row in memory.rows()] == [40, 40, 0]


# Tensors of all kinds.


@BOTH
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_outputs_hold_memory(hook_class, context):
    """Nothing is kept for a backward."""
    model = nn.Linear(4, 2)
    with hook_class() as memory, context():
        model(torch.ones(3, 4))
    row = memory.rows()[-1]
    assert (row.mode, row.output_bytes, row.saved_bytes) == ("no_grad", 24, 0)


def test_meta_tensors_count_as_they_would():
    """Tensors without memory have the sizes of those with it."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 8))
    with ModuleMemoryHook() as real:
        model(torch.ones(32, 64))
    model.to("meta")
    with ModuleMemoryHook() as meta:
        model(torch.ones(32, 64, device="meta"))
    assert meta.rows() == real.rows()


@BOTH
def test_fake_tensors_count_as_they_would(hook_class):
    """Under a mode that only pretends."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with hook_class() as memory, FakeTensorMode():
        x = torch.ones(10, requires_grad=True)
        nn.Sigmoid()(x)
    row = memory.rows()[-1]
    assert (row.output_bytes, row.saved_bytes) == (40, 40)


def test_nested_and_sparse_tensors_are_counted_by_what_they_are_made_of():
    """Values and offsets; indices and values."""
    nested = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True
    )
    sparse = torch.eye(3).to_sparse().requires_grad_()
    with FunctionMemoryHook() as memory:
        torch.sigmoid(nested)
        torch.sparse.mm(sparse, torch.ones(3, 2))
    rows = by_name(memory)
    assert (rows["sigmoid"].output_bytes, rows["sigmoid"].saved_bytes) == (20, 20 + 24)
    assert rows["_sparse_mm"].saved_bytes == 48 + 12 + 24


@BOTH
def test_transforms_run_and_are_counted_as_far_as_seen(hook_class):
    """`vmap` and `grad` of torch.func give what they gave."""
    act = nn.Sigmoid()
    x = torch.randn(5, 3)
    expected = torch.vmap(torch.func.grad(lambda row: act(row).sum()))(x)
    with hook_class() as memory:
        found = torch.vmap(torch.func.grad(lambda row: act(row).sum()))(x)
    assert torch.equal(found, expected)
    row = next(row for row in memory.rows() if "Sigmoid" in row.type or row.name == "sigmoid")
    assert row.output_bytes == 60


@BOTH
def test_export_and_trace_run(hook_class):
    """With symbolic sizes, and with operations being recorded."""

    class Net(nn.Module):
        def forward(self, x):
            return x.sigmoid() * 2

    batch = torch.export.Dim("batch", min=2)
    with hook_class():
        program = torch.export.export(Net(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}})
        traced = torch.jit.trace(Net(), torch.ones(2, 4))
    assert program.module()(torch.zeros(7, 4)).shape == (7, 4)
    assert traced(torch.zeros(5, 4)).shape == (5, 4)


# Manners.


@BOTH
def test_r2_observing_changes_nothing(case, hook_class):
    """Losses and gradients bitwise, and the random numbers that follow."""
    torch.manual_seed(2)
    case.loss().backward()
    expected = [p.grad for p in case.model.parameters()]
    follows = torch.rand(3)
    case.model.zero_grad()
    torch.manual_seed(2)
    with hook_class():
        case.loss().backward()
    assert torch.equal(torch.rand(3), follows)
    for parameter, gradient in zip(case.model.parameters(), expected, strict=True):
        assert gradient is None or torch.equal(parameter.grad, gradient)


def test_r2_graphs_are_freed_when_they_were():
    """A branch that is dropped inside of a call takes its graph with it, at once."""
    alive = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x):
            first = (x * 2).exp()
            alive.append(weakref.ref(first.untyped_storage()))
            branch = self.act(first)
            alive.append(weakref.ref(branch.untyped_storage()))
            del first, branch
            alive.append([each() for each in alive])
            return x + 1

    with ModuleMemoryHook() as memory:
        Net()(torch.ones(10, requires_grad=True))
    assert alive[2] == [None, None]
    assert by_path(memory)["act"].saved_bytes == 40


@BOTH
def test_r5_nothing_is_kept_alive(hook_class):
    """No output, no graph, no storage, no module; the hook still knows its rows."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    with hook_class() as memory:
        out = model(torch.ones(3, 4))
        gone = [weakref.ref(each) for each in (model, out, out.untyped_storage())]
        gone.append(weakref.ref(model[0].weight.untyped_storage()))
        model = out = None
        gc.collect()
        assert [each() for each in gone] == [None] * 4
    assert memory.rows()


def test_memory_that_is_used_again_in_a_pass_is_counted_again():
    """A storage is no address: what comes where something else was freed counts as well."""
    buffer = bytearray(20_000)

    class Scaled(nn.Module):
        def forward(self, x):
            return x * torch.frombuffer(buffer, dtype=torch.float32)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            for _ in range(5):
                self.scaled(x)
            return x

    with ModuleMemoryHook() as memory:
        Net()(torch.ones(5_000, requires_grad=True))
    assert by_path(memory)["scaled"].saved_bytes == 5 * 20_000


def test_each_node_is_visited_once_whatever_the_depth(monkeypatch):
    """Forty modules around each other: the nodes are read once, not once for each."""
    from hookline.torch_base import saved

    read = []
    original = saved.saved_by
    monkeypatch.setattr(saved, "saved_by", lambda node: read.append(node.name()) or original(node))

    class Wrap(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x.sigmoid()).sigmoid()

    model = nn.Sigmoid()
    for _ in range(40):
        model = Wrap(model)
    with ModuleMemoryHook() as memory:
        model(torch.ones(3, requires_grad=True))
    assert len(read) == 81
    assert by_path(memory)[""].saved_bytes == 81 * 12


@BOTH
def test_threads_do_not_disturb_each_other(hook_class):
    """Four threads through one model, watched for all of them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    hook = hook_class()
    where = None if hook_class is ModuleMemoryHook else "**:*"
    errors = []

    def work():
        try:
            for _ in range(20):
                model(torch.ones(8, 4)).sum().backward()
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            errors.append(error)

    with hookline.watch(model, hook, where=where):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    rows = [row for row in hook.rows() if row.name in ("", "linear", "sigmoid")]
    assert {row.calls for row in rows} == {80}
    found = {row.path: (row.saved_bytes, row.saved_bytes_call) for row in rows}
    assert (found["0"], found["1"], found["2"]) == ((128, 128), (128, 128), (0, 0))


def test_several_roots_are_kept_apart():
    """A generator, a discriminator and a loss."""

    class Generator(nn.Sequential):
        pass

    class Discriminator(nn.Sequential):
        pass

    first, second = Generator(nn.Linear(4, 4)), Discriminator(nn.Sigmoid())
    loss = nn.MSELoss()
    with ModuleMemoryHook() as memory:
        for _ in range(2):
            loss(second(first(torch.ones(8, 4))), torch.zeros(8, 4)).backward()
    rows = {(row.root, row.type): row for row in memory.rows()}
    assert rows["Generator", "Linear"].saved_bytes == 128
    assert rows["Discriminator", "Sigmoid"].saved_bytes == 128
    losses = [row.saved_bytes for row in memory.rows() if row.type == "MSELoss"]
    assert losses == [256]  # in a pass of its own: prediction and target
    assert {row.passes for row in rows.values()} == {2}


def test_passes_that_take_turns_are_each_one_pass():
    """A training step that calls its parts, with losses that are roots of their own in between."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    x = torch.ones(8, 4)
    with ModuleMemoryHook() as memory:
        net = Net()  # so that it is known as the parts' root
        for _ in range(2):
            losses = []
            for part in net.parts:
                out = part(x)
                losses += [loss()(out, x) for loss in (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss)]
            sum(losses).backward()
    rows = [by_path(memory)[f"parts.{n}"] for n in range(3)]
    assert [row.saved_bytes for row in rows] == [128, 0, 0]
    assert [(row.passes, row.saved_bytes_last) for row in rows] == [(2, 128), (2, 0), (2, 0)]


def test_a_wrapped_layers_own_hook_sees_what_the_layer_keeps():
    """So does a scope, of the wrapper's call; each once."""
    layer, _ = hookline.with_hooks(inner := nn.Sigmoid())
    own = ModuleMemoryHook()
    hookline.add_hook(inner, own)
    with ModuleMemoryHook() as scoped:
        nn.Sequential(layer)(torch.ones(10, requires_grad=True))
    hookline.delete_hook(inner, "MemoryHook")
    assert [row.saved_bytes for row in own.rows()] == [40]
    assert [row.saved_bytes for row in scoped.rows()] == [40, 40]


def test_a_transformer_with_checkpoints_keeps_less_and_computes_nothing_for_it():
    """GPT-2: what a checkpoint keeps is what a plain count of its region's inputs gives."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2, use_cache=False
    )
    model, tokens = GPT2Model(config).train(), torch.randint(0, 50, (2, 12))
    runs = []
    model.h[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    with ModuleMemoryHook() as plain:
        model(tokens)
    model.activation_checkpointing_enable({"use_reentrant": False})
    with ModuleMemoryHook() as sparing:
        out = model(tokens).last_hidden_state
        assert len(runs) == 2
        before, kept = by_path(plain)[""], by_path(sparing)[""]
        out.sum().backward()
    assert len(runs) == 3
    assert by_path(sparing)[""].calls == 1
    assert by_path(sparing)["h.0.mlp"].calls == 1
    blocks = sum(by_path(plain)[f"h.{n}"].saved_bytes for n in range(3))
    assert kept.saved_bytes == before.saved_bytes - blocks
    assert kept.packed > 0 == before.packed


@BOTH
def test_calls_that_raise_are_left_out(hook_class):
    """Those inside that ended well are not; what comes after is right."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x, *, fail):
            x = self.act(x)
            if fail:
                x @ torch.ones(3)
            return x

    model, x = Net(), torch.ones(10, requires_grad=True)
    with hook_class() as memory:
        for fail in (True, False, True):
            with contextlib.suppress(RuntimeError):
                model(x, fail=fail)
    calls = {row.path: row.calls for row in memory.rows() if row.name in ("", "sigmoid")}
    assert calls == ({"act": 3, "": 1} if hook_class is ModuleMemoryHook else {"act": 3})
    assert {row.saved_bytes for row in memory.rows() if row.name in ("", "sigmoid")} == {40}


def test_an_inner_call_that_raises_leaves_what_it_kept_to_the_call_around():
    """Also what a call that ended well inside of it keeps counts in the whole, once."""

    class Inner(nn.Module):
        def __init__(self, box):
            super().__init__()
            self.act, self.box = nn.Sigmoid(), box

        def forward(self, x):
            self.box.append(self.act(x))
            raise ValueError

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.box = []
            self.inner = Inner(self.box)

        def forward(self, x):
            try:
                self.inner(x)
            except ValueError:
                return self.box.pop().exp()

    with ModuleMemoryHook() as memory:
        Outer()(torch.ones(10, requires_grad=True))
    rows = by_path(memory)
    assert set(rows) == {"inner.act", ""}
    assert (rows[""].saved_bytes, rows[""].self_saved_bytes) == (80, 40)


def test_a_hook_removed_and_entered_again_inside_a_call_goes_on():
    """The call that it left has no row; those that ended inside do, and those after."""
    hook = ModuleMemoryHook()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x):
            x = self.act(x)
            hook.__exit__(None, None, None)
            return x

    model, x = Net(), torch.ones(10, requires_grad=True)
    hook.__enter__()
    model(x)
    assert hook.rows() == []  # not settled yet
    with hook:
        nn.Tanh()(x)
    assert {(row.root, row.path, row.calls) for row in hook.rows()} == {
        ("Net", "act", 1),
        ("Tanh", "", 1),
    }


@BOTH
def test_reset_forgets(hook_class):
    """And goes on measuring."""
    x = torch.ones(10, requires_grad=True)
    with hook_class() as memory:
        nn.Sigmoid()(x)
        memory.reset()
        assert memory.rows() == []
        nn.Sigmoid()(x)
    assert memory.rows()[0].calls == 1


def test_modes_are_kept_apart():
    """Training, evaluation, and without gradients."""
    model = nn.Sequential(nn.Sigmoid())
    x = torch.ones(10, requires_grad=True)
    with ModuleMemoryHook() as memory:
        model(x)
        with torch.no_grad():
            model(x)
        model.eval()(x)
    found = {row.mode: row.saved_bytes for row in memory.rows() if row.path == "0"}
    assert found == {"train": 40, "no_grad": 0, "eval": 40}


# Figures of a device, by a stand-in for its allocator.


class StandIn:
    """An allocator whose figures the test sets."""

    def __init__(self, *, peaks):
        self.peaks = peaks
        self.now = self.most = 0
        self.on = True

    def read(self):
        from hookline.hooks.allocator import Reading

        return Reading(self.now, self.most) if self.on else None

    def forget_peak(self):
        self.most = self.now

    def take(self, size):
        self.now += size
        self.most = max(self.most, self.now)


def on_device(peaks):
    from hookline.hooks.memory_meter import MemoryMeter

    device = StandIn(peaks=peaks)
    hook = ModuleMemoryHook()
    hook._meter = MemoryMeter(device)
    return hook, device


class Allocating(nn.Module):
    """Takes and gives back, as it is told."""

    def __init__(self, device, *steps):
        super().__init__()
        self.device = device
        self.steps = steps
        self.inner = nn.ModuleList([step for step in steps if isinstance(step, nn.Module)])

    def forward(self, x):
        for step in self.steps:
            if isinstance(step, nn.Module):
                step(x)
            else:
                self.device.take(step)
        return x


@pytest.mark.parametrize("peaks", [False, True])
def test_a_devices_figures_are_those_of_its_allocator(peaks):
    """Growth and peak of nested calls; the outer's peak is the highest of all in it."""
    hook, device = on_device(peaks)
    device.take(1_000)
    device.take(-500)
    inner = Allocating(device, 50, -40)
    model = Allocating(device, 300, -200, inner, 20)
    with hook:
        model(torch.ones(1))
    rows = by_path(hook)
    assert (rows["inner.0"].allocated_bytes, rows[""].allocated_bytes) == (10, 130)
    found = rows["inner.0"].peak_bytes, rows[""].peak_bytes
    assert found == ((50, 300) if peaks else (None, None))
    assert (device.most == 1_000) is not peaks


def test_a_peak_after_the_inner_call_is_the_outers():
    """And one inside of the inner call is that of both."""
    hook, device = on_device(peaks=True)
    model = Allocating(device, 10, Allocating(device, 70, -70), 90, -100)
    with hook:
        model(torch.ones(1))
        device.take(0)
        model.steps = (10, model.inner[0], -10)
        model(torch.ones(1))
    rows = by_path(hook)
    assert (rows["inner.0"].peak_bytes, rows[""].peak_bytes) == (70, 100)
    hook.reset()
    with hook:
        model(torch.ones(1))
    assert by_path(hook)[""].peak_bytes == 80


def test_a_peak_before_the_innermost_call_is_that_of_all_around():
    """Three calls around each other, each of which starts the allocator's peak anew."""
    hook, device = on_device(peaks=True)
    model = Allocating(device, Allocating(device, 70, -70, Allocating(device, 10, -10)))
    with hook:
        model(torch.ones(1))
    found = {path: row.peak_bytes for path, row in by_path(hook).items()}
    assert found == {"inner.0.inner.0": 10, "inner.0": 70, "": 70}


def test_a_device_that_comes_into_use_in_a_call_tells_nothing_of_that_call():
    """Its begin is not known."""
    hook, device = on_device(peaks=True)
    device.on = False

    class Starts(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Allocating(device, 10)

        def forward(self, x):
            device.on = True
            return self.inner(x)

    with hook:
        Starts()(torch.ones(1))
    rows = by_path(hook)
    assert (rows["inner"].allocated_bytes, rows["inner"].peak_bytes) == (10, 10)
    assert (rows[""].allocated_bytes, rows[""].peak_bytes) == (None, None)


@BOTH
def test_without_a_device_its_figures_are_empty_and_peaks_are_refused(hook_class, monkeypatch):
    """An option that would do nothing is an error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with hook_class() as memory:
        nn.Sigmoid()(torch.ones(3))
    assert {(row.allocated_bytes, row.peak_bytes) for row in memory.rows()} == {(None, None)}
    with pytest.raises(HookValueError, match="needs a CUDA device"):
        hook_class(peaks=True)


def test_the_cuda_allocator_is_asked_by_torchs_public_functions(monkeypatch):
    """With stand-ins for these: what is allocated, the peak, and its start anew."""
    from hookline.hooks.allocator import CudaAllocator, Reading

    figures = {"allocated_bytes": {"all": {"current": 7, "peak": 9}}}
    forgotten = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: figures)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: forgotten.append(1))
    allocator = CudaAllocator(peaks=True)
    assert allocator.read() == Reading(7, 9)
    allocator.forget_peak()
    assert forgotten == [1]
    figures.clear()
    assert allocator.read() == Reading(0, 0)
