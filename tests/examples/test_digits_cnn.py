"""The example of the README, alone and under `hookline run`."""

import re

from hookline import load_run
from tests.examples.script import output_of


def test_it_prints_the_same_alone_and_under_hooks(tmp_path):
    """The script knows nothing of hooks, and its numbers are the same to the last digit."""
    alone = output_of("digits_cnn.py", "--epochs", 1)
    run = ("-m", "hookline", "run", "--time", "--stats", "-o", tmp_path / "run.hookline")
    hooked = output_of("digits_cnn.py", "--epochs", 1, prefix=run)
    assert hooked == alone
    assert re.fullmatch(r"epoch 1: loss [\d.]+, test accuracy [\d.]+\n", alone)
    calls = {row["path"]: row["calls"] for row in load_run(tmp_path / "run.hookline").to_rows()}
    assert calls["features.block1.conv"] > 0
