"""Checks of `fully_shard`."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.distributed.manners import *
from tests.distributed.manners import assert_unchanged


def shard(model, **options):
    """Each block apart, then the rest."""
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model.head, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def check_every_kind_of_hook_leaves_the_training_as_it_is():
    assert_unchanged(shard)


def check_with_parameters_kept_after_the_forward():
    assert_unchanged(partial(shard, reshard_after_forward=False))


def check_with_mixed_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert_unchanged(partial(shard, mp_policy=policy), build=partial(build, nn.LayerNorm))

def prefetching(model):
    shard(model)
    a, b = model.blocks
    a.set_modules_to_forward_prefetch([b]); b.set_modules_to_forward_prefetch([model.head])
    b.set_modules_to_backward_prefetch([a]); model.head.set_modules_to_backward_prefetch([b])
    return model

def check_prefetch():
    assert_unchanged(prefetching)

def check_group():
    def w(model):
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(list(model.blocks), mesh=mesh)
        return fully_shard(model, mesh=mesh)
    assert_unchanged(w)
