"""Checks of which one fails in one process, to see what comes of that."""

import torch
import torch.distributed as dist


def check_one():
    dist.barrier()


def check_two():
    assert dist.get_rank() == 0, "only here"
    dist.all_reduce(torch.ones(1))


def check_three():
    dist.barrier()
