"""`hookline show`, `compare` and `hooks`: what they print, mistakes, and how little they load."""

import inspect
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hookline import function_hooks, module_hooks
from hookline.cli.hooks import catalogue
from hookline.cli.main import cli
from hookline.core.records import TimeRow
from hookline.record.measures import Measures
from hookline.record.store import Store
from tests.record.sample import SLOW, sample


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run.hookline", sample(blocks=12))


def write(path, tables):
    with Store(path) as store:
        store.write(tables)
    return str(path)


def hookline(*args, status=0):
    result = CliRunner().invoke(cli, args, prog_name="hookline")
    assert result.exit_code == status, result.output
    return result.output


def test_show_prints_what_there_is_and_says_what_it_left_out(run):
    text = hookline("show", run)
    assert text.startswith("train.py --epochs 3: finished after 12.5 s")
    assert "NaN and Inf" in text
    assert f"lines left out; hookline show {run} --all shows all" in text
    assert "left out" not in hookline("show", run, "--all")


def test_show_chosen_tables_sorted(run):
    text = hookline("show", run, "--table", "times", "--sort", "forward self")
    first = next(line for line in text.splitlines() if "%" in line)
    rows = [row for row in sample(blocks=12)[TimeRow] if row.level == "module"]
    trained = [row for row in rows if row.mode == "train" and row.direction == "forward"]
    assert first.split()[0] == max(trained, key=lambda row: row.self_time).path
    assert "NaN and Inf" not in text


@pytest.mark.parametrize(
    ("args", "message", "status"),
    [
        (["--sort", "nothing"], "'nothing' is no column of these tables; choose from module", 1),
        (["--table", "time"], "'time' is not one of 'times', 'memory'", 2),
    ],
)
def test_mistakes_are_explained(args, message, status, run):
    assert message in hookline("show", run, *args, status=status)


@pytest.mark.parametrize("command", [["show"], ["compare"]], ids=str)
def test_a_file_that_is_no_run_is_explained(command, tmp_path, run):
    (tmp_path / "text").write_text("no database, but text that is long enough to be one" * 20)
    second = [run] if command == ["compare"] else []
    for name, message in (("text", "can't be read as a run"), ("none", "there is no run at")):
        assert message in hookline(*command, str(tmp_path / name), *second, status=1)


def test_a_missing_extra_is_told_in_a_line(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = hookline("export", run, "-o", str(tmp_path / "x.png"), status=1)
    assert text == "Error: plots need matplotlib: pip install 'hookline[plot]'\n"


def test_compare_tells_the_slow_module(run, tmp_path):
    tables = sample(blocks=12)
    tables[TimeRow] = [
        replace(row, self_time=50 * row.self_time) if row.path == SLOW else row
        for row in tables[TimeRow]
    ]
    other = write(tmp_path / "other.hookline", tables)
    lines = [line for line in hookline("compare", run, other).splitlines() if SLOW in line]
    assert len(lines) == 3  # forward and backward in training, forward in evaluation
    assert all("slower" in line and "×50.00" in line for line in lines)
    assert "nothing changed by ×51.00" in hookline("compare", run, other, "--threshold", "51")
    assert "1" in hookline("compare", run, other, "--threshold", "0.5", status=2)


def test_hooks_lists_exactly_the_ready_made_hooks():
    """By their docstrings, and the options by what `Measures` makes of them."""
    found = list(catalogue())
    for module in (module_hooks, function_hooks):
        name = module.__name__.rpartition(".")[2]
        assert sorted(hook.name for hook in found if hook.module == name) == module.__all__
        for hook in (hook for hook in found if hook.module == name):
            first = inspect.getdoc(getattr(module, hook.name)).partition("\n")[0]
            assert hook.text.split()[:3] == first.split()[:3]
            assert "][" not in hook.text
    options = {hook.option: hook.name for hook in found if hook.option}
    measured = Measures(**{name[2:]: True for name in options}).hooks()
    assert [getattr(module_hooks, name) for name in options.values()] != []
    assert {type(hook) for hook in measured} == {
        getattr(module_hooks, name) for name in options.values()
    }


def test_hooks_prints_them_with_the_options_of_run():
    text = hookline("hooks")
    options = hookline("run", "--help")
    for hook in catalogue():
        (line, *_) = [line for line in text.splitlines() if line.split()[:1] == [hook.name]]
        assert hook.option in line
        assert hook.option in options
    assert "hookline.module_hooks" in text
    assert "hookline.function_hooks" in text


@pytest.mark.parametrize("command", ["show RUN", "compare RUN RUN", "hooks"])
def test_no_torch_is_loaded(command, run):
    """The report of a run needs none, nor numpy."""
    args = [run if word == "RUN" else word for word in command.split()]
    code = (
        "import sys; from hookline.cli.main import cli;"
        f"cli.main({args!r}, standalone_mode=False);"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
