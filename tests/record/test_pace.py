"""Work that comes again and again takes little of a program's time."""

import threading
import time

import pytest

from hookline.record.pace import SHARE, turns


class Event(threading.Event):
    """Notes how long is waited for it, and is set after some waits; nobody waits in truth."""

    def __init__(self, waits):
        super().__init__()
        self.waits = waits
        self.pauses = []

    def wait(self, timeout):
        self.pauses.append(timeout)
        return len(self.pauses) > self.waits


@pytest.mark.parametrize("took", [0.0, 0.01, 0.5])
def test_section_6_turns_take_no_more_than_their_share(took, monkeypatch):
    """After a turn the pause is the interval, or so many times as long as the turn took."""
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * took)
    over = Event(3)
    assert len(list(turns(over, 1.0, first=0.25))) == 3
    assert over.pauses == [0.25, *[pytest.approx(max(1.0, SHARE * took))] * 3]
