"""Two processes train a network on handwritten digits together, each under hooks of its own.

    python examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py

Hooks measure what happens in their process and send nothing: each sees its part of the data. At the
end the processes hand in their rows, and the first shows them side by side: activations differ,
since each process reads other digits; the gradients that the optimizer used are the same, since
DistributedDataParallel has averaged them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hookline
from hookline.module_hooks import NonFiniteHook, StatsHook, TimerHook

PROCESSES = 2
BATCH_SIZE = 32


class Row(NamedTuple):
    """What one process measured of one layer."""

    path: str
    forward: float
    """Milliseconds in all."""
    spread: float
    """The standard deviation of its outputs."""
    gradient: float
    """The mean norm of its weight's gradient, as the optimizer used it."""


def build() -> nn.Module:
    """The same network in each process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def part_of_the_data(rank: int) -> tuple[Tensor, Tensor]:
    """Every second digit."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    return images[rank::PROCESSES], torch.tensor(digits.target)[rank::PROCESSES]


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> float:
    """Train, and give the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for index in torch.arange(len(labels)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimizer.step()
    return loss.item()


def rows_of(timer: TimerHook, stats: StatsHook) -> list[Row]:
    """What the hooks of this process measured of the layers with weights."""
    times = timer.summary()
    spreads = {row.path: row.std for row in stats.rows() if row.direction == "forward"}
    gradients = {row.name: row.grad_norm for row in stats.parameter_rows()}
    return [
        Row(
            path,
            times[path]["forward"]["total_time"] * 1e3,
            spreads[path],
            gradients[f"{path}.weight"],
        )
        for path in spreads
        if f"{path}.weight" in gradients
    ]


def work(rank: int, epochs: int, meeting: str | None = None) -> None:
    """One process: the `rank`-th, which meets the others at a file or as torchrun says."""
    torch.set_num_threads(1)
    init = None if meeting is None else f"file://{meeting}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=PROCESSES)
    model = DistributedDataParallel(build())
    timer, stats = TimerHook(), StatsHook(every=10)
    # Paths are those of the network, without the wrapper's "module.".
    with hookline.watch(model, timer, stats, NonFiniteHook(action="raise")):
        loss = train(model, *part_of_the_data(rank), epochs)

    results: list[tuple[float, list[Row]]] | None = [(0.0, [])] * PROCESSES if rank == 0 else None
    dist.gather_object((loss, rows_of(timer, stats)), results)
    if results is not None:
        report(results)
    dist.destroy_process_group()


def report(results: list[tuple[float, list[Row]]]) -> None:
    """Show what the processes measured side by side."""
    for rank, (loss, _) in enumerate(results):
        print(f"process {rank}: last loss {loss:.4f}")
    print(f"{'layer':<8}{'forward ms':>20}{'output std':>20}{'gradient norm':>20}")
    for rows in zip(*(rows for _, rows in results), strict=True):
        columns = zip(*(row[1:] for row in rows), strict=True)
        shown = ("  ".join(f"{value:8.4f}" for value in column) for column in columns)
        print(f"{rows[0].path:<8}" + "".join(f"{cell:>20}" for cell in shown))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in two processes, under hooks.")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: 5)")
    epochs = parser.parse_args().epochs
    if "RANK" in os.environ:  # torchrun has started this process, and will start the others
        work(int(os.environ["RANK"]), epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (epochs, f"{folder}/meeting"), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
