"""Other libraries that put hooks on models, each with what it does with them.

TransformerLens is represented by its mechanism, its `HookPoint`; the library itself needs a hundred
megabytes of others. The rest are the libraries themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.matrix.case import net, rows, smooth, squares

Remove = Callable[[], object]


class Peer:
    """A model with another library's hooks.

    Attributes:
        model: the model.
        seen: what the other library's hooks noted.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: Any = self.build()
        self.seen: list[Any] = []

    def build(self) -> nn.Module:
        """The model."""
        return net(dropout=0)

    def put(self) -> Remove:
        """Put the other's hooks on, and say how they go."""
        return lambda: None

    def run(self) -> list[Any]:
        """What the model gives, its gradients included."""
        self.model.zero_grad()
        x = rows()
        loss = squares(self.model(x))
        loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in self.model.parameters())]


class TorchHooks(Peer):
    """Torch's own hooks of all kinds, which change what flows."""

    def put(self) -> Remove:
        layer, head = self.model[0], self.model[3]
        handles = [
            layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
            layer.register_forward_hook(lambda module, args, out: out + 1),
            head.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,)),
            head.register_full_backward_hook(self.note),
            self.model.register_forward_hook(lambda *_: self.seen.append("model"), prepend=True),
        ]
        return lambda: [handle.remove() for handle in handles]

    def note(self, module: nn.Module, grads: Any, outs: Any) -> None:
        """Note the gradients."""
        self.seen.append((grads[0].sum().item(), outs[0].sum().item()))


class Accelerate(Peer):
    """A hook of accelerate puts another function in the place of `module.forward`."""

    def put(self) -> Remove:
        from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

        seen = self.seen

        class Scales(ModelHook):
            def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                seen.append(type(module).__name__)
                return tuple(value * 2 for value in args), kwargs

            def post_forward(self, module: nn.Module, output: Any) -> Any:
                return output + 1

        for module in (self.model[0], self.model[1], self.model):
            add_hook_to_module(module, Scales(), append=True)
        return lambda: remove_hook_from_module(self.model, recurse=True)


class Offload(Peer):
    """Weights live elsewhere, and come when their module is called."""

    def put(self) -> Remove:
        from accelerate import cpu_offload
        from accelerate.hooks import remove_hook_from_submodules

        cpu_offload(self.model, execution_device=torch.device("cpu"))
        return lambda: remove_hook_from_submodules(self.model)

    def run(self) -> list[Any]:
        with torch.no_grad():
            self.seen.append([p.device.type for p in self.model.parameters()])
            return [self.model(rows(grad=False))]


class LensPoint(nn.Module):
    """An identity to put hooks on, after TransformerLens's `HookPoint`."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Any] = []
        self.name = ""

    def add_hook(self, hook: Callable[..., Any], direction: str = "fwd") -> None:
        """Hooks take the activation, or the gradient, and the point."""

        def forward(module: nn.Module, args: Any, out: Tensor) -> Any:
            return hook(out, hook=self)

        def backward(module: nn.Module, grads: Any, outs: Any) -> Any:
            new = hook(outs[0], hook=self)
            return None if new is None else (new,)

        if direction == "fwd":
            self.handles.append(self.register_forward_hook(forward))
        else:
            self.handles.append(self.register_full_backward_hook(backward))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Lens(Peer):
    """Points between the layers: one changes what flows, one a gradient, two cache."""

    def build(self) -> nn.Module:
        layers = list(smooth())
        return nn.Sequential(LensPoint(), layers[0], LensPoint(), layers[1], LensPoint())

    def put(self) -> Remove:
        points = [self.model[place] for place in (0, 2, 4)]
        for place, point in enumerate(points):
            point.name = f"point {place}"
            point.add_hook(self.cache)
            point.add_hook(self.cache, "bwd")
        points[1].add_hook(lambda value, hook: value * 2)
        points[2].add_hook(lambda gradient, hook: gradient * 3, "bwd")
        return lambda: [handle.remove() for point in points for handle in point.handles]

    def cache(self, value: Tensor, hook: LensPoint) -> None:
        """Keep a number of what flows."""
        self.seen.append((hook.name, value.detach().sum().item()))


class Captum(Peer):
    """Attributions, for which captum puts hooks on layers and takes them off again."""

    def build(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        return model.eval()

    def run(self) -> list[Any]:
        from captum import attr

        x = rows(grad=False)
        model, layer = self.model, self.model[0]
        with warnings.catch_warnings(action="ignore"):
            return [
                attr.IntegratedGradients(model).attribute(x, target=1, n_steps=5),
                attr.Saliency(model).attribute(x.clone(), target=0),
                attr.DeepLift(model).attribute(x.clone(), target=1),
                attr.GuidedBackprop(model).attribute(x.clone(), target=1),
                attr.LayerActivation(model, layer).attribute(x),
                attr.LayerGradCam(model, layer).attribute(x, target=1),
                attr.LayerConductance(model, layer).attribute(x, target=1, n_steps=5),
                attr.NeuronGradient(model, layer).attribute(x.clone(), 2),
            ]


class Transformers(Peer):
    """Hidden states and attentions, collected by hooks that transformers puts on its layers."""

    def build(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            vocab_size=17,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            attn_implementation="eager",
        )
        return LlamaModel(config).eval()

    def run(self) -> list[Any]:
        self.model.zero_grad()
        tokens = torch.arange(12).reshape(2, 6)
        out = self.model(tokens, output_hidden_states=True, output_attentions=True)
        squares(out.last_hidden_state).backward()
        self.seen.append((len(out.hidden_states), len(out.attentions)))
        last = self.model.layers[-1].mlp.down_proj.weight.grad
        return [out.last_hidden_state, *out.hidden_states, *out.attentions, last]


PEERS = {
    "torch": TorchHooks,
    "accelerate": Accelerate,
    "accelerate offload": Offload,
    "TransformerLens": Lens,
    "captum": Captum,
    "transformers": Transformers,
}
