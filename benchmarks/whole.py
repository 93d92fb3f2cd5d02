"""Whole processes: programs under `hookline run` against plain ones, imports, `hookline show`.

CPU time is that of the process and its children, as the system tells it when the process has ended:
what else runs on the machine counts in the wall time alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

ROOT = Path(__file__).parents[1]

WAYS = {
    "python": (),
    "hookline run --time": ("-m", "hookline", "run", "--time"),
    "hookline run": ("-m", "hookline", "run"),
}
_START_ROUNDS = 3  # starts vary little


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is run whole.

    Attributes:
        name: what it is.
        command: what `python` is given.
        amount: the option that says how much it does.
        much: how much that is where it is measured; with nothing to do, its start is measured.
    """

    name: str
    command: tuple[str, ...]
    amount: str
    much: int


PROGRAMS = (
    Program("digits CNN", ("examples/digits_cnn.py",), "--epochs", 10),
    Program("GPT", ("-m", "benchmarks.train_gpt"), "--steps", 250),
    Program(
        "wider GPT",
        ("-m", "benchmarks.train_gpt", "--width", "256", "--depth", "6", "--context", "128"),
        "--steps",
        20,
    ),
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of a process."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Whole:
    """A program in one way, in seconds and as ratios to plain Python in the same round.

    Attributes:
        program: its name.
        way: how it was run.
        clock: `cpu` or `wall`.
        seconds: the median of the whole process.
        ratio: the median of the ratios, whole process to whole process.
        low: their lower quartile.
        high: their upper quartile.
        beyond_start: the ratio of what comes on top of a process that has nothing to do.
    """

    program: str
    way: str
    clock: str
    seconds: float
    ratio: float
    low: float
    high: float
    beyond_start: float


@dataclass(frozen=True, slots=True)
class Start:
    """Something that is over soon, in seconds: median and quartiles."""

    what: str
    clock: str
    seconds: float
    low: float
    high: float


def taken(arguments: Iterable[str]) -> Taken:
    """What a process of Python takes; it must succeed."""
    with tempfile.TemporaryFile() as said:
        begin = perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            msg = f"{arguments} ended with {process.returncode}: {said.read().decode()}"
            raise RuntimeError(msg)
    return Taken(wall, usage.ru_utime + usage.ru_stime)


def whole_programs(rounds: int, programs: Iterable[Program] = PROGRAMS) -> list[Whole]:
    """Every program in every way, all of them once a round, in random order."""
    jobs = [(p, way, much) for p in programs for way in WAYS for much in (0, p.much)]
    samples: dict[tuple[Program, str, int], list[Taken]] = {job: [] for job in jobs}
    for number in range(rounds):
        random.shuffle(jobs)
        for job in jobs:
            program, way, much = job
            if not much and number >= _START_ROUNDS:
                continue
            arguments = (*WAYS[way], *program.command, program.amount, str(much))
            samples[job].append(taken(arguments))
    return [
        _whole(program, way, clock, samples)
        for program in programs
        for clock in ("cpu", "wall")
        for way in WAYS
    ]


def _whole(
    program: Program,
    way: str,
    clock: str,
    samples: dict[tuple[Program, str, int], list[Taken]],
) -> Whole:
    def seconds(way: str, much: int) -> list[float]:
        return [getattr(each, clock) for each in samples[program, way, much]]

    here, plain = seconds(way, program.much), seconds("python", program.much)
    ratios = [ours / theirs for ours, theirs in zip(here, plain, strict=True)]
    start, plain_start = median(seconds(way, 0)), median(seconds("python", 0))
    beyond = [(o - start) / (p - plain_start) for o, p in zip(here, plain, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Whole(program.name, way, clock, median(here), median(ratios), low, high, median(beyond))


_IMPORT = """
import json, time
import torch
wall, cpu = time.perf_counter(), time.process_time()
import {what}
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""


def _imported(what: str) -> Taken:
    """What importing takes once torch is there, in a new process."""
    command = [sys.executable, "-c", _IMPORT.format(what=what)]
    said = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE)
    return Taken(*json.loads(said.stdout))


def starts(rounds: int) -> list[Start]:
    """Imports, and `hookline show`; what only warms the disk is left out."""
    with tempfile.TemporaryDirectory() as folder:
        kept = str(Path(folder) / "run.hookline")
        taken(("-m", "hookline", "run", "-o", kept, "examples/digits_cnn.py", "--epochs", "1"))
        samples: dict[str, list[Taken]] = {}
        for _ in range(rounds + 1):
            for what in ("hookline", "hookline.hooks.timer"):
                samples.setdefault(f"import {what}, after torch", []).append(_imported(what))
            showing = taken(("-m", "hookline", "show", kept))
            samples.setdefault("hookline show, the whole process", []).append(showing)
    return [
        _start(what, clock, each)
        for what, (_, *each) in samples.items()
        for clock in ("cpu", "wall")
    ]


def _start(what: str, clock: str, samples: list[Taken]) -> Start:
    seconds = [getattr(each, clock) for each in samples]
    low, middle, high = quantiles(seconds, n=4)
    return Start(what, clock, middle, low, high)


def tables(programs: list[Whole], starting: list[Start]) -> str:
    """Both as tables in Markdown."""
    lines = [
        "| program | run by | clock | seconds | to plain | quartiles | beyond the start |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {each.program} | `{each.way}` | {each.clock} | {each.seconds:.2f} "
        f"| ×{each.ratio:.3f} | {each.low:.3f} to {each.high:.3f} | ×{each.beyond_start:.3f} |"
        for each in programs
    ]
    lines += ["", "| start | clock | ms | quartiles |", "|---|---|--:|--:|"]
    lines += [
        f"| {each.what} | {each.clock} | {each.seconds * 1e3:.0f} "
        f"| {each.low * 1e3:.0f} to {each.high * 1e3:.0f} |"
        for each in starting
    ]
    return "\n".join(lines)
