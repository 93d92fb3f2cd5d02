"""The commands: help, mistakes of the user, faults of hookline, and a real run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hookline.cli.main import cli

PROGRAMS = Path(__file__).parent / "programs"
WITHOUT_TORCH = str(PROGRAMS / "hookline_without_torch.py")


def python(*args, **variables):
    return subprocess.run(
        [sys.executable, *args],
        cwd=PROGRAMS,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", [[], *([name] for name in cli.commands)], ids=str)
def test_help_shows_an_example(command):
    """The help of hookline and of every command shows how to call it."""
    result = CliRunner().invoke(cli, [*command, "--help"], prog_name="hookline")

    assert result.exit_code == 0
    assert f"hookline {' '.join(command)}".rstrip() in result.output.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "Missing argument 'PROGRAM'"),
        (["run", "--tmie", "train.py"], "Did you mean one of: '--live', '--time'?"),
        (["rnu"], "Did you mean 'run'?"),
        (["train.py", "--epochs", "3"], "To run a program: hookline run train.py"),
    ],
    ids=["no program", "option", "command", "no command"],
)
def test_mistakes(args, message):
    """A mistake before the program is reported, with a near name, and nothing is run."""
    result = CliRunner().invoke(cli, args, prog_name="hookline")

    assert message in result.output
    assert result.exit_code == 2


def test_mistakes_end_the_process_with_status_2():
    """The process says what is wrong on stderr and ends with status 2."""
    result = python("-m", "hookline", "run", "--tmie", "train.py")

    assert "'--time'?" in result.stderr
    assert (result.stdout, result.returncode) == ("", 2)


def test_version():
    """`--version` tells the version, by `python -m hookline` too."""
    from hookline._version import __version__

    assert python("-m", "hookline", "--version").stdout == f"hookline {__version__}\n"


@pytest.mark.parametrize("module", ["torch", "rich", "numpy"])
def test_nothing_heavy_is_loaded_for_help(module):
    """What a command does not need is not imported by the command line."""
    code = (
        "import sys; from hookline.cli.main import cli;"
        "cli.main(['run', '--help'], standalone_mode=False);"
        f"sys.exit({module!r} in sys.modules)"
    )

    assert python("-c", code).returncode == 0


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("__init__", "could not load its hooks"),
        ("start", "could not set its hooks"),
        ("close", "could not make its report"),
    ],
)
def test_faults_of_hookline(method, message):
    """A fault of hookline's own is reported once; the program runs and its status stands."""
    plain = python("endings.py", "status", FAULT=method)
    hooked = python(WITHOUT_TORCH, "run", "endings.py", "status", FAULT=method)

    assert hooked.stdout == plain.stdout
    assert hooked.returncode == plain.returncode == 3
    assert hooked.stderr.startswith(f"hookline: a fault of its own: {message}")
    assert hooked.stderr.endswith(f"RuntimeError: the writer failed in {method}\n")
    assert hooked.stderr.count("hookline: ") == 1


def test_a_hook_that_fails_is_reported(tmp_path):
    """A fault in one of hookline's hooks ends that hook only, and is told after the tables."""
    # The program breaks the timer from inside, in the middle of its run.
    (tmp_path / "breaking.py").write_text(BREAKING)
    hooked = python("-m", "hookline", "run", str(tmp_path / "breaking.py"))

    assert (hooked.stdout, hooked.returncode) == ("4 calls\n", 3)
    table, _, fault = hooked.stderr.partition("hookline: ")
    assert "time by module: Linear (train)" in table
    assert fault.startswith("a fault of its own: TimerHook was switched off; the program went on\n")
    assert fault.endswith("ZeroDivisionError: broken\n")
    assert "hookline: " not in fault


BREAKING = """
import sys
import torch
from hookline.hooks.meter import TimeMeter

def broken(*_):
    raise ZeroDivisionError("broken")

layer = torch.nn.Linear(2, 2)
for number in range(4):
    if number == 2:
        TimeMeter.begin = broken
    layer(torch.zeros(1, 2))
print(number + 1, "calls")
sys.exit(3)
"""


@pytest.mark.parametrize(
    "args", [["train.py"], ["-m", "train", "--fail"], ["train.py", "--interrupt"]], ids=" ".join
)
def test_real_run(args):
    """A training's results and ending are as under python, and its times are reported."""
    plain = python(*args)
    hooked = python("-m", "hookline", "run", "--time", *args)

    assert hooked.stdout == plain.stdout
    assert hooked.returncode == plain.returncode
    assert hooked.stderr.startswith(plain.stderr)
    report = hooked.stderr.removeprefix(plain.stderr)
    program = " ".join(args)
    assert re.match(rf"{program}: \w+ after \d+\.\d s, 2 optimizer steps\n", report)
    assert "\ntime by module: Net (train)\n" in report
    assert "time by module: Net (eval)" in report
    assert report.count("head") == 2


@pytest.mark.parametrize("args", [["train.py"], ["-m", "train", "--fail"]], ids=" ".join)
def test_real_run_by_function(args):
    """By function, a training's results are the same, and functions stand under their modules."""
    plain = python(*args)
    hooked = python("-m", "hookline", "run", "--level", "function", *args)

    assert (hooked.stdout, hooked.returncode) == (plain.stdout, plain.returncode)
    assert hooked.stderr.startswith(plain.stderr)
    report = hooked.stderr.removeprefix(plain.stderr)
    train, eval_ = tables(report, "function (train)"), tables(report, "function (eval)")
    assert train.index("Net layers.0") < train.index("Net layers.1") < train.index("Net head")
    assert called(train, "relu") == ["2"]
    assert called(train, "linear") == ["2", "2"]
    assert called(train.partition("outside modules")[2], "square") == ["2"]
    assert called(eval_, "linear") == ["1", "1"]
    assert "time by module" not in report


def test_real_run_by_both():
    """By both levels, tables of modules come first, then those of functions."""
    hooked = python("-m", "hookline", "run", "--level", "both", "train.py")
    titles = [line.strip() for line in hooked.stderr.splitlines() if line.startswith("time by")]

    assert titles[:2] == ["time by module: Net (train)", "time by module: Net (eval)"]
    assert titles[2] == "time by function (train)"
    assert sorted(titles[3:]) == ["time by function (eval)", "time by function (no_grad)"]
    assert called(tables(hooked.stderr, "module: Net (train)"), "0") == ["Linear"]


def test_run_by_function_reaches_threads_and_leaves_workers_alone():
    """Threads and custom functions are seen, forked workers are not; the program's hook works."""
    plain = python("functions.py")
    hooked = python("-m", "hookline", "run", "--level", "function", "functions.py")

    assert (hooked.stdout, hooked.returncode) == (plain.stdout, plain.returncode)
    assert plain.stderr == ""
    table = tables(hooked.stderr, "function (train)")
    assert called(table, "Double") == ["2"]
    assert called(table, "tanh") == ["1"]
    assert called(table, "square") == []


def test_unknown_level():
    """A level that does not exist is an error that lists those that do."""
    result = CliRunner().invoke(cli, ["run", "--level", "layer", "train.py"], prog_name="hookline")

    assert result.exit_code == 2
    assert "'layer' is not one of 'module', 'function', 'both'" in result.output


def tables(report, title):
    """The table of a title, without it."""
    return report.partition(f"time by {title}")[2].partition("time by")[0]


def called(table, name):
    """What stands behind a name in each of its lines: the number of calls, for functions."""
    lines = [line.split() for line in table.splitlines()]
    return [cells[1] for cells in lines if cells[:1] == [name]]


def test_a_program_that_compiles_its_model():
    """Same losses and as many graphs as without hookline; the model is one row of the report."""
    plain = python("compiled.py")
    run = python("-m", "hookline", "run", "compiled.py")

    assert (run.stdout, run.returncode) == (plain.stdout, 0)
    assert plain.stdout.endswith("1 graphs\n")
    rows = [line.split() for line in run.stderr.splitlines() if line.startswith("  Sequential")]
    assert rows[0][:3] == ["Sequential", "Sequential", "3"]
