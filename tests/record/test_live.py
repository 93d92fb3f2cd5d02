"""The live line: what it tells, and that a terminal shows it beside all that a program prints."""

import errno
import os
import pty
import struct
import termios
import time
from fcntl import ioctl

import pyte
import pytest
import torch
from torch import nn

from hookline.core.records import TimeRow
from hookline.record.bottom import BottomLine
from hookline.record.live import Glance, Live, rendered, text_of
from hookline.record.measures import Measures
from hookline.record.run import Recorder

LINES, COLUMNS = 10, 60


class Terminal:
    """A pseudo-terminal, and what it shows."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.screen)
        self.resize(LINES, COLUMNS)

    def resize(self, lines, columns):
        ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def fileno(self):
        return self.theirs

    def write(self, text):
        """As the program does."""
        os.write(self.theirs, text.encode())
        self.read()

    def read(self):
        os.set_blocking(self.ours, False)
        try:
            while data := os.read(self.ours, 65536):
                self._stream.feed(data)
        except BlockingIOError:
            pass

    @property
    def lines(self):
        self.read()
        return [line.rstrip() for line in self.screen.display]

    def close(self):
        for each in (self.ours, self.theirs):
            with pytest.MonkeyPatch.context():
                os.close(each)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def line(terminal):
    return BottomLine(terminal.theirs)


def test_what_is_printed_scrolls_above_the_line(terminal, line):
    for number in range(30):
        line.show(f"status {number}")
        terminal.write(f"output {number}\r\n")
    assert terminal.lines == [*(f"output {n}" for n in range(22, 30)), "", "status 29"]


def test_a_program_that_prints_nothing_has_its_cursor_where_it_was(terminal, line):
    terminal.write("a\r\nprompt> ")
    for text in ("one", "two"):
        line.show(text)
    terminal.read()
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (1, len("prompt> "))
    assert terminal.lines[:2] == ["a", "prompt>"]
    assert terminal.lines[-1] == "two"


def test_a_full_terminal_makes_room(terminal, line):
    """Half a line that stands at the bottom moves up, and goes on there."""
    terminal.write("".join(f"{number}\r\n" for number in range(LINES + 5)) + "half")
    line.show("status")
    terminal.write(" whole")
    assert terminal.lines == [*map(str, range(LINES - 3, LINES + 5)), "half whole", "status"]


def test_progress_bars_are_left_alone(terminal, line):
    for step in range(1, 30):
        terminal.write(f"\r{'#' * step}")
        line.show(f"status {step}")
    assert terminal.lines[0] == "#" * 29
    assert terminal.lines[-1] == "status 29"


def test_colors_of_the_program_stay_its_own(terminal, line):
    terminal.write("\x1b[31mred")
    line.show(rendered(text_of(Glance({}, None, 3), 0.0, 0.0), COLUMNS - 1))
    terminal.write(" still")
    assert {terminal.screen.buffer[0][column].fg for column in range(3)} == {"red"}
    assert {terminal.screen.buffer[0][column].fg for column in range(4, 9)} == {"red"}


def test_at_the_end_the_terminal_is_whole_again(terminal, line):
    terminal.write("output\r\n")
    line.show("status")
    line.close()
    assert terminal.lines == ["output", *[""] * (LINES - 1)]
    terminal.write("".join(f"\r\n{number}" for number in range(LINES * 2)))
    assert terminal.lines == [str(number) for number in range(LINES, LINES * 2)]


def test_a_program_that_resets_the_terminal_does_not_lose_the_line(terminal, line):
    line.show("one")
    terminal.write("\x1bc")
    line.show("two")
    terminal.write("".join(f"{number}\r\n" for number in range(30)))
    assert terminal.lines[-1] == "two"


@pytest.mark.parametrize(("lines", "columns"), [(6, 40), (16, 80)])
def test_a_terminal_may_be_resized(terminal, line, lines, columns):
    line.show("one")
    terminal.write("output\r\n")
    terminal.resize(lines, columns)
    line.show("two")
    terminal.write("".join(f"{number}\r\n" for number in range(30)))
    shown = [*map(str, range(30 - (lines - 2), 30)), "", "two"]
    assert terminal.lines == shown
    assert line.columns == columns


def test_a_tiny_terminal_shows_nothing(terminal, line):
    terminal.resize(3, COLUMNS)
    line.show("status")
    terminal.write("output")
    assert terminal.lines == ["output", "", ""]


def test_what_the_line_tells():
    full = text_of(Glance({"Net": 1234, "Loss": 34}, ("Net head", 0.256), 0), 12.34, 75.0)
    assert full.plain == (
        "hookline 1:15 │ Net: 1,234, Loss: 34 passes, 12.3/s │ slowest: Net head 26% │ "
        "no NaN or Inf"
    )
    assert text_of(Glance({}, None, None), 0.0, 0.0).plain == "hookline 0:00 │ no pass yet"
    assert text_of(Glance({}, None, 7), 0.0, 0.0).plain.endswith("│ NaN or Inf 7 times")
    many = text_of(Glance({f"r{n}": n for n in range(1, 9)}, None, None), 0.0, 0.0)
    assert "r8: 8, r7: 7, r6: 6 passes" in many.plain


@pytest.mark.parametrize("columns", [10, 40, 200])
def test_the_line_fits(columns):
    text = rendered(text_of(Glance({"Ñandú" * 9: 5}, ("模" * 30, 0.5), 3), 1.0, 1.0), columns)
    screen = pyte.Screen(columns, 2)
    pyte.Stream(screen).feed(text)
    assert screen.display[1].strip() == ""


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_live_shows_what_it_sees_until_it_is_stopped(terminal):
    seen = []

    def look():
        seen.append(len(seen) * 10)
        return Glance({"Net": seen[-1]}, None, 0)

    live = Live(look, terminal.fileno(), interval=0.01)
    live.start()
    wait_for(lambda: len(seen) > 3)
    assert terminal.lines[-1].startswith("hookline 0:0")
    assert "Net:" in terminal.lines[-1]
    assert live.stop() is None
    count = len(seen)
    assert terminal.lines == [""] * LINES
    time.sleep(0.05)
    assert len(seen) == count


def test_a_fault_of_ours_ends_it_and_is_told(terminal):
    error = ValueError("ours")

    def look():
        raise error

    live = Live(look, terminal.fileno(), interval=0.01)
    live.start()
    assert live.stop() is error
    assert terminal.lines == [""] * LINES


def test_a_terminal_that_goes_away_ends_it_quietly(terminal, monkeypatch):
    def gone(self, text):
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(BottomLine, "show", gone)
    live = Live(lambda: Glance({}, None, None), terminal.fileno(), interval=0.01)
    live.start()
    assert live.stop() is None


@pytest.mark.parametrize("level", ["module", "function", "both"])
def test_a_glance_at_a_recorder(level):
    """Passes since it began, the largest own time, and how often NaN came up."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    net(torch.zeros(1, 4))
    with Recorder(Measures(time=True, nonfinite=True, level=level)) as recorder:
        assert recorder.glance() == Glance({}, None, 0)
        for _ in range(3):
            net(torch.zeros(1, 4)).sum().backward()
        fine = recorder.glance()
        net(torch.full((1, 4), torch.nan))
        bad = recorder.glance()
        rows = [r for r in recorder.tables()[TimeRow] if r.level != "function" or level != "both"]

    (root,) = bad.passes
    assert fine.passes == {root: 3}
    assert bad.passes == {root: 4}
    assert fine.nonfinite == 0
    assert bad.nonfinite > 0
    own = {}
    for row in rows:
        place = f"{row.root} {row.path or ''}".strip()
        place = f"{place}:{row.name}" if row.name and place else place or row.name
        if row.path is None:
            place = f"{row.name} (outside modules)"
        own[place] = own.get(place, 0) + row.self_time
    name, share = bad.slowest
    assert name == max(own, key=own.get)
    assert share == pytest.approx(own[name] / sum(own.values()))
