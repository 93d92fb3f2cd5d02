"""The example that reads and steers the trained sentence encoder."""

import re

from tests.examples.script import output_of


def test_the_layers_tell_topics_apart_and_the_direction_moves_a_sentence():
    """Alike sentences end nearer than others; the stronger the push, the nearer to its topic."""
    output = output_of("minilm_steering.py")
    layers = {
        path: (float(same), float(other))
        for path, same, other in re.findall(r"^(encoder\.\S+) +(\S+) +(\S+)$", output, re.MULTILINE)
    }
    assert list(layers) == [f"encoder.layer.{number}" for number in range(6)]
    same, other = layers["encoder.layer.5"]
    assert same > other + 0.1

    steered = [
        tuple(map(float, row))
        for row in re.findall(r"^([+-]\d\.\d) +(\S+) +(\S+)$", output, re.MULTILINE)
    ]
    assert [row[0] for row in steered] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    to_food, to_money = ([row[column] for row in steered] for column in (1, 2))
    assert to_food == sorted(to_food)
    assert to_money == sorted(to_money, reverse=True)
    assert output.endswith("unpatched as before: True\n")
