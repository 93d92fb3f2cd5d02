"""Train a small GPT on the characters of a module of the standard library.

A plain program that knows nothing of hookline: `python -m benchmarks.train_gpt --steps 500`.
With `--width 256 --depth 6 --context 128`, kernels take a larger share.
"""

from __future__ import annotations

import argparse
import inspect
import pathlib

import torch

from benchmarks.models import GPT

BATCH = 4


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_gpt", description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=128, help="features of a character")
    parser.add_argument("--depth", type=int, default=4, help="blocks")
    parser.add_argument("--context", type=int, default=64, help="characters of a text")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = inspect.getsource(pathlib)
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(each) for each in text])
    model = GPT(options.width, options.depth, len(alphabet))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(options.steps):
        starts = torch.randint(len(ids) - options.context - 1, (BATCH, 1))
        piece = ids[starts + torch.arange(options.context + 1)]
        logits = model(piece[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
