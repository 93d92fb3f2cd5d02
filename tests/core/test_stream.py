"""Where text is printed to."""

import io
import sys
from types import SimpleNamespace

from hookline.core.stream import Writable, print_to


def test_standard_output_is_looked_up_when_something_is_printed(monkeypatch):
    """A program may put something else in its place meanwhile."""
    taken = io.StringIO()
    monkeypatch.setattr(sys, "stdout", taken)
    print_to(None, "a line\n")
    assert taken.getvalue() == "a line\n"


def test_what_is_printed_is_flushed(tmp_path):
    """Another process that reads the file sees it at once."""
    with (tmp_path / "out.txt").open("w") as file:
        print_to(file, "a line\n")
        assert (tmp_path / "out.txt").read_text() == "a line\n"


def test_something_with_write_alone_will_do():
    """Loggers and notebooks give such things."""
    lines = []
    stream = SimpleNamespace(write=lines.append)
    print_to(stream, "a line\n")
    assert lines == ["a line\n"]
    assert isinstance(stream, Writable)
