"""What a layer does to its caller's containers while hooks ask for the gradients of its inputs."""

from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

import hookline
from hookline import ModuleHook


class Inputs(ModuleHook):
    """Keeps the gradients of inputs."""

    needs_grad_input = True

    def __init__(self) -> None:
        self.gradients: list[Any] = []

    def backward_postprocess(self, call: Any) -> None:
        self.gradients.append(call.grad_input)


class Runs(nn.Module):
    """Runs a function with a layer and what it is called with."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(2, 2), run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.layer, *args, **kwargs)


def hooked(run: Callable[..., Any], kind: str = "torch's") -> Runs:
    module = Runs(run)
    if kind == "torch's":
        hookline.register_full_backward_hook(module, lambda *_: None)
    else:
        hookline.add_hook(module, Inputs())
    return module


@dataclass
class State:
    x: Tensor
    y: Tensor | None = None


@dataclass(frozen=True)
class Frozen:
    x: Tensor


def leaf() -> Tensor:
    return torch.ones(1, 2, requires_grad=True)


@pytest.fixture(params=["torch's", "object"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("make", [list, UserList, deque])
def test_r2_what_a_layer_appends_reaches_the_callers_list(make: Any, kind: str) -> None:
    """It is the caller's own object, with the caller's own tensors, and of the layer's length."""

    def run(layer: nn.Module, x: Tensor, cache: Any) -> Tensor:
        cache.append(layer(x) + cache[0])
        cache.append(x)
        return cache[1]

    x, first = leaf(), leaf()
    cache = make([first])
    out = hooked(run, kind)(x, cache)

    assert len(cache) == 3
    assert cache[0] is first
    assert torch.equal(cache[1], out)
    assert cache[2] is x


@pytest.mark.parametrize(
    "make", [dict, OrderedDict, UserDict, lambda d: defaultdict(list, d)], ids=lambda f: f.__name__
)
def test_r2_what_a_layer_puts_into_a_dict_reaches_the_callers(make: Any, kind: str) -> None:
    """The dict that it gives back is the caller's; gradients are the plain ones."""

    def run(layer: nn.Module, d: Any) -> Any:
        d["y"], d["z"] = layer(d["x"]), layer(d["x"]) * 2
        del d["w"]
        return d

    x = leaf()
    d = make({"w": leaf(), "x": x})
    module = hooked(run, kind)
    out = module(d)

    assert out is d
    assert list(d) == ["x", "y", "z"]
    assert d["x"] is x
    (d["y"] + d["z"]).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 3 * module.layer.weight.sum(0, keepdim=True))


@pytest.mark.parametrize("make", [State, lambda x: BaseModelOutput(last_hidden_state=x)])
def test_r2_what_a_layer_sets_in_a_dataclass_reaches_the_callers(make: Any, kind: str) -> None:
    """The tensors that it had are still there, by name and by key."""
    x = leaf()
    state = make(x)
    name = next(iter(vars(state)))

    def run(layer: nn.Module, given: Any) -> Any:
        given.y = layer(getattr(given, name))
        return given

    out = hooked(run, kind)(state)

    assert out is state
    assert state.y.requires_grad
    assert getattr(state, name) is x
    assert isinstance(state, State) or state[name] is x


def test_r2_several_outputs_in_the_callers_dict_are_no_reason_for_another(kind: str) -> None:
    """The dict is given back as it is, though their gradients could be changed jointly."""

    def run(layer: nn.Module, d: dict[str, Tensor]) -> dict[str, Tensor]:
        d["y"], d["z"] = layer(d["x"]), layer(d["x"])
        return d

    d = {"x": torch.ones(1, 2)}

    assert hooked(run, kind)(d) is d


def test_r2_containers_in_containers_and_keywords_are_the_callers(kind: str) -> None:
    """At each depth; what cannot be changed is in its place again as the same object."""

    def run(layer: nn.Module, nest: Any, *, more: Any) -> Any:
        nest["inner"][0].append(layer(nest["inner"][1]))
        more.append(nest["inner"][0])
        return nest["inner"][0], more

    inner, frozen, more = ([leaf()], leaf()), Frozen(leaf()), [leaf()]
    nest = {"inner": inner, "frozen": frozen}
    out = hooked(run, kind)(nest, more=more)

    assert nest["inner"] is inner
    assert nest["frozen"] is frozen
    assert out[0] is inner[0] is more[1]
    assert out[1] is more
    assert len(inner[0]) == 2


def test_r2_one_list_given_twice_is_one_list(kind: str) -> None:
    """The layer sees what it did to one in the other."""

    def run(layer: nn.Module, a: list[Tensor], b: list[Tensor]) -> Tensor:
        a.append(layer(a[0]))
        return b[1]

    given = [leaf()]
    hooked(run, kind)(given, given)

    assert len(given) == 2


def test_r2_what_a_layer_did_before_it_raised_is_there(kind: str) -> None:
    """Also in a list that it took out of another; the tensors are the caller's again."""

    def run(layer: nn.Module, nest: list[list[Tensor]]) -> None:
        nest.pop().append(layer(nest[0][0]))
        raise KeyError

    first, last = [leaf()], [leaf()]
    tensors = first[0], last[0]
    nest = [first, last]
    with pytest.raises(KeyError):
        hooked(run, kind)(nest)

    assert len(nest) == 1
    assert nest[0] is first
    assert len(last) == 2
    assert first[0] is tensors[0]
    assert last[0] is tensors[1]


def test_p5_gradients_of_tensors_in_containers_are_seen() -> None:
    """Each in its place, though the caller's containers are what the layer gets."""

    def run(layer: nn.Module, d: dict[str, Tensor], *, more: list[Tensor]) -> dict[str, Tensor]:
        d["y"] = layer(d["x"]) + 3 * more[0]
        return d

    module, hook = Runs(run), Inputs()
    hookline.add_hook(module, hook)
    d, more = {"x": leaf()}, [leaf()]
    out = module(d, more=more)
    out["y"].sum().backward()

    (gradients,) = hook.gradients
    assert d["x"].grad is not None
    assert torch.equal(gradients[0]["x"], d["x"].grad)
    assert torch.equal(gradients.kwargs["more"][0], torch.full((1, 2), 3.0))
