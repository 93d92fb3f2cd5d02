"""What tools are timed at is checked before: a tool that does something else is found out."""

import pytest
import torch

import hookline
from benchmarks.peers.subject import linears, wrong
from benchmarks.peers.tool import Observer, Tool
from benchmarks.peers.tools import captum, ours, raw, torchs
from benchmarks.peers.works import (
    PIECES,
    WrongWorkError,
    empty_hooks,
    gradients,
    keeps,
    outputs,
    set_up,
    training,
)
from benchmarks.runner import whole

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

BESIDE = [tool() for tool in (*raw.TOOLS, *ours.TOOLS)]
TOOLS = [*BESIDE, *(tool() for tool in (*torchs.TOOLS, *captum.TOOLS))]


def small():
    return linears(3)


def run_all(work):
    """Each way of a piece of work once."""
    for variant in work.variants.values():
        with variant():
            work.run()
    return set(work.variants)


def test_ways_to_capture_outputs_agree():
    """Bit for bit, or building the work fails."""
    assert run_all(outputs(small, "small", TOOLS)) == {
        "plain",
        "raw torch hooks",
        "raw torch hooks, no copies",
        "hookline",
        "hookline, no copies",
        "captum",
    }


def test_ways_to_capture_gradients_agree():
    """Bit for bit, or building the work fails."""
    assert run_all(gradients(small, "small", TOOLS)) == {
        "plain",
        "raw torch hooks",
        "hookline",
        "torch's full backward hooks",
        "captum",
    }


def test_every_way_to_call_a_hook_calls_it_for_each_module():
    """As many times as there are modules, or building the work fails."""
    assert run_all(empty_hooks(TOOLS, count=5)) == {
        "plain",
        "raw torch hooks",
        "hookline",
        "hookline, a ModuleHook",
        "hookline, a FunctionHook",
        "TorchFunctionMode",
        "TorchDispatchMode",
    }


def test_ways_to_set_up_leave_nothing():
    """Hooks that stay would make building the work fail."""
    assert run_all(set_up(5, TOOLS)) == {"raw torch hooks", "hookline", "hookline, a ModuleHook"}


@pytest.mark.parametrize("name", ["GPT", "ResNet"])
def test_every_observer_of_a_training_step_sees_something(name):
    """Or building the work fails."""
    assert run_all(training(name, TOOLS)) == {
        "plain",
        "raw torch hooks",
        "hookline",
        "TorchFunctionMode",
        "TorchDispatchMode",
        "torch.utils.module_tracker",
        "torch.profiler",
    }


def test_observers_leave_a_training_step_as_it_is():
    """The parameters after a step are the same, bit for bit, under each of them."""
    found = []
    for tool in (Tool(), *BESIDE, *(tool() for tool in torchs.TOOLS)):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.fill_(0.1 * number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(model=model, optimizer=optimizer):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

        observer = tool.observer(step, model) or Observer(whole(step), int)
        with observer.job() as run:
            run()
        found.append(torch.cat([parameter.detach().ravel() for parameter in model.parameters()]))

    assert len(found) > 5
    assert all(torch.equal(each, found[0]) for each in found)
    assert found[0].min() < 0  # the weights began at 0 or above


class Wrong(Tool):
    """Does nothing right."""

    name = "wrong"

    def outputs(self, subject):
        return lambda: {path: torch.zeros(1) for path in subject.leaves}

    def gradients(self, subject):
        return dict

    def hook(self, subject, hook):
        return whole(subject.forward)

    def set_up(self, model):
        return lambda: model[0].register_forward_hook(print)

    def observer(self, step, model):
        return Observer(whole(step), int)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda tools: outputs(small, "small", tools), "something else than raw hooks at 0, 1, 2"),
        (
            lambda tools: gradients(small, "small", tools),
            "something else than raw hooks at 2, 1, 0",
        ),
        (lambda tools: empty_hooks(tools, count=5), "called the hook 0 times, there are 5 modules"),
        (lambda tools: set_up(5, tools), "left hooks behind"),
        (lambda tools: training("GPT", tools), "saw nothing of a training step"),
    ],
)
def test_a_tool_that_does_something_else_is_not_timed(build, told):
    """Whatever is not done as asked for makes building the work fail."""
    with pytest.raises(WrongWorkError, match=f"wrong .*{told}"):
        build([*BESIDE, Wrong()])


def test_what_is_missing_or_differs_is_named():
    """A path that was not captured counts as one that differs."""
    wanted = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}
    assert wrong({"a": torch.ones(2), "b": torch.zeros(2), "d": torch.ones(2)}, wanted) == [
        "b",
        "c",
    ]


def test_what_an_in_place_operation_does_to_captures_is_told():
    """Copies stay, aliases are overwritten, and hookline's alias says so."""
    told = {tool.name: keeps(tool) for tool in TOOLS if keeps(tool)}
    assert told == {
        "raw torch hooks": "right",
        "raw torch hooks, no copies": "**wrong**",
        "hookline": "right",
        "hookline, no copies": "an error",
        "captum": "right",
    }


def test_pieces_know_which_tools_take_part():
    """A tool that leaves a method as it is takes no part in that piece."""
    taking = [{tool.name for tool in TOOLS if piece.done_by(tool)} for piece in PIECES]
    assert "captum" in taking[0]
    assert "torch.profiler" not in taking[0]
    assert all("hookline" in names for names in taking)
    assert hookline.get_module_hooks() == {}
