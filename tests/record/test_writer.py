"""The writer: what goes wrong with the file is told once, and the program goes on as without."""

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import hookline
from hookline.core.records import FlopRow, MemoryRow, StatsRow, TimeRow
from hookline.errors import RunFileError
from hookline.module_hooks import TimerHook
from hookline.record import pace, writer
from hookline.record.measures import Measures
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow, RunRow
from hookline.record.run import Recorder
from hookline.record.runs import load
from hookline.record.schema import VERSION
from hookline.record.store import Store
from hookline.record.writer import Writer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.hookline"


@pytest.fixture
def eager(monkeypatch):
    """A writer that writes as often as it can."""
    monkeypatch.setattr(writer, "INTERVAL", 0.001)
    monkeypatch.setattr(pace, "SHARE", 0)
    monkeypatch.setattr(Writer.__init__, "__defaults__", (0.001,))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1))


def train(net, passes=3):
    """The losses, gradients and random numbers of some training."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for _ in range(passes):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.grad.clone() for p in net.parameters())]
    return [*seen, *(p.detach().clone() for p in net.parameters()), torch.rand(3)]


def assert_same(found, expected):
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ----------------------------------------------------------------------- the program is undisturbed


@pytest.mark.parametrize("level", ["module", "function", "both"])
def test_r2_the_program_computes_the_same_while_it_is_written(level, path, eager):
    expected = train(model(), 40)
    everything = {"stats": True, "memory": True, "flops": True, "every": 2}
    with hookline.record(path, level=level, **everything) as run:
        found = train(_net := model(), 40)  # its gradients are there at the end
        threads = [thread.name for thread in threading.enumerate()]
    assert_same(found, expected)
    assert threads.count("hookline writer") == 1
    assert run.rows(FaultRow) == []
    if level != "function":  # the last look is not the writer's
        assert max(row.gradient_bytes or 0 for row in run.rows(MemoryRow)) > 0
    for kind in (TimeRow, StatsRow, FlopRow, MemoryRow, EventRow):
        assert run.rows(kind), kind
        assert {row.level for row in run.rows(kind)} == (
            {"module", "function"} if level == "both" else {level}
        )


def test_no_call_of_the_writer_is_seen(path, eager, monkeypatch):
    """Its thread reads tensors, which function hooks in all threads would see."""
    rows, read = TimerHook.rows, []

    def stand_in(hook):
        read.append(torch.stack([torch.zeros(1)]))
        return rows(hook)

    monkeypatch.setattr(TimerHook, "rows", stand_in)
    with hookline.record(None, level="function") as outer, hookline.record(path):
        train(model())
        count = len(read)
        wait_for(lambda: len(read) > count + 1)
    called = {row.name for row in outer.rows(TimeRow)}
    assert "linear" in called
    assert not {"stack", "zeros"} & called


def test_threads_and_files_are_as_before(path):
    before, files = threading.enumerate(), len(list(Path("/proc/self/fd").iterdir()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with hookline.record(path):
                train(model(), 1)
        gc.collect()
    assert threading.enumerate() == before
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def test_it_is_written_while_new_models_come(path, eager):
    """Rows are read in the writer's thread while the program adds to them."""
    with hookline.record(path, stats=True, memory=True, level="both", every=1) as run:
        nets = []
        for width in range(1, 60):
            net = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
            net(torch.ones(1, width)).sum().backward()
            nets.append(net)
    assert run.rows(FaultRow) == []
    assert len(run.rows(PassRow)) >= 59


def test_models_are_trained_in_four_threads(path, eager):
    nets, found = [model() for _ in range(4)], {}
    expected = [p.detach().clone() for p in nets[0].parameters()]

    def work(place):
        for _ in range(10):
            nets[place](torch.ones(2, 4)).sum().backward()
        found[place] = [p.detach().clone() for p in nets[place].parameters()]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    with hookline.record(path, *nets, level="both", stats=True, every=2) as run:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert run.rows(FaultRow) == []
    assert [row.passes for row in run.rows(PassRow)] == [10] * 4
    calls = [row.calls for row in run.rows(TimeRow) if row.level == "module" and row.path == "0"]
    assert calls == [10] * 8
    assert len({row.thread for row in run.rows(EventRow)}) == 4
    for parameters in found.values():
        assert_same(parameters, expected)


# ------------------------------------------------------------------------------- faults of the file


@pytest.fixture
def told(monkeypatch):
    """What the writer tells the user."""
    lines = []
    monkeypatch.setattr(hookline.runs, "_say", lines.append)
    return lines


def test_section_6_a_full_disk_is_told_once(path, told, eager):
    expected = train(model())
    with hookline.record(path) as run:
        connection = run._writer._store._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        nets = [model() for _ in range(40)]
        for net in nets:
            assert_same(train(net), expected)
        wait_for(lambda: told)
    assert len(told) == 1
    assert told[0].endswith("database or disk is full; the program goes on")
    assert load(path).info.state == "running"
    assert sum(row.passes for row in run.rows(PassRow)) == 40 * 3


def test_it_is_tried_again(path, told, eager):
    with hookline.record(path) as run:
        other = sqlite3.connect(path, isolation_level=None)
        run._writer._store._connection.execute("PRAGMA busy_timeout = 1")
        other.execute("BEGIN IMMEDIATE")
        wait_for(lambda: told)
        other.execute("ROLLBACK")
        other.close()
        train(model())
    assert told == [f"{path} could not be written: database is locked; the program goes on"]
    assert load(path).info.state == "finished"
    assert load(path).rows(PassRow)[0].passes == 3


@pytest.mark.parametrize("what", ["file", "folder", "replaced"])
def test_a_file_that_vanishes_is_told_once(what, tmp_path, told, eager):
    path = tmp_path / "folder" / "run.hookline"
    path.parent.mkdir()
    with hookline.record(path) as run:
        run._writer._store.hold()  # else a new journal may keep the folder from being removed
        if what == "folder":
            shutil.rmtree(path.parent)
        else:
            path.unlink()
        if what == "replaced":
            path.write_text("mine")
        run._writer._store.go_on()
        wait_for(lambda: told)
        train(model())
    assert len(told) == 1
    assert "it was moved or removed meanwhile; the program goes on" in told[0]
    assert run.rows(PassRow)[0].passes == 3
    assert run._kept.path.name == ""
    if what == "replaced":
        assert path.read_text() == "mine"


def test_a_fault_of_the_writer_is_told_once(path, told, eager, monkeypatch):
    def fail(*_):
        msg = "broken"
        raise ZeroDivisionError(msg)

    with hookline.record(path) as run:
        monkeypatch.setattr(Store, "write", fail)
        wait_for(lambda: told)
        train(model())
        monkeypatch.undo()
    assert len(told) == 1
    assert told[0].endswith("ZeroDivisionError: broken; the program goes on")
    assert run.rows(PassRow)[0].passes == 3


def test_a_newer_file_is_not_replaced(path):
    Store(path).close()
    with sqlite3.connect(path) as opened:
        opened.execute(f"PRAGMA user_version = {VERSION + 1}")
    opened.close()
    with pytest.raises(RunFileError, match="has schema"), hookline.record(path):
        pass
    assert path.exists()


def test_a_file_that_another_process_writes_is_not_replaced(path):
    code = (
        "import sys, hookline\n"
        "with hookline.record(sys.argv[1]):\n"
        "    print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "ready\n"
        with (
            pytest.raises(RunFileError, match=f"being written by process {other.pid}"),
            hookline.record(path),
        ):
            pass
        other.stdin.close()
    assert load(path).info.state == "finished"
    with hookline.record(path):
        pass
    assert load(path).info.process == os.getpid()


def test_the_file_of_an_earlier_process_of_the_same_number_is_replaced(path):
    """In a container each run may be process 1."""
    with Store(path) as store:
        store.write({RunRow: [_row_of_this_process()]})
    with hookline.record(path):
        pass
    assert load(path).info.state == "finished"


def _row_of_this_process():
    recorder = Recorder(Measures(time=True))
    return Writer(recorder, None, [], print)._row


# ------------------------------------------------------------------------------------------ bounds


def test_rows_and_file_stay_as_small_as_they_are(path):
    """From the 2,000th pass to the 4,000th nothing grows."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    sizes, rows = [], []
    with hookline.record(path, net, stats=True) as run:
        for _ in range(2):
            for _ in range(2000):
                optimizer.zero_grad()
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            run._writer._write(over=False)
            sizes.append(path.stat().st_size)
            rows.append({kind: len(run.rows(kind)) for kind in (TimeRow, StatsRow, ModuleRow)})
            rows[-1][EventRow] = len(run.rows(EventRow))
    assert rows[0] == rows[1]
    assert max(sizes) < 100_000
    assert abs(sizes[1] - sizes[0]) <= 8192
