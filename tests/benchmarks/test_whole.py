"""Whole processes: what they take is what the system says, and ratios are within a round."""

import pytest

from benchmarks import whole
from benchmarks.whole import Program, Taken, starts, tables, taken, whole_programs


def test_what_a_process_takes_is_its_own():
    """A process that sleeps takes wall time and hardly any CPU time."""
    sleeping = taken(("-c", "import time; time.sleep(0.5)"))
    assert sleeping.wall >= 0.5
    assert 0 < sleeping.cpu < sleeping.wall


def test_a_process_that_fails_is_not_measured():
    """What it said is in the error."""
    with pytest.raises(RuntimeError, match=r"ended with 3: no good"):
        taken(("-c", "import sys; print('no good', file=sys.stderr); sys.exit(3)"))


def test_ratios_are_to_plain_python_in_the_same_round(monkeypatch):
    """Whole to whole, and beyond what a process that has nothing to do takes."""
    plain, under, counts = iter([10.0, 20.0, 40.0]), iter([12.0, 22.0, 48.0]), []

    def pretend(arguments):
        counts.append(arguments)
        if arguments[-1] == "0":
            seconds = 4.0 if "hookline" in arguments else 2.0
        else:
            seconds = next(under if arguments[:3] == ("-m", "hookline", "run") else plain)
        return Taken(2 * seconds, seconds)

    monkeypatch.setattr(whole, "WAYS", {"python": (), "run": ("-m", "hookline", "run")})
    monkeypatch.setattr(whole, "taken", pretend)
    program = Program("small", ("small.py",), "--steps", 7)
    rows = whole_programs(3, [program])

    assert [(row.way, row.clock, row.seconds) for row in rows] == [
        ("python", "cpu", 20.0),
        ("run", "cpu", 22.0),
        ("python", "wall", 40.0),
        ("run", "wall", 44.0),
    ]
    assert [row.ratio for row in rows] == pytest.approx([1.0, 1.2, 1.0, 1.2])
    assert rows[1].beyond_start == pytest.approx(1.0)  # 8 / 8, 18 / 18 and 44 / 38
    assert counts.count(("-m", "hookline", "run", "small.py", "--steps", "7")) == 3
    assert "| small | `run` | cpu | 22.00 | ×1.200 |" in tables(rows, [])


@pytest.mark.parametrize("program", whole.PROGRAMS, ids=lambda program: program.name)
def test_each_program_runs_under_hooks(program):
    """The smallest amount of work there is."""
    command = (*whole.WAYS["hookline run"], *program.command, program.amount, "0")
    assert taken(command).cpu > 0


def test_an_import_takes_time_once_torch_is_there():
    """In a new process, which tells what it took."""
    importing = whole._imported("hookline.hooks.timer")
    assert importing.cpu > 0
    assert importing.wall > 0


def test_starts_leave_out_the_first_round(monkeypatch):
    """It warms the disk; the kept run that is shown is made before."""
    seconds, commands = iter([9.0, 1.0, 2.0]), []

    def pretend(arguments):
        commands.append(arguments)
        return Taken(1.0, next(seconds) if "show" in arguments else 0.0)

    monkeypatch.setattr(whole, "taken", pretend)
    monkeypatch.setattr(whole, "_imported", lambda what: Taken(0.5, 0.25))
    rows = starts(2)

    assert commands[0][:4] == ("-m", "hookline", "run", "-o")
    assert [(row.what, row.clock, row.seconds) for row in rows] == [
        ("import hookline, after torch", "cpu", 0.25),
        ("import hookline, after torch", "wall", 0.5),
        ("import hookline.hooks.timer, after torch", "cpu", 0.25),
        ("import hookline.hooks.timer, after torch", "wall", 0.5),
        ("hookline show, the whole process", "cpu", 1.5),
        ("hookline show, the whole process", "wall", 1.0),
    ]
    assert "| import hookline, after torch | cpu | 250 | 250 to 250 |" in tables([], rows)
