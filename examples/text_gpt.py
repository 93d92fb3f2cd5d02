"""Train a tiny character GPT on texts of Python's standard library, and look inside.

    python examples/text_gpt.py
    hookline run --time --stats --every 20 -o report.html examples/text_gpt.py

The texts are the docstrings of a few modules, some 100,000 characters. Hooks show where the time of
training goes, how large activations and gradients are from block to block, and which earlier
characters an attention head looks at. The model knows nothing of them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookline
from hookline.module_hooks import StatsHook, TimerHook

MODULES = ("argparse", "collections", "difflib", "doctest", "json", "pathlib", "pickletools", "re")
CONTEXT, WIDTH, HEADS, DEPTH, BATCH = 48, 64, 4, 2, 16


class Attention(nn.Module):
    """Attention to the characters before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each character with those before it: (batch, time, width) to the same."""
        heads = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a small network, each added to what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give the stream, with what this block adds to it."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tells the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, time) to logits (batch, time, characters)."""
        places = torch.arange(ids.shape[1])
        return self.head(self.norm(self.blocks(self.token(ids) + self.position(places))))


def corpus() -> str:
    """The docstrings of some modules of the standard library, and of what is in them."""
    texts: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        things = [module, *(vars(module)[each] for each in sorted(vars(module)))]
        texts += [inspect.getdoc(each) or "" for each in things if not isinstance(each, str)]
    return "\n".join(" ".join(text.split()) for text in dict.fromkeys(texts) if text.isascii())


def train(model: GPT, ids: Tensor, steps: int) -> list[float]:
    """Train on random pieces of the text, and give the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1))
        piece = ids[starts + torch.arange(CONTEXT + 1)]
        loss = F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def write_on(model: GPT, alphabet: str, start: str, length: int) -> str:
    """Let the model go on from a beginning, a character at a time."""
    text = start
    for _ in range(length):
        ids = torch.tensor([[alphabet.index(each) for each in text[-CONTEXT:]]])
        likely = (model(ids)[0, -1] / 0.5).softmax(0)
        text += alphabet[int(likely.multinomial(1))]
    return text


def show_blocks(stats: StatsHook) -> None:
    """How the stream grows from block to block, and how the gradient comes back."""
    rows = {(row.path, row.direction): row.std for row in stats.rows()}
    print(f"\n{'block':<10}{'output std':>12}{'gradient std':>14}")
    for path in (f"blocks.{number}" for number in range(DEPTH)):
        print(f"{path:<10}{rows[path, 'forward']:>12.3f}{rows[path, 'backward']:>14.2e}")


def show_attention(model: GPT, alphabet: str, text: str) -> None:
    """What the last character of a text looks at most, head by head of the first block."""
    ids = torch.tensor([[alphabet.index(each) for each in text]])
    with torch.no_grad(), hookline.attention(model, "blocks.0.attention") as weights:
        model(ids)
    print(f"\nthe last character of {text!r} looks at")
    for number, head in enumerate(weights["blocks.0.attention"].output[0]):
        best = head[-1].topk(3)
        seen = (
            f"{text[i]!r} {len(text) - 1 - i} back ({w:.2f})" for w, i in zip(*best, strict=True)
        )
        print(f"  head {number}: " + ", ".join(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny character GPT under hooks.")
    parser.add_argument("--steps", type=int, default=150, help="training steps (default: 150)")
    steps = parser.parse_args().steps

    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = corpus()
    alphabet = "".join(sorted(set(text)))
    ids = torch.tensor([alphabet.index(each) for each in text])
    model = GPT(len(alphabet))

    timer, stats = TimerHook(), StatsHook(every=10)
    with hookline.watch(model, timer, stats, where=["token", "blocks.*", "blocks.*.*", "head"]):
        losses = train(model, ids, steps)

    print(f"{len(text)} characters, loss {losses[0]:.3f} -> {losses[-1]:.3f}\n")
    timer.print_report()
    show_blocks(stats)
    show_attention(model, alphabet, "Return the string")
    print(f"\n{write_on(model, alphabet, 'Return the ', 60)!r}")


if __name__ == "__main__":
    main()
