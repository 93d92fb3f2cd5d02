"""A run whose process is killed: the file opens, and holds all up to the last commit."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from hookline.record.rows import EventRow, FaultRow, PassRow
from hookline.record.runs import load
from hookline.record.store import Store
from tests.record.sample import sample

PROGRAM = """
import os, sys, time
import torch, hookline
from torch import nn

torch.set_num_threads(1)
path, passes, commits = sys.argv[1:]
passes, commits = (os.open(each, os.O_WRONLY | os.O_CREAT) for each in (passes, commits))

def note(file):
    os.write(file, f"{time.time()}\\n".encode())
    os.fsync(file)

from hookline.record.store import Store
write = Store.write
Store.write = lambda *args: (write(*args), note(commits))

net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
with hookline.record(path, net, stats=True, every=10):
    while True:
        note(passes)
        net(torch.ones(1, 2)).sum().backward()
"""


def times(path):
    return [float(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", range(3))
def test_section_6_killed_at_any_moment_it_holds_all_up_to_the_last_commit(seed, tmp_path):
    """The program notes its passes and the writer its commits, each on disk at once."""
    run, passes, commits = (tmp_path / name for name in ("run.hookline", "passes", "commits"))
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, (run, passes, commits))])
    while not passes.exists() or not passes.stat().st_size:
        time.sleep(0.02)
        assert process.poll() is None
    time.sleep(random.Random(seed).uniform(0, 2.5))
    process.kill()
    process.wait()
    kept = load(run)
    assert kept.info.state == "running"
    assert kept.info.process == process.pid
    count = sum(row.passes for row in kept.rows(PassRow))
    began = times(passes)
    # All passes that had begun when the last commit but one was through are there.
    done = times(commits)
    before = done[-2] if len(done) > 1 else 0
    assert sum(moment < before for moment in began) <= count <= len(began)
    assert all(b - a < 60 for a, b in pairwise(done))
    Store(run).close()  # what a killed process left is no obstacle to the next run


@pytest.fixture
def half_written(tmp_path):
    """A file as a process leaves it that is killed in the middle of a commit."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # other users can enter this one
    source, path = tmp_path / "run.hookline", folder / "run.hookline"
    with Store(source) as store:
        store.write(sample())
    with sqlite3.connect(source, isolation_level=None) as opened:
        opened.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
        opened.execute("BEGIN IMMEDIATE")
        opened.execute("DELETE FROM events")
        opened.executemany("INSERT INTO faults VALUES (?)", [("half " * 200,)] * 500)
        for name in ("run.hookline", "run.hookline-journal"):
            shutil.copyfile(source.with_name(name), folder / name)
        opened.execute("ROLLBACK")
    opened.close()
    folder.chmod(0o755)
    yield path
    shutil.rmtree(folder)


def test_half_a_transaction_is_undone(half_written):
    assert b"half half" in half_written.read_bytes()
    kept = load(half_written)
    assert kept.rows(EventRow) == sample()[EventRow]
    assert kept.rows(FaultRow) == sample()[FaultRow]
    assert not half_written.with_name("run.hookline-journal").exists()


def test_half_a_transaction_is_undone_where_the_reader_may_not_write(half_written):
    """As of somebody else's run, or on a disk that is read only: a copy is read."""
    folder = half_written.parent
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            assert not os.access(half_written, os.W_OK)
            kept = load(half_written)
            assert kept.rows(FaultRow) == sample()[FaultRow]
            assert kept.rows(EventRow) == sample()[EventRow]
        except BaseException as error:  # noqa: BLE001 - the child ends here
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"half half" in half_written.read_bytes()
    assert half_written.with_name("run.hookline-journal").exists()
