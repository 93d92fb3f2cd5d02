"""The example of a character GPT on texts of the standard library."""

import re

from tests.examples.script import output_of


def test_it_learns_and_shows_times_spreads_and_attention():
    """The loss falls; every block has its row; each head's weights are shares of one."""
    output = output_of("text_gpt.py", "--steps", 30)
    characters, first, last = re.search(
        r"(\d+) characters, loss ([\d.]+) -> ([\d.]+)", output
    ).groups()
    assert int(characters) > 50_000
    assert float(last) < float(first) - 1
    rows = re.findall(r"^ +(\S+) +([A-Z]\w+) +30 .* ([\d.]+)% $", output, re.MULTILINE)
    shares = [(name, kind, float(share)) for name, kind, share in rows]
    blocks = [share for name, kind, share in shares if kind == "Block"]
    inside = [share for name, kind, share in shares if name == "mlp"]
    assert len(blocks) == len(inside) == 2
    assert all(block >= mlp > 0 for block, mlp in zip(blocks, inside, strict=True))
    spreads = re.findall(r"^blocks\.\d +([\d.]+) +([\d.e-]+)$", output, re.MULTILINE)
    assert len(spreads) == 2
    assert all(float(number) > 0 for row in spreads for number in row)
    heads = re.findall(r"head \d: (.*)", output)
    assert len(heads) == 4
    assert all(0 < sum(map(float, re.findall(r"\(([\d.]+)\)", head))) <= 1.01 for head in heads)
