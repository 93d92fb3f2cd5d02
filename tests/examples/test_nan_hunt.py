"""The example of three accidents that end in NaN."""

import re

from tests.examples.script import output_of


def test_each_accident_is_laid_to_the_layer_that_it_happened_in():
    """The wild rate overflows in a forward, the root in a backward, the damaged weight is named."""
    output = output_of("nan_hunt.py")
    found = re.findall(
        r"^  -> ([\w ]+): '([\w.]+)' \((\w+)\), (\w+), first at \((.*)\)", output, re.MULTILINE
    )
    assert found == [
        ("producer", "features.block2.conv", "Conv2d", "forward", "0, 0, 0, 0"),
        ("producer", "1", "Norm", "backward", "0, 0, 1, 0"),
        ("bad parameter", "features.block2.conv", "Conv2d", "forward", "0, 3, 1, 0"),
    ]
    assert "features.block2.conv.weight is not finite" in output
