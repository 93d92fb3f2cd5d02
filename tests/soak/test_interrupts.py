"""Ctrl-C in the middle of hookline's own code.

`python -m tests.soak interrupts` tries every point.
"""

import pytest

from tests.soak.interrupts import SCENARIOS, faults, points_of

EACH = 20  # so many points of a scenario are tried here, spread over all of it


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_r5_wherever_ctrl_c_comes_nothing_is_left(scenario):
    """No hook, patch, mode or state stays, and the next run has the same events."""
    count = points_of(scenario)
    assert count > EACH
    assert list(faults(scenario, range(1, count + 1, count // EACH))) == []
