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
    times = {
        row[0]: float(row[1])
        for row in re.findall(r"^ *(\S+) +([\d.]+)[mµ]?s\S* +60 ", output, re.MULTILINE)
    }
    assert times["blocks.0"] >= times["blocks.0.mlp"] > 0
    spreads = re.findall(r"^blocks\.\d +([\d.]+) +([\d.e-]+)$", output, re.MULTILINE)
    assert len(spreads) == 2
    assert all(float(number) > 0 for row in spreads for number in row)
    heads = re.findall(r"head \d: (.*)", output)
    assert len(heads) == 4
    assert all(0 < sum(map(float, re.findall(r"\(([\d.]+)\)", head))) <= 1.01 for head in heads)
