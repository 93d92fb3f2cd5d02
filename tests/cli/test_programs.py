"""Programs that know nothing of hookline compute the same under it, and their runs are right."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import hookline
from hookline.core.records import FlopRow, MemoryRow, Silent, StatsRow, TimeRow
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow

PROGRAMS = Path(__file__).parent / "programs"
MOST = ("--time", "--nonfinite", "--stats", "--memory", "--flops", "--level", "both", "--every=2")

# For each program, how many passes of each root there are in each mode, and whether with backward.
EXPECTED = {
    "loop.py": {
        ("Digits", "train"): (16, True),
        ("Digits", "eval"): (2, False),
        ("CrossEntropyLoss", "train"): (16, True),
        ("CrossEntropyLoss", "no_grad"): (2, False),
    },
    "trainer.py": {
        ("GPT2LMHeadModel", "train"): (6, True),
        ("GPT2LMHeadModel", "eval"): (2, False),
    },
    "fit.py": {("Regression", "train"): (6, True), ("Regression", "eval"): (4, False)},
    "gan.py": {
        ("Generator", "train"): (5, True),
        ("Discriminator", "train"): (15, True),
        ("BCEWithLogitsLoss", "train"): (15, True),
    },
    "loaders.py": {("Sequential", "train"): (6, True)},
}
STEPS = {"loop.py": 16, "trainer.py": 6, "fit.py": 6, "gan.py": 10, "loaders.py": 6}
SILENT = {
    "loop.py": {("spare", "not called")},
    # Its attention hands the probability of dropout to a function.
    "trainer.py": {
        ("transformer.h", "no forward"),
        ("transformer.h.0.attn.attn_dropout", "not called"),
        ("transformer.h.1.attn.attn_dropout", "not called"),
    },
}
LEAF = {
    "loop.py": ("Digits", "head"),
    "trainer.py": ("GPT2LMHeadModel", "lm_head"),
    "fit.py": ("Regression", "net.2"),
    "gan.py": ("Discriminator", "2"),
    "loaders.py": ("Sequential", "2"),
}
"""A module of each that is called once a pass, and its root."""


def python(folder, *args):
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a program prints under python, asked once for each."""
    folder, known = tmp_path_factory.mktemp("plain"), {}

    def ask(program):
        if program not in known:
            known[program] = python(folder, PROGRAMS / program)
        assert known[program].returncode == 0, known[program].stderr
        return known[program]

    return ask


@pytest.mark.parametrize("options", [(), MOST], ids=["defaults", "most"])
@pytest.mark.parametrize("program", EXPECTED)
def test_section_6_an_unchanged_program(program, options, plain, tmp_path):
    """Bitwise the same losses; roots and modes apart; nothing from its children."""
    folder = tmp_path / "here"
    folder.mkdir()
    hooked = python(
        folder, "-m", "hookline", "run", "-o", "run.hookline", *options, PROGRAMS / program
    )
    assert hooked.stdout == plain(program).stdout
    assert "0x" in hooked.stdout
    assert hooked.returncode == 0
    assert hooked.stderr.startswith(plain(program).stderr)
    assert [file.name for file in folder.iterdir() if file.is_file()] == ["run.hookline"]
    told = [line for line in hooked.stderr.splitlines() if line.startswith("hookline: ")]
    assert told[-1].startswith("hookline: kept in ")
    assert all("lines left out" in line for line in told[:-1])

    run = hookline.load_run(folder / "run.hookline")
    assert run.rows(FaultRow) == []
    assert (run.info.state, run.info.steps) == ("finished", STEPS[program])
    expected = EXPECTED[program]
    assert {(r.root, r.mode): r.passes for r in run.rows(PassRow)} == {
        key: passes for key, (passes, _) in expected.items()
    }
    assert {row.root for row in run.rows(ModuleRow)} == {root for root, _ in expected}
    assert {(row.path, row.cause) for row in run.rows(Silent)} == SILENT.get(program, set())
    root, leaf = LEAF[program]
    places = [*((each, "", mode) for each, mode in expected)]
    leaves = [(root, leaf, mode) for each, mode in expected if each == root]
    _check_calls(run.rows(TimeRow), [*places, *leaves], expected)
    if options:
        _check_calls(run.rows(FlopRow), leaves, expected)
        _check_measures(run, program)


def _check_calls(rows, places, expected):
    calls = Counter()
    for row in rows:
        if row.level == "module":
            calls[row.root, row.path, row.mode, row.direction] += row.calls
    for root, path, mode in places:
        passes, backward = expected[root, mode]
        assert calls[root, path, mode, "forward"] == passes
        assert calls[root, path, mode, "backward"] == (passes if backward else 0)
    assert {root for root, *_ in calls} <= {root for root, _ in expected}


def _check_measures(run, program):
    root, leaf = LEAF[program]
    for kind in (TimeRow, StatsRow, MemoryRow, FlopRow, EventRow):
        assert {row.level for row in run.rows(kind)} == {"module", "function"}, kind
        assert any((row.root, row.path) == (root, leaf) for row in run.rows(kind)), kind
    # Nothing of the workers' own model.
    assert {row.root for row in run.rows(TimeRow)} - {""} == {r for r, _ in EXPECTED[program]}


def test_the_programs_know_nothing_of_hookline():
    for program in EXPECTED:
        code = (PROGRAMS / program).read_text()
        assert "import hookline" not in code
        assert "from hookline" not in code
