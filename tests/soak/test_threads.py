"""Threads that register, run and remove on shared models.

`python -m tests.soak threads` goes on for a minute.
"""

import pytest

from tests.soak.threads import run_threads


@pytest.mark.parametrize("interval", [None, 1e-6])
def test_r11_threads_with_scopes_and_shared_models(interval):
    """No event is lost or foreign and no result changes, however often Python switches."""
    assert run_threads(seconds=1.5, interval=interval) > 8
