"""Runs made up for tests: all kinds of rows, any number of modules, the same for the same seed."""

import random
from collections import Counter

from hookline.core.records import NonFiniteRow, ParameterRow, Silent, StatsRow, TimeRow
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow, RunRow, SeriesRow, pack

TRAIN, EVAL = "train", "eval"
SLOW = "blocks.1.mlp.fc"
"""The module that takes most time of its own."""


def paths(blocks):
    """The modules of a transformer of so many blocks: path and type."""
    yield "", "GPT"
    yield "embed", "Embedding"
    yield "blocks", "ModuleList"
    for block in range(blocks):
        yield f"blocks.{block}", "Block"
        for name, kind in [
            ("norm", "LayerNorm"),
            ("attn", "Attention"),
            ("attn.qkv", "Linear"),
            ("mlp", "MLP"),
            ("mlp.fc", "Linear"),
        ]:
            yield f"blocks.{block}.{name}", kind
    yield "head", "Linear"


def parents(path):
    """The paths of all that a module is in, but the root."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def sample(blocks=3, passes=60, seed=0, rank=0, ranks=1):
    """The rows of a run, by class, as a `Store` takes them."""
    made = Sample(random.Random(seed), passes)
    named = list(paths(blocks))
    tables = {
        RunRow: [
            RunRow(
                id="0f3a",
                program=("train.py", "--epochs", "3"),
                state="finished",
                started=1_700_000_000.0,
                updated=1_700_000_012.5,
                options=("--time", "--stats", "--nonfinite"),
                steps=passes,
                rank=rank,
                ranks=ranks,
                process=4242,
                host="host",
                hookline="0.1.0",
                torch="2.13.0",
                python="3.11.2",
                platform="Linux x86_64",
            )
        ],
        ModuleRow: [
            ModuleRow("GPT", path, kind, place, 64 if kind in ("Linear", "Embedding") else 0)
            for place, (path, kind) in enumerate(named)
        ],
        PassRow: [PassRow("GPT", TRAIN, passes, passes + 3), PassRow("GPT", EVAL, 4, passes + 2)],
        FaultRow: [FaultRow("--where 'encodr' matched nothing; near names: embed")],
        Silent: [
            Silent("blocks", "ModuleList", "no forward", "watch the modules in it", ("T",), "GPT")
        ],
    }
    called = [(path, kind) for path, kind in named if kind != "ModuleList"]
    for mode in (TRAIN, EVAL):
        for path, kind in called:
            made.add_module(path, kind, mode)
    made.add_functions()
    made.add_events(called)
    return tables | made.tables


class Sample:
    def __init__(self, chance, passes):
        self.chance, self.passes = chance, passes
        kinds = (TimeRow, StatsRow, ParameterRow, NonFiniteRow, SeriesRow, EventRow)
        self.tables = {kind: [] for kind in kinds}

    def add(self, row):
        self.tables[type(row)].append(row)

    def add_module(self, path, kind, mode):
        calls = self.passes if mode == TRAIN else 4
        for direction in ("forward", "backward") if mode == TRAIN else ("forward",):
            own = self.chance.uniform(1e-5, 1e-3) * (20 if path == SLOW else 1)
            total = own if "Linear" in kind else own * 4
            times = (own * calls, total * calls, total * 0.5, total, total * 3)
            self.add(TimeRow("GPT", path, kind, "module", mode, direction, calls, *times))
            self.add_series(path, mode, direction, "", "time", total)
            leaf = "output" if direction == "forward" else "grad_output"
            norm = self.chance.uniform(0.1, 10)
            numbers = (0.1, 1.0, -3.0, 4.0, 4.0, norm, 0.25, 0, 0, (1, 2, 3))
            self.add(StatsRow("GPT", path, kind, "module", mode, direction, leaf, 2, 512, *numbers))
            for metric in ("norm", "abs_max", "zero_share"):
                self.add_series(path, mode, direction, leaf, metric, norm)
        if mode == TRAIN and kind in ("Linear", "Embedding"):
            numbers = (3.0, 0.1, 0.3, 0.1, 1e-3, 5e-3, 1e-3)
            self.add(
                ParameterRow("GPT", f"{path}.weight", (), (8, 8), "SGD", self.passes, *numbers)
            )
        if mode == TRAIN and path == "head":
            where = ("GPT", path, kind, "module", mode, "forward")
            shape = ((4, 8), "float32", (1, 3))
            self.add(
                NonFiniteRow(*where, "producer", "", "output", 0, 41, 41, 3, 1, *shape, times=2)
            )

    def add_series(self, path, mode, direction, leaf, metric, scale):
        width = -(-self.passes // 256)
        bins = -(-self.passes // width) if mode == TRAIN else 4
        values = [scale * self.chance.uniform(0.5, 2) for _ in range(bins)]
        where = ("GPT", path, "", "module", mode, direction, leaf, metric, 0, width)
        self.add(SeriesRow(*where, pack(values)))

    def add_functions(self):
        for path, name in (("head", "linear"), ("blocks.0.attn", "softmax"), (None, "add_")):
            times = (0.01, 0.01, 1e-5, 1e-4, 1e-3)
            root = "GPT" if path else ""
            self.add(TimeRow(root, path, "", "function", TRAIN, "forward", 60, *times, name))

    def add_events(self, called):
        """The first and the last pass: each module a part of that of its parent, twice over."""
        for number in (0, self.passes - 1):
            begin = number * 0.01
            inside = [each for each in called if each[0]]
            within = Counter(above for path, _ in inside for above in parents(path))
            there = {path for path, _ in inside}
            for direction in ("forward", "backward"):
                self.event("", "GPT", direction, number, begin, 0.004)
                step = 0.004 / (len(inside) + 1)
                for place, (path, kind) in enumerate(inside):
                    if there.isdisjoint(parents(path)):
                        length = step * (within[path] + 0.9)
                    else:
                        length = step * 0.8 if kind not in {"MLP", "Attention"} else step * 1.9
                    self.event(path, kind, direction, number, begin + step * (place + 0.05), length)
                begin += 0.005

    def event(self, path, kind, direction, number, begin, duration):
        where = ("GPT", path, kind, "module", TRAIN, direction, "", 0, number, number, 0)
        self.add(EventRow(*where, begin, duration))
