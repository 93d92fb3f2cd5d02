"""`hookline run --live` in a terminal, and where there is none."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pyte
import pytest

PROGRAM = """
import sys, time, torch
net = torch.nn.Linear(2, 2)
for number in range(40):
    net(torch.zeros(1, 2))
    print("output", number, flush=True)
    time.sleep(0.05)
print(sys.stderr.isatty(), type(sys.stderr).__name__, file=sys.stderr)
if "--fail" in sys.argv:
    raise ValueError("bad")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("args", [[], ["--fail"]], ids=str)
def test_a_line_in_the_terminal(program, args):
    """The program's output scrolls above it; at the end, the terminal is whole and has all."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "hookline", "run", "--live", "--time", str(program), *args]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        screen = pyte.HistoryScreen(80, 24, history=500)
        stream = pyte.ByteStream(screen)
        bottoms, text = set(), b""
        while data := _read(ours):
            text += data
            stream.feed(data)
            bottoms.add(screen.display[-1].rstrip())
        os.close(ours)
    assert process.returncode == (1 if args else 0)
    assert any(re.match(r"hookline 0:0\d │ Linear: \d+ passes, ", line) for line in bottoms)
    # What draws the line may come between any two bytes of the program's.
    text = re.sub(rb"\x1b7.*?\x1b8|\x1bD\x1b\[A", b"", text, flags=re.DOTALL)
    output = re.findall(r"output (\d+)\r\n", text.decode())
    assert output == [str(number) for number in range(40)]
    assert b"True TextIOWrapper\r\n" in text
    assert (b"ValueError: bad" in text) == bool(args)
    assert screen.margins in (None, pyte.screens.Margins(0, 23))
    assert not any("│" in line for line in screen.display)
    assert any("time by module: Linear" in line for line in screen.display)


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # all who had it open are gone
        return b""


def test_without_a_terminal_it_says_so_once(program):
    result = subprocess.run(
        [sys.executable, "-m", "hookline", "run", "--live", "--time", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert result.stderr.count("--live needs a terminal, and stderr is none") == 1
    assert "\x1b" not in result.stderr
    assert "time by module: Linear" in result.stderr
