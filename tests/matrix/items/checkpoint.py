"""Activation checkpointing: of both kinds, nested, selective, in sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from tests.matrix.case import Block, Case, net, rows, smooth, squares, trained


class Parts(nn.Module):
    """Runs its parts one after the other, those named under a checkpoint."""

    def __init__(self, *parts: nn.Module, only: Any = None, **options: Any) -> None:
        super().__init__()
        self.parts, self.options = nn.ModuleList(parts), options
        self.only = range(len(parts)) if only is None else only

    def forward(self, x: Tensor) -> Tensor:
        for place, part in enumerate(self.parts):
            x = checkpoint(part, x, **self.options) if place in self.only else part(x)
        return x


class Twice(Parts):
    """Runs each part twice in a row, each time under a checkpoint of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


class OfAFunction(nn.Module):
    """The checkpoint is around a function that calls modules, with a keyword."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.block, self.head, self.options = Block(), nn.Linear(4, 2), options

    def part(self, x: Tensor, scale: float) -> Tensor:
        return self.head(self.block(x) * scale)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, scale=0.5, **self.options)


class InSequence(nn.Module):
    """Torch's own helper for sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.body, self.options = nn.Sequential(*[Block() for _ in range(4)]), options

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.body, 2, x, **self.options)


def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the results of matrix products, compute the rest again."""
    kept = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return partial(create_selective_checkpoint_contexts, policy)


def without_early_stop(case: Case) -> Case:
    """The same, with early stop off by torch's context manager."""

    def step() -> Any:
        with set_checkpoint_early_stop(False):
            loss = squares(case.model(rows()))
        loss.backward()
        return loss

    return Case(case.model, step)


def retained(case: Case) -> Case:
    """Two backwards through one graph."""

    def step() -> Any:
        loss = squares(case.model(rows()))
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    return Case(case.model, step)


def in_bfloat16(case: Case) -> Case:
    """Under autocast, which a checkpoint turns on again for what it repeats."""

    def step() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = squares(case.model(rows()))
        loss.backward()
        return loss

    return Case(case.model, step)


def transformer(kind: str, **options: Any) -> Case:
    """A small model of transformers with its own switch for checkpoints."""
    import transformers

    sizes = {"vocab_size": 17, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "GPT2":
        config = transformers.GPT2Config(
            vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    elif kind == "Llama":
        sizes |= {"hidden_size": 8, "intermediate_size": 16, "num_key_value_heads": 1}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    else:
        sizes |= {"hidden_size": 8, "intermediate_size": 16, "max_position_embeddings": 8}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    model.train()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    tokens = torch.arange(12).reshape(2, 6)

    def step() -> Any:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        return loss

    return Case(model, step)


def penalised(**options: Any) -> Case:
    """The gradient's own gradient, through a checkpoint."""
    model, x = Parts(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), **options), rows()

    def step() -> Any:
        loss = squares(model(x))
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + gradient.pow(2).sum()
        total.backward()
        return total, gradient

    return Case(model, step, [x])


def partial_backward(**options: Any) -> Case:
    """Only the gradient of one weight is asked for."""
    model = Parts(Block(), Block(), **options)

    def step() -> Any:
        return torch.autograd.grad(squares(model(rows())), model.parts[1].linear.weight)

    return Case(model, step)


class Wrapped(nn.Module):
    """The parts are wrapped by torch's own wrapper module for checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = checkpoint_wrapper(Block()), checkpoint_wrapper(Block())

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.second(self.first(x)))


OLD, NEW = {"use_reentrant": True}, {"use_reentrant": False}
ALL = {**NEW, "early_stop": False}

ITEMS = {
    "non-reentrant": lambda: trained(Parts(net(), **NEW), rows()),
    "reentrant": lambda: trained(Parts(net(), **OLD), rows()),
    "no early stop": lambda: trained(Parts(net(), **ALL), rows()),
    "early stop off by context": lambda: without_early_stop(trained(Parts(net(), **NEW))),
    "input needs no gradient": lambda: trained(Parts(net(), **NEW), rows(grad=False)),
    "random numbers not kept": lambda: trained(
        Parts(net(dropout=0), preserve_rng_state=False, **NEW), rows()
    ),
    "some parts": lambda: trained(Parts(Block(), Block(), Block(), only=[0, 2], **NEW), rows()),
    "some parts, reentrant": lambda: trained(Parts(Block(), Block(), only=[1], **OLD), rows()),
    "nested": lambda: trained(Parts(Parts(Block(), net(), **NEW), **NEW), rows()),
    "nested, no early stop": lambda: trained(Parts(Parts(Block(), net(), **ALL), **ALL), rows()),
    "nested, old outside": lambda: trained(Parts(Parts(Block(), net(), **NEW), **OLD), rows()),
    "nested, old inside": lambda: trained(Parts(Parts(Block(), net(), **OLD), **NEW), rows()),
    "nested three times": lambda: trained(
        Parts(Parts(Parts(Block(), **NEW), Block(), **NEW), **NEW), rows()
    ),
    "selective": lambda: trained(Parts(smooth(), context_fn=selective(), **NEW), rows()),
    "repeated": lambda: trained(Twice(Block(), net()[:3], **NEW), rows()),
    "repeated, reentrant": lambda: trained(Twice(Block(), **OLD), rows()),
    "shared layer": lambda: trained(Parts(*[Block()] * 3, **NEW), rows()),
    "of a function": lambda: trained(OfAFunction(**NEW), rows()),
    "sequence": lambda: trained(InSequence(**NEW), rows()),
    "sequence, reentrant": lambda: trained(InSequence(**OLD), rows()),
    "wrapper module": lambda: trained(Wrapped(), rows()),
    "retained graph": lambda: retained(trained(Parts(net(), **NEW))),
    "autocast": lambda: in_bfloat16(trained(Parts(net(), **NEW))),
    "autocast, reentrant": lambda: in_bfloat16(trained(Parts(net(), **OLD))),
    "gradient penalty": lambda: penalised(**NEW),
    "partial backward": lambda: partial_backward(**NEW),
    "transformers GPT-2": lambda: transformer("GPT2", **NEW),
    "transformers GPT-2, reentrant": lambda: transformer("GPT2", **OLD),
    "transformers Llama": lambda: transformer("Llama", **NEW),
    "transformers BERT": lambda: transformer("BERT", **NEW),
}
