"""The options of `hookline run`: what they write where, and what happens if that can't be."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import hookline
from hookline.cli.main import cli
from hookline.core.records import StatsRow, TimeRow
from hookline.record.rows import FaultRow, PassRow
from hookline.record.schema import VERSION
from hookline.record.store import Store
from hookline.report.formats import FORMATS

PROGRAM = """
import os, sys, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.encoder(x))

def main():
    torch.set_num_threads(1)
    net = Net()
    for _ in range(4):
        net(torch.zeros(1, 2)).sum().backward()
    os.makedirs("sub", exist_ok=True)
    os.chdir("sub")
    print("trained")

main()
sys.exit(5)
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def run(here, *args, **options):
    return subprocess.run(
        [sys.executable, "-m", "hookline", "run", *args],
        cwd=here, capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


def assert_as_without(result):
    """The program's own output and status are those that it has under python."""
    assert (result.stdout, result.returncode) == ("trained\n", 5)


def told(result):
    return [line for line in result.stderr.splitlines() if line.startswith("hookline: ")]


def test_everything_at_once(here):
    """All measures, a run file, three reports and TensorBoard; the program changes its folder."""
    files = ("a.hookline", "a.json", "a.csv", "a.trace.json")
    outputs = [part for file in files for part in ("-o", file)]
    measures = ("--time", "--nonfinite", "--stats", "--memory", "--flops", "--print")
    result = run(
        here, *outputs, *measures, "--level=both", "--every=2", "--where=head", "--tensorboard=tb",
        "train.py",
    )  # fmt: skip
    assert_as_without(result)
    assert list((here / "sub").iterdir()) == []
    assert all((here / file).stat().st_size for file in files)
    assert list((here / "tb").glob("events.out.*"))
    lines = told(result)
    assert lines == [
        *(f"hookline: wrote {here / file}" for file in (*files[1:], "tb")),
        f"hookline: kept in {here / 'a.hookline'}; hookline show {here / 'a.hookline'}",
    ]
    kept = hookline.load_run(here / "a.hookline")
    assert kept.info.options == (*measures, "--level", "both", "--every", "2")
    assert kept.info.program == ("train.py",)
    assert (kept.info.state, kept.info.error) == ("failed", "SystemExit: 5")
    assert {row.path for row in kept.rows(TimeRow)} == {"head"}
    # Of four passes, every second.
    assert {row.calls for row in kept.rows(StatsRow)} == {2}
    assert json.loads((here / "a.json").read_text())
    # A line for each of four calls, in two directions, at two levels.
    printed = [line for line in result.stderr.splitlines() if " head" in line and "float32" in line]
    assert len(printed) == 4 * 2 * 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "a.hookline", "-o", "b.run"], "a run is kept in one file, and a.hookline is given"),
        (["-o", "a.htm"], "-o a.htm: there is no format .htm; did you mean '.html'?"),
        (["-o", "no/a.hookline"], "-o no/a.hookline: there is no folder"),
        (["-o", "a.hookline", "-o", "no/a.json"], "-o no/a.json: there is no folder"),
        (["-o", "."], "'.' is a directory"),
        (["-o", "/proc/a.hookline"], "-o /proc/a.hookline can't be written: No such file"),
        (["-o", "a.json", "-o", "/proc/a.html"], "-o /proc/a.html can't be written: "),
        (["--where", "a..b"], "--where: the pattern 'a..b' has an empty segment"),
        (["--where", "a.b**:relu", "--level", "both"], "--where: the pattern 'a.b**' has **"),
        (["--where", "head:relu"], "'head:relu' means functions, and only modules are measured"),
        (["--every", "0"], "0 is not in the range x>=1"),
        (["--every", "some"], "'some' is not a valid integer"),
        (["--tensorboard", "train.py"], "'train.py' is a file"),
        (["--tensorbord"], "Did you mean '--tensorboard'?"),
        (["--where"], "requires an argument"),
    ],
    ids=" ".join,
)
def test_r10_what_cannot_be_is_refused_before_the_program_runs(args, message, here, monkeypatch):
    monkeypatch.chdir(here)
    program = [] if args == ["--where"] else ["train.py"]
    result = CliRunner().invoke(cli, ["run", *args, *program], prog_name="hookline")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("package", "args", "message"),
    [
        ("matplotlib", ["-o", "a.png"], "-o plots need matplotlib: pip install 'hookline[plot]'"),
        ("tensorboard", ["--tensorboard", "tb"], "--tensorboard: TensorBoard files need"),
    ],
)
def test_r10_a_missing_extra_is_told_before_the_program_runs(
    package, args, message, here, monkeypatch
):
    monkeypatch.chdir(here)
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(cli, ["run", *args, "train.py"], prog_name="hookline")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    others = ["-o", "a.html", "-o", "a.hookline"]
    assert CliRunner().invoke(cli, ["run", *others, "train.py"], standalone_mode=False).return_value


@pytest.mark.parametrize(("name", "note"), [("a.docx", True), ("a", False), ("a.hookline", False)])
def test_r9_a_run_file_that_looks_like_a_report_is_told_to_be_none(name, note, here):
    result = run(here, "-o", name, "train.py")
    assert_as_without(result)
    path = here / name
    kind = f", a run file (reports end in {', '.join(FORMATS)})" if note else ""
    assert told(result) == [f"hookline: kept in {path}{kind}; hookline show {path}"]
    assert hookline.load_run(path).info.state == "failed"


def test_r9_help_says_what_naming_a_measure_does():
    text = " ".join(CliRunner().invoke(cli, ["run", "--help"]).output.split())
    assert "naming any of --time to --print turns the defaults off" in text


def _other_file(path):
    path.write_text("a diary\n" * 100)


def _newer_run(path):
    Store(path).close()
    with sqlite3.connect(path) as opened:
        opened.execute(f"PRAGMA user_version = {VERSION + 1}")
    opened.close()


@pytest.mark.parametrize(
    ("file", "make", "message"),
    [
        ("/dev/full", None, "/dev/full can't be written: database or disk is full"),
        ("run.hookline", _other_file, "can't be read as a run: file is not a database"),
        ("run.hookline", _newer_run, f"has schema {VERSION + 1}, and this hookline reads up to"),
    ],
    ids=["full", "no run", "newer"],
)
def test_section_6_a_file_that_cannot_be_is_told_once_and_the_rest_goes_on(
    file, make, message, here
):
    """The program runs, is measured, and other reports are made; the file stays as it was."""
    before = None
    if make is not None:
        make(here / file)
        before = (here / file).read_bytes()
    result = run(here, "-o", file, "-o", "a.json", "train.py")
    assert_as_without(result)
    first, *others = told(result)
    assert message in first
    assert first.endswith("; the run is not kept")
    assert others == [f"hookline: wrote {here / 'a.json'}"]
    assert "time by module: Net (train)" in result.stderr
    if before is not None:
        assert (here / file).read_bytes() == before


LIMITED = """
import resource, runpy, sys
sys.argv[:] = ["hookline", *sys.argv[1:]]
resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, resource.RLIM_INFINITY))
runpy.run_module("hookline", run_name="__main__", alter_sys=True)
"""


def test_section_6_a_file_that_may_not_grow(here):
    """The limit is met at the last commit; what was there before stays readable."""
    program = PROGRAM.replace("net = Net()", "nets = [Net() for _ in range(200)]").replace(
        "net(torch.zeros(1, 2)).sum()", "sum(net(torch.zeros(1, 2)).sum() for net in nets)"
    )
    (here / "train.py").write_text(program)
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, "run", "-o", "run.hookline", "train.py"],
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert_as_without(result)
    [line] = told(result)
    assert line.endswith("; the program goes on")
    assert "run.hookline could not be written: " in line
    assert hookline.load_run(here / "run.hookline").info.state == "running"


def test_r9_patterns_that_matched_nothing_are_told_at_the_end(here):
    result = run(
        here, "--where=encodr", "--where=head", "--where=head:linaer", "--level=both",
        "-o", "run.hookline", "train.py",
    )  # fmt: skip
    assert_as_without(result)
    faults = [row.text for row in hookline.load_run(here / "run.hookline").rows(FaultRow)]
    assert faults == [
        "no module of Net is named 'encodr'; did you mean 'encoder'?",
        "'head:linaer' matched no function: the module called 'linear'; did you mean 'linear'?",
    ]
    assert [line for line in told(result) if "kept in" not in line] == [
        f"hookline: {fault}" for fault in faults
    ]


def test_a_missing_extra_is_named(here):
    """The other reports are made."""
    folder = here / "without"
    folder.mkdir()
    (folder / "tensorboard.py").write_text("raise ImportError\n")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = run(here, "--tensorboard", "tb", "-o", "a.json", "train.py", env=environment)
    assert_as_without(result)
    needs = "TensorBoard files need tensorboard: pip install 'hookline[tensorboard]'"
    assert told(result) == [
        f"hookline: wrote {here / 'a.json'}",
        f"hookline: could not write {here / 'tb'}: {needs}",
    ]


def test_a_program_that_is_terminated_leaves_its_last_commit(here):
    """SIGTERM ends it as under python: at once, without a report."""
    endless = PROGRAM.replace('print("trained")', "while True: net(torch.zeros(1, 2))")
    (here / "train.py").write_text(endless)
    process = subprocess.Popen(
        [sys.executable, "-m", "hookline", "run", "-o", "run.hookline", "train.py"],
        cwd=here, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    path = here / "run.hookline"
    while not (path.exists() and path.stat().st_size and hookline.load_run(path).rows(PassRow)):
        time.sleep(0.1)
        assert process.poll() is None
    process.terminate()
    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGTERM
    kept = hookline.load_run(path)
    assert kept.info.state == "running"
    assert kept.rows(TimeRow)
    assert sum(row.passes for row in kept.rows(PassRow)) > 0


def test_a_program_that_records_itself(here):
    """`hookline.record` in a program that runs under `hookline run`: both are complete."""
    code = PROGRAM.replace(
        "main()\nsys", "import hookline\nwith hookline.record('own.hookline'):\n    main()\nsys"
    )
    (here / "train.py").write_text(code)
    result = run(here, "-o", "run.hookline", "train.py")
    assert_as_without(result)
    for file in ("run.hookline", "own.hookline"):
        kept = hookline.load_run(here / file)
        assert kept.rows(FaultRow) == []
        assert kept.rows(PassRow) == [PassRow("Net", "train", 4, 3)]
        assert {row.calls for row in kept.rows(TimeRow)} == {4}
