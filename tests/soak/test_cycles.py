"""Registering, running and removing with faults; `python -m tests.soak cycles` does 50,000."""

import pytest

from tests.soak.cycles import run_cycles


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_r5_cycles_with_faults_leave_nothing():
    """Errors and Ctrl-C at random: memory is flat, nothing is left, results are bitwise equal."""
    assert "blocks" in run_cycles(count=150, number=1, signals=False)
