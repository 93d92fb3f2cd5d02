"""The example of two processes that train together under hooks."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


def test_the_processes_show_what_each_measured():
    """Activations differ, averaged gradients agree, and the layers have the network's names."""
    result = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, "--epochs", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert result.returncode == 0, result.stderr
    first, second, _, *table = result.stdout.splitlines()
    losses = [float(line.partition("last loss ")[2]) for line in (first, second)]
    assert losses[0] != losses[1]
    assert max(losses) < 2  # guessing gives 2.3
    rows = {name: [float(n) for n in numbers] for name, *numbers in map(str.split, table)}
    assert list(rows) == ["0", "2", "4"]
    for times, spreads, gradients in (zip(*[iter(row)] * 2, strict=True) for row in rows.values()):
        assert min(times) > 0
        assert spreads[0] != spreads[1]
        assert gradients[0] == gradients[1] > 0
    assert not re.search("Warning", result.stderr)
