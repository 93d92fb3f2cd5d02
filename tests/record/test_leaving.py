"""How a recording is left: in a cell of a notebook, by a fork, at the end, or not at all."""

import gc
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import hookline
from hookline.core.records import TimeRow
from hookline.errors import RunFileError
from hookline.record.rows import PassRow
from hookline.record.runs import load


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.hookline"


def train(net, passes=3):
    for _ in range(passes):
        net(torch.ones(2, 4)).sum().backward()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_recording_that_is_dropped_is_ended_with_a_warning(path):
    """The hooks go at once, and the file is brought to an end."""
    net = nn.Linear(4, 1)
    for where in (None, path):
        run = hookline.record(where)
        run.__enter__()
        train(net)
        dropped = [run]
        del run
        with pytest.warns(ResourceWarning, match="collected while open; its hooks are removed"):
            dropped.clear()
        train(net)
    wait_for(lambda: load(path).info.state == "finished")
    assert load(path).rows(PassRow)[0].passes == 3
    wait_for(lambda: all(t.name != "hookline writer" for t in threading.enumerate()))


def test_it_can_be_entered_in_one_place_and_left_in_another(path):
    """As in two cells of a notebook, or in a generator."""

    def measured():
        with hookline.record(path) as run:
            yield run
            yield run

    generator = measured()
    run = next(generator)
    train(nn.Linear(4, 1))
    assert run.rows(PassRow)[0].passes == 3
    next(generator)
    train(nn.Linear(4, 1))
    generator.close()
    assert load(path).info.state == "finished"
    assert sum(row.passes for row in load(path).rows(PassRow)) == 6


def test_a_recording_that_is_open_when_the_interpreter_ends_is_written(path):
    code = (
        "import sys, torch, hookline\n"
        "run = hookline.record(sys.argv[1]); run.__enter__()\n"
        "net = torch.nn.Linear(2, 2)\n"
        "for _ in range(5): net(torch.ones(1, 2))\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, path], capture_output=True, check=True
    )
    assert result.stderr == b""
    assert load(path).info.state == "finished"
    assert load(path).rows(PassRow)[0].passes == 5


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording = hookline.record(tmp_path / "no" / "run.hookline")
        with pytest.raises(RunFileError):
            recording.__enter__()
        del recording
        gc.collect()


def test_r12_a_forked_child_writes_nothing(path):
    """Neither while it is in the block, nor when it leaves it."""
    net = nn.Linear(4, 1)
    with hookline.record(path, net, level="both") as run:
        train(net, 2)
        child = os.fork()
        if not child:
            _end_with(lambda: _leave(run, net))
        train(net, 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept = load(path)
    assert (kept.info.state, kept.info.process) == ("finished", os.getpid())
    assert kept.rows(PassRow)[0].passes == 3


def _leave(run, net):
    # Forwards only: where backwards used threads before, torch refuses one in a forked child.
    for _ in range(7):
        net(torch.zeros(1, 4))
    run.__exit__(None, None, None)
    return len(run.rows(TimeRow))


def _end_with(work):
    """End a forked child with a number; with 99 where it raised, and never in pytest's hands."""
    status = 99
    try:
        status = work()
    finally:
        os._exit(status)
