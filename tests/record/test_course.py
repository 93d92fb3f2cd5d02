"""Events and series: which calls are kept in full, and that those of a thread nest."""

import contextlib
import itertools
from collections import defaultdict
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline.hooks.meter import Timed
from hookline.hooks.subject import Subject
from hookline.record import course
from hookline.record.course import PASSES, Course
from hookline.record.rows import EventRow


def timed(number, path="a", root="Net", begin=0, duration=1_000_000_000):
    what = Subject(root, path, "Linear", "module", "train", "forward")
    return Timed(what, 0, number, 0, 0, begin, duration)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_events_are_those_of_the_first_and_last_passes(gaps):
    """Checked against a list of all of them; a pass may also have no calls at all."""
    kept, numbers = Course(0), list(itertools.accumulate(gaps, initial=4))
    for number in numbers:
        kept.timed(timed(number))
    first = [n for n in numbers if n < numbers[0] + PASSES]
    last = [n for n in numbers if n >= numbers[0] + PASSES and n > numbers[-1] - PASSES]
    assert [event.pass_number for event in kept.events()] == first + last


def test_events_are_kept_for_each_root():
    kept = Course(0)
    for number in range(9):
        kept.timed(timed(number, root="A"))
        kept.timed(timed(3 * number, root="B"))
    numbers = defaultdict(list)
    for event in kept.events():
        numbers[event.root].append(event.pass_number)
    assert numbers == {"A": [0, 1, 7, 8], "B": [0, 24]}


def test_no_more_events_are_kept_than_the_limit():
    """The first of the first passes, and the last of the last."""
    with patch.object(course, "EVENTS", 10):
        kept = Course(0)
        kept._last = type(kept._last)(maxlen=10)
        for number in range(6):
            for place in range(7):
                kept.timed(timed(number, path=str(place)))
    found = [(event.pass_number, event.path) for event in kept.events()]
    every = [(number, str(place)) for number in range(6) for place in range(7)]
    assert found == every[:10] + every[-10:]


def test_events_count_from_the_start_in_seconds():
    kept = Course(5_000_000_000)
    kept.timed(timed(0, begin=7_000_000_000, duration=500_000_000))
    [event] = kept.events()
    assert (event.begin, event.duration) == (2.0, 0.5)


class Tree(nn.Module):
    """A random tree: children run in order, some under a checkpoint, some raise."""

    def __init__(self, shape):
        super().__init__()
        self.kind, children = shape
        self.inner = nn.ModuleList(map(Tree, children))
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = x * self.weight
        for child in self.inner:
            if child.kind == "checkpoint":
                x = checkpoint(child, x, use_reentrant=False)
            elif child.kind == "caught":
                with contextlib.suppress(ValueError):
                    child(x)
            else:
                x = child(x)
        if self.kind in ("raises", "caught"):
            raise ValueError
        return x.sin()


kinds = st.sampled_from(["plain", "plain", "plain", "checkpoint", "caught", "raises"])
shapes = st.recursive(
    st.tuples(kinds, st.just(())), lambda inner: st.tuples(kinds, st.lists(inner, max_size=3))
)


@pytest.mark.parametrize("level", ["module", "both"])
@settings(max_examples=30, deadline=None)
@given(shape=shapes, passes=st.integers(1, 3))
def test_events_of_a_thread_nest(level, shape, passes):
    """Whatever the tree, with recomputation and errors; each pair is apart or one in the other."""
    model = Tree(shape)
    with hookline.record(None, model, level=level) as run:
        for _ in range(passes):
            with contextlib.suppress(ValueError):
                model(torch.ones(2)).sum().backward()
    threads = defaultdict(list)
    for row in run.rows(EventRow):
        begin = round(row.begin * 1e9)
        threads[row.thread].append((begin, -(begin + round(row.duration * 1e9))))
    assert threads
    for spans in threads.values():
        spans.sort()
        around = []
        for begin, end in spans:
            while around and around[-1] <= begin:
                around.pop()
            assert not around or -end <= around[-1]
            around.append(-end)
