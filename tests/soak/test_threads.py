"""Threads that register, run and remove on shared models.

`python -m tests.soak threads` goes on for a minute.
"""

import pytest

from tests.soak.threads import run_threads


# torch holds a lock while it makes the state of its generator, in which the collector may run.
# Callbacks of the collector (hypothesis has one) let other threads run then, and one of them that
# waits for that lock keeps the interpreter.
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("interval", [None, 1e-6])
def test_r11_threads_with_scopes_and_shared_models(interval):
    """No event is lost or foreign and no result changes, however often Python switches."""
    assert run_threads(seconds=1.5, interval=interval) > 8
