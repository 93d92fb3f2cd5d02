"""A program run by hookline sees, prints and ends with what it would under python."""

import os
import pty
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hookline.report.terminal import NOTHING_CALLED

PROGRAMS = Path(__file__).parent / "programs"
REPORT = NOTHING_CALLED + "\n"
HOOKLINE = (str(PROGRAMS / "hookline_without_torch.py"), "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the programs in all the forms that python can run."""
    folder = tmp_path_factory.mktemp("programs") / "here"
    shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    probe = (folder / "probe.py").read_text()
    files = {
        "package/__init__.py": "",
        "package/__main__.py": probe,
        "package/part.py": probe,
        "failing/__init__.py": "1 / 0\n",
        "failing/__main__.py": "",
        "broken.py": "x = = 1\n",
        "app/__main__.py": probe,
        "other/real.py": probe,
        "other/windows.py": probe.replace("\n", "\r\n"),
        "other/latin.py": "# coding: latin-1\nprint(ascii('\u00e9'))\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("latin-1" if "latin" in name else "utf-8"))
    (folder / "link.py").symlink_to("other/real.py")
    py_compile.compile(str(folder / "probe.py"), str(folder / "compiled.pyc"))
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", probe)
    return folder


def run(*args, cwd, hookline=(), flags=(), **options):
    command = [sys.executable, *flags, *hookline, *args]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, input="typed", check=False, **options
    )


def assert_same(*args, cwd, flags=()):
    """The same streams and status under python and hookline, but for hookline's report."""
    plain = run(*args, cwd=cwd, flags=flags)
    hooked = run(*args, cwd=cwd, flags=flags, hookline=HOOKLINE)

    assert without_addresses(hooked.stdout) == without_addresses(plain.stdout)
    assert without_addresses(hooked.stderr) == without_addresses(plain.stderr + REPORT)
    assert hooked.returncode == plain.returncode
    return plain


def without_addresses(text):
    return re.sub("0x[0-9a-f]+", "0x…", text)


@pytest.mark.parametrize(
    "args",
    [
        ["probe.py"],
        ["./probe.py"],
        ["././probe.py"],
        ["other/../probe.py"],
        ["other/windows.py"],
        ["other/latin.py"],
        ["link.py"],
        ["compiled.pyc"],
        ["-m", "probe"],
        ["-m", "package"],
        ["-m", "package.part"],
        ["app"],
        ["./app/"],
        [".//app"],
        ["app.zip"],
    ],
    ids=" ".join,
)
def test_every_form_of_program_sees_the_same(args, folder):
    """Files, modules, packages, folders and zip files see what they see under python."""
    plain = assert_same(*args, "an argument", cwd=folder)

    assert plain.returncode == 0
    assert plain.stdout


def test_program_given_by_absolute_path(folder, tmp_path):
    """A program elsewhere finds its own folder first, also when started from another one."""
    assert_same(str(folder / "probe.py"), cwd=tmp_path)
    assert_same(str(folder / "app"), cwd=tmp_path)


def test_current_folder_as_program(folder):
    """`.` is the current folder, by its absolute path."""
    assert_same(".", cwd=folder / "app")


@pytest.mark.parametrize("program", [["probe.py"], ["-m", "probe"]], ids=" ".join)
@pytest.mark.parametrize(
    "args",
    [
        ["--time", "--help", "--version", "-m", "x", "-h"],
        ["--", "y"],
        ["--lr", "0.1", "", "*", "--", "--", "-x"],
    ],
    ids=" ".join,
)
def test_arguments_are_the_programs(program, args, folder):
    """What follows the program is passed on untouched, even what looks like hookline's own."""
    plain = assert_same(*program, *args, cwd=folder)

    assert all(f'"{arg}"' in plain.stdout for arg in args)


def test_hooklines_options_are_not_the_programs(folder):
    """Options before the program are hookline's, `--` ends them."""
    plain = run("probe.py", "--time", cwd=folder)
    for options in (["--time"], ["--"], ["--time", "--"]):
        hooked = run(*options, "probe.py", "--time", cwd=folder, hookline=HOOKLINE)

        assert hooked.stdout == plain.stdout


@pytest.mark.parametrize("flag", ["-P", "-I", "-O", "-Wignore", "-Xdev"])
def test_python_flags(flag, folder, monkeypatch):
    """Under python's own flags, safe paths included, all is the same too."""
    # `-I` leaves PYTHONPATH out, by which hookline may be found; then it has nothing to run.
    if flag == "-I" and run("-c", "import hookline.cli", cwd=folder, flags=["-I"]).returncode:
        pytest.skip("hookline is not installed")
    for program in ("probe.py", "app"):
        assert_same(program, cwd=folder, flags=[flag])


ENDINGS = [
    *("nothing", "status", "large status", "text", "none", "object", "quit"),
    *("chained", "group", "noted", "in_a_library", "bad_import", "interrupt", "ctrl_c"),
    *("handled_by_hook", "hook_fails", "hook_exits"),
    *("exit_handlers", "exit_handlers_after_exit", "exit_handlers_after_error"),
    *("exit_handler_fails", "thread_goes_on", "thread_fails", "pool_left_open"),
    *("streams_replaced", "fork", "fork_fails"),
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_the_same(ending, folder):
    """Status, traceback, hooks, exit handlers, threads and forks: all as under python."""
    assert_same("endings.py", ending, cwd=folder)


@pytest.mark.parametrize(
    "ending", ["status", "chained", "ctrl_c", "hook_fails", "exit_handlers_after_error"]
)
def test_every_ending_of_a_module_is_the_same(ending, folder):
    """A module's traceback begins with the interpreter's own frames, and keeps them."""
    assert_same("-m", "endings", ending, cwd=folder)


def test_interrupt_ends_by_the_signal(folder):
    """After Ctrl-C the process ends by the signal, so that a shell loop ends as well."""
    assert assert_same("endings.py", "ctrl_c", cwd=folder).returncode == -2


@pytest.mark.parametrize("args", [["broken.py"], ["-m", "broken"], ["-m", "failing"]], ids=" ".join)
def test_program_that_does_not_start(args, folder):
    """A syntax error, or an error in the package around a module, is printed as by python."""
    assert assert_same(*args, cwd=folder).returncode == 1


@pytest.mark.parametrize("args", [["workers.py"], ["-m", "workers"]], ids=" ".join)
def test_children(args, folder):
    """Children run, find what `__main__` defines, and do not come through hookline again."""
    plain = assert_same(*args, "--flag", cwd=folder)

    assert plain.stdout.count("True 2") == 3


def test_terminal(folder):
    """In a terminal, the program has the terminal."""
    plain = in_terminal("probe.py", cwd=folder)
    hooked = in_terminal(*HOOKLINE, "probe.py", cwd=folder)

    assert plain.count("true") > 3
    assert hooked == plain + REPORT.replace("\n", "\r\n")


def in_terminal(*args, cwd):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *args], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    text = b""
    # At the end of a terminal's output, Linux reports an error instead of an empty read.
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:
        pass
    os.close(ours)
    process.wait()
    return text.decode()


def test_program_without_a_report(folder):
    """A program that ends the process itself ends it, and nothing is reported."""
    (folder / "at_once.py").write_text("import os\nos._exit(7)\n")
    hooked = run("at_once.py", cwd=folder, hookline=HOOKLINE)

    assert (hooked.stdout, hooked.stderr, hooked.returncode) == ("", "", 7)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["prob.py"], "can't open 'prob.py': No such file or directory (near it: probe.py"),
        (["other"], "can't run 'other': there is no __main__.py in it. Name a script, or"),
        (["-m", "nowhere"], "can't run the module 'nowhere': No module named nowhere"),
        (["-m", "other"], "can't run the module 'other': No module named other.__main__"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_such_program(args, message, folder):
    """A program that isn't there gives one line of hookline's own, no report, and status 2."""
    hooked = run(*args, cwd=folder, hookline=HOOKLINE)

    assert hooked.stderr.startswith(f"hookline: {message}")
    assert hooked.stderr.count("\n") == 1
    assert (hooked.stdout, hooked.returncode) == ("", 2)
