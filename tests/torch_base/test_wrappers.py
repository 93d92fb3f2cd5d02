"""Modules around a model: names, roots and events are those of the model inside."""

import gc
import sys
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import hookline
from hookline import ModuleHook, add_hook, hooks_of, register_forward_hook, select
from hookline.torch_base import private
from hookline.torch_base.paths import paths_in, roots
from hookline.torch_base.wrappers import class_names, hands_on, innermost, inside, type_name

DDP = nn.parallel.DistributedDataParallel


class Net(nn.Module):
    """Two parts, one of them with children."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.enc(x))


class Events(ModuleHook):
    """Keeps what each event says of its place."""

    def __init__(self):
        self.rows = []

    def forward_preprocess(self, call):
        self.rows.append(("forward", call.root, call.path, call.type, call.index))

    def backward_preprocess(self, call):
        self.rows.append(("backward", call.root, call.path, call.type, call.index))

    def take(self):
        taken, self.rows = self.rows, []
        return taken


@pytest.fixture(scope="module", autouse=True)
def _one_process():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4)


def compiled(model):
    return torch.compile(model, backend="eager")


PASSING = {
    "DDP": DDP,
    "DataParallel": nn.DataParallel,
    "checkpoint": checkpoint_wrapper,
    "twice": lambda net: DDP(nn.DataParallel(net)),
}
ALL = {**PASSING, "compiled": compiled, "compiled DDP": lambda net: compiled(DDP(net))}


@pytest.mark.parametrize("wrap", ALL.values(), ids=ALL)
def test_paths_in_a_wrapper_are_those_of_the_model(wrap):
    """The model inside has the path `""`, and so has each wrapper."""
    net = Net()
    wrapped = wrap(net)
    paths = paths_in(wrapped)
    assert {key(): found for key, found in paths.items() if inside(key()) is None} == {
        module: (path,) for path, module in net.named_modules()
    }
    assert all(found == ("",) for key, found in paths.items() if inside(key()) is not None)
    assert innermost(wrapped) is net


@pytest.mark.parametrize("wrap", ALL.values(), ids=ALL)
def test_selecting_in_a_wrapper(wrap):
    """The same paths and modules as without it; its own prefix is no part of a name."""
    net = Net()
    wrapped = wrap(net)
    assert list(select(wrapped)) == list(net.named_modules())
    assert select(wrapped, "enc.*", "").paths == ("enc.0", "enc.1", "")
    assert select(wrapped, wrapped).modules == (net,)
    prefix = next(iter(wrapped.named_children()))[0]
    with pytest.raises(hookline.SelectionError, match=r"did you mean 'enc\.0'"):
        select(wrapped, f"{prefix}.enc.0")
    with pytest.raises(hookline.SelectionError, match="is a wrapper; select the module inside"):
        select(wrapped, type(wrapped))


def test_wrapped_parts_of_a_model():
    """Wrappers inside of a model have no name either, however they are nested."""
    net = Net()
    parts = dict(net.named_modules())
    net.enc[0] = compiled(net.enc[0])
    net.enc = checkpoint_wrapper(nn.DataParallel(net.enc))
    net.head = DDP(net.head)

    assert dict(select(net)) == parts
    assert select(net, "enc.0", "head").modules == (parts["enc.0"], parts["head"])
    assert [c.called is c.module for c in select(net, "enc.0", "head").choices] == [False, True]
    assert select(net, "enc.0").choices[0].called is net.enc.module[0]


@pytest.mark.parametrize("wrap", PASSING.values(), ids=PASSING)
def test_events_in_a_wrapper_are_those_of_the_model(wrap, x):
    """Scoped hooks see just the events that they see without the wrapper."""
    net = Net()
    with Events() as events:
        net(x).sum().backward()
        expected = events.take()
        wrapped = wrap(net)
        wrapped(x).sum().backward()
        found = events.take()

    assert len(expected) == 10
    without_repeats = list(dict.fromkeys(found))  # a checkpoint calls its modules again
    assert without_repeats == expected


def test_a_model_is_one_root_with_and_without_its_wrapper(x):
    """Passes go on counting, whoever is called, and a second wrapper makes no second root."""
    net = Net()
    with Events() as events:
        numbers = []
        hook = register_forward_hook(net, lambda module, args, out: None)
        places = hookline.watch(net, Numbers(numbers), where="")
        for model in (net, DDP(net), nn.DataParallel(net), net):
            model(x)
        places.close()
        hook.remove()

    assert {row[1] for row in events.take()} == {"Net"}
    assert numbers == [0, 1, 2, 3]


class Numbers(ModuleHook):
    def __init__(self, numbers):
        self.numbers = numbers

    def forward_preprocess(self, call):
        self.numbers.append(call.pass_number)


def test_the_root_is_named_after_the_model(x):
    """Also if the wrapper is called first, and another model of the class is a second root."""
    first, second = DDP(Net()), nn.DataParallel(Net())
    with Events() as events:
        first(x)
        second(x)
        first(x)
    assert [row[1] for row in events.take() if row[2] == ""] == ["Net", "Net#2", "Net"]


def test_a_declared_wrapper_is_the_root_of_the_model():
    """Declaring the wrapper and declaring the model is the same."""
    net = Net()
    wrapped = DDP(net)
    root = roots.declare(wrapped)
    assert root.name == "Net"
    assert root.module is net
    assert roots.declare(net) is root
    assert roots.root_of(wrapped) is roots.root_of(net.enc[0]) is root
    assert root.seats[ref(wrapped)] == root.seats[ref(net)] == ("",)


def test_a_wrapper_that_is_gone_leaves_the_root():
    """The root is the model's; what wrapped it is held weakly."""
    net = Net()
    wrapped = DDP(net)
    root = roots.declare(wrapped)
    gone = ref(wrapped)
    del wrapped
    gc.collect()
    assert gone() is None
    assert roots.declare(net) is root
    assert set(root.seats) == set(paths_in(net))


def test_a_wrapper_that_is_given_another_model():
    """It then belongs to the root of that one."""
    one, other = Net(), Net()
    wrapped = nn.DataParallel(one)
    assert roots.declare(wrapped).module is one
    wrapped.module = other
    assert roots.declare(wrapped).module is other
    assert ref(wrapped) not in roots.declare(one).seats


def test_hooks_on_a_wrapper_itself_still_run(x):
    """Whoever asks for the wrapper's call gets it; scopes do not."""
    net = Net()
    wrapped = DDP(net)
    own, seen = Events(), []
    with Events() as events, add_hook(wrapped, own, "own"):
        with register_forward_hook(wrapped, lambda module, args, out: seen.append(module)):
            wrapped(x).sum().backward()
        assert [(row.path, type(row.hook)) for row in hooks_of(wrapped)] == [("", Events)] * 2

    assert seen == [wrapped]
    assert [row[:3] for row in own.take()] == [("forward", "Net", ""), ("backward", "Net", "")]
    assert len(events.take()) == 10


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("wrap", [compiled, lambda net: compiled(DDP(net))])
def test_a_compiled_model_is_one_call_of_the_model(wrap, x):
    """Its call stands for that of the model inside, by path and type."""
    net = Net()
    wrapped = wrap(net)
    with Events() as events:
        out = wrapped(x)
        out.sum().backward()

    assert events.take() == [
        ("forward", "Net", "", "Net", 0),
        ("backward", "Net", "", "Net", 0),
    ]
    assert torch.equal(out, net(x))


@pytest.mark.usefixtures("fresh_compiler")
def test_hooks_on_a_compiled_model_itself(x):
    """Registered before the first call or later, they see it, and change what it gives."""
    net = Net()
    wrapped, own = compiled(net), Events()
    plain = net(x)
    with (
        add_hook(wrapped, own),
        register_forward_hook(wrapped, lambda module, args, out: out + 1),
        register_forward_hook(net.head, lambda module, args, out: out * 2),
    ):
        assert torch.equal(wrapped(x), plain * 2 + 1)
    assert [row[:4] for row in own.take()] == [("forward", "Net", "", "Net")]


def test_a_compiled_part_is_one_call(x):
    """What is around it is seen as ever."""
    net = Net()
    net.enc = compiled(net.enc)
    with Events() as events:
        net(x)
    assert [row[2:4] for row in events.take()] == [
        ("", "Net"),
        ("enc", "Sequential"),
        ("head", "Linear"),
    ]


def test_sharded_modules_keep_their_names(x):
    """`fully_shard` changes classes, not names: types and roots are called as before."""
    net = Net()
    fully_shard(net.enc)
    fully_shard(net)
    assert type(net).__name__ == "FSDPNet"
    assert class_names[type(net)] == "Net"
    assert class_names[type(net.enc)] == "Sequential"
    with Events() as events:
        net(x).sum().backward()
    rows = events.take()
    assert [row[1:4] for row in rows if row[0] == "forward"] == [
        ("Net", "", "Net"),
        ("Net", "enc", "Sequential"),
        ("Net", "enc.0", "Linear"),
        ("Net", "enc.1", "ReLU"),
        ("Net", "head", "Linear"),
    ]
    assert "Net" in repr(select(net))


def test_the_first_fsdp_is_a_wrapper():
    """`FullyShardedDataParallel` needs an accelerator to run; its names need none."""
    assert FullyShardedDataParallel.__name__ in " ".join(private.WRAPPERS)
    assert hands_on[FullyShardedDataParallel]
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapper)
    net = Net()
    nn.Module.__setattr__(wrapper, "_fsdp_wrapped_module", net)
    assert inside(wrapper) is net
    assert list(select(wrapper)) == list(net.named_modules())


@pytest.mark.parametrize("name", [*private.WRAPPERS, private.SHARDED])
def test_torch_has_the_classes_that_are_known_by_name(name):
    """And each holds what it wraps under the name that is known."""
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules[module], cls)
    assert f"{found.__module__}.{found.__qualname__}" == name


def test_classes_derived_from_wrappers_are_wrappers():
    """As those of other libraries are."""

    class Theirs(nn.DataParallel):
        pass

    net = Net()
    assert inside(Theirs(net)) is net
    assert hands_on[Theirs]
    assert type_name(Theirs, Theirs(net)) == "Net"


def test_other_modules_are_no_wrappers():
    """A part called `module` makes no wrapper."""
    net = Net()
    net.module = nn.Linear(1, 1)
    assert inside(net) is None
    assert innermost(net) is net
    assert select(net, "module").paths == ("module",)
    assert not hands_on[Net]
