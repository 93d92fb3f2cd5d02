"""Checks of `DistributedDataParallel`, run by two processes together."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import hookline
from tests.distributed.manners import (
    MANNERS, batch, build, assert_unchanged, gradients, hooked, same, train,
)

DDP = nn.parallel.DistributedDataParallel


def check_every_kind_of_hook_leaves_the_training_as_it_is():
    assert_unchanged(DDP)


def check_with_unused_parameters():
    assert_unchanged(partial(DDP, find_unused_parameters=True), partial(train, blocks=1))


def check_with_a_static_graph():
    assert_unchanged(partial(DDP, static_graph=True), partial(train, steps=3))


def check_with_gradients_as_views_of_buckets():
    assert_unchanged(partial(DDP, gradient_as_bucket_view=True))
