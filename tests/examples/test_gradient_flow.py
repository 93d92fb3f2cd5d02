"""The example that plots how gradients vanish in a deep network."""

import re

from matplotlib.image import imread

from tests.examples.script import output_of


def test_gradients_vanish_but_for_the_cures(tmp_path):
    """With sigmoids nothing arrives, with residual connections everything does; a plot is drawn."""
    picture = tmp_path / "flow.png"
    output = output_of("gradient_flow.py", picture)
    row = re.compile(r"^(\w[\w, ]+?) {2,}(\S+e\S+) +(\S+e\S+) +([\d.]+)$", re.MULTILINE)
    flows = {name: float(first) / float(last) for name, first, last, _ in row.findall(output)}
    assert list(flows) == ["sigmoid", "ReLU", "ReLU, He init", "residual, layer norm"]
    assert flows["sigmoid"] < 1e-10 < flows["ReLU"] < 1e-3
    assert 0.1 < flows["ReLU, He init"] < 10
    assert 0.1 < flows["residual, layer norm"] < 20
    drawn = imread(picture)
    assert drawn.shape == (480, 840, 4)
    assert len({tuple(pixel) for pixel in drawn[::8, ::8].reshape(-1, 4)}) > 5
