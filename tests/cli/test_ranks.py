"""`torchrun … -m hookline run -o`: a file a process, read together; slow and dead ones named."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from hookline.core.records import NonFiniteRow, TimeRow
from hookline.record.merge import over_ranks, remarks, rows_of_all, stragglers
from hookline.record.runs import load

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"


def launch(fate, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *where),
            *("-m", "hookline", "run", "-o", "run.hookline", str(PROGRAM), fate),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_a_slow_process_is_named(tmp_path):
    """Each process has its file; times are compared, and NaN is found in the one that made it."""
    result = launch("slow", tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.hookline", "run.hookline.1"]
    assert "rank 0 of 2" in result.stderr
    assert re.search(r"hookline show \S*run.hookline has all 2 processes", result.stderr)
    assert result.stderr.count("time by module: Net (train)") == 1

    run = load(tmp_path / "run.hookline")
    assert [rank.info.rank for rank in run.ranks] == [0, 1]
    (body,) = [r for r in over_ranks(run) if (r.path, r.direction) == ("body", "forward")]
    means = [
        row.total_time / row.calls
        for rank in run.ranks
        for row in rank.rows(TimeRow)
        if (row.path, row.direction) == ("body", "forward")
    ]
    assert (body.minimum, body.maximum) == (min(means), max(means))
    assert (body.slowest, body.ranks, body.calls) == (1, 2, 30)
    assert body.maximum >= 0.02
    (found,) = stragglers(run)
    assert (found.rank, found.worst.path) == (1, "body")
    # The NaN came in with the data of rank 1, whose calls passed it on.
    forward = {rank for rank, r in rows_of_all(run, NonFiniteRow) if r.direction == "forward"}
    assert forward == {1}


def test_a_process_that_dies_leaves_its_file_and_is_named(tmp_path):
    result = launch("die", tmp_path)
    assert result.returncode != 0

    run = load(tmp_path / "run.hookline")
    assert [rank.info.rank for rank in run.ranks] == [0, 1]
    assert run.ranks[1].state == "killed"
    assert run.ranks[1].rows(TimeRow), "what it measured is there up to the last second"
    assert any(remark.startswith("rank 1: killed after ") for remark in remarks(run))
