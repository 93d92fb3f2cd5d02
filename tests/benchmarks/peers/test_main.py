"""Tools that are missing, or that fail, are told and left out."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import tools
from benchmarks.peers.chainers import beside_chainer
from benchmarks.peers.tables import report

ABOUT = {"hookline": "0.1.0", "load": "0.5, 0.4, 0.3"}


def figure(variant, extra, ratio, work="outputs of all leaves (GPT)"):
    return {
        "work": work,
        "variant": variant,
        "extra": extra,
        "low": extra - 1,
        "high": extra + 1,
        "ratio": ratio,
    }


def found(group="captum", name="captum", ratio=1.5):
    rows = [("plain", 100.0, 1.0), ("raw torch hooks", 10.0, 1.1), ("hookline", 20.0, 1.2)]
    return {
        "group": group,
        "tools": [name],
        "load": ["1.0", "2.0"],
        "keeps": {"captum": "right", "hookline": "right"},
        "remarks": [f"{name}: something to know."],
        "figures": [figure(*row) for row in [*rows, (name, 50.0, ratio)]],
    }


def test_every_tool_has_a_version_to_install():
    """What the table of tools names stands in the requirements, and nothing else."""
    lines = Path(command.__file__).with_name("requirements.txt").read_text().splitlines()
    named = {line.partition("==")[0] for line in lines if "==" in line}
    assert named == {name for _, name in tools.GROUPS.values()} - {"torch"}


def test_missing_tools_are_told(monkeypatch, tmp_path, capsys):
    """On the terminal while it runs, and in the report; what is there is measured."""
    groups = {"captum": ("captum", "captum"), "nowhere": ("no_such_package", "no-such-package")}
    monkeypatch.setattr(tools, "GROUPS", groups)
    monkeypatch.setattr(command, "GROUPS", groups)
    monkeypatch.setattr(command, "_measured", lambda group, rounds, folder: found(group))
    monkeypatch.setattr(sys, "argv", ["peers", "--output", str(tmp_path)])
    command.main()

    out, err = capsys.readouterr()
    assert err == "no-such-package is not installed and left out\n"
    assert "Not installed and left out: no-such-package." in out
    assert "| captum | +50.0 | +49.0 to +51.0 | ×1.50 | ×1.20 | right |" in out
    kept = json.loads((tmp_path / "peers.json").read_text())
    assert kept["missing"] == ["no-such-package"]
    assert kept["about"]["captum"]
    assert (tmp_path / "peers.md").read_text() == out


def test_a_tool_that_fails_is_told_and_left_out(monkeypatch, tmp_path, capsys):
    """Its own process says why; the others go on."""
    assert command._measured("no_such_tool", 2, tmp_path) is None
    err = capsys.readouterr().err
    assert err.startswith("no_such_tool failed and is left out:\n")
    assert "ModuleNotFoundError" in err


def test_without_chainer_the_rest_goes_on(capsys):
    """A Python that is not there, or that has none."""
    for python in ("/no/such/python", sys.executable):
        assert beside_chainer(python, 2) == {}
        assert capsys.readouterr().err == f"{python} has no Chainer, which is left out\n"


def test_each_tool_stands_beside_hookline_of_its_own_process():
    """hookline's own row is that of the first; a tool's shows what hookline took beside it."""
    second = found("tdhook", "tdhook", 1.7)
    second["figures"][2]["ratio"] = 1.25
    text = report(ABOUT, [found(), second], {}, [])

    *_, summary, table, remarks = text.rstrip().split("\n\n")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
        "| hookline",
        "| raw torch hooks",
        "| captum",
        "| tdhook",
    ]
    assert table.endswith("×1.70 | ×1.25 |  |")
    assert summary.splitlines()[2:] == [
        "| hookline | ×1.23 (1.20 to 1.25) |",
        "| raw torch hooks | ×1.10 (1.10 to 1.10) |",
        "| captum | ×1.50, hookline ×1.20 |",
        "| tdhook | ×1.70, hookline ×1.25 |",
    ]
    assert remarks == "- captum: something to know.\n- tdhook: something to know."
    assert text.startswith("hookline 0.1.0, load 0.5, 0.4, 0.3\n")


@pytest.mark.parametrize("group", ["torchs", "captum"])
def test_what_is_installed_gives_tools(group):
    """Each file lists its tools, which have names of their own."""
    names = [tool.name for tool in tools.tools(group)]
    assert names
    assert len(set(names)) == len(names)
    assert group in tools.installed()
