"""What stands in each kind of table but those of times."""

from dataclasses import replace
from pathlib import Path

from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    ParameterRow,
    Silent,
    StatsRow,
    TimeRow,
    UncountedRow,
)
from hookline.record.rows import RunRow
from hookline.record.runs import Rank, RunData
from hookline.report.tables import (
    flops,
    memory,
    nonfinite,
    parameters,
    ranks,
    silent,
    stats,
)

AT = ("Net", "body.head", "Linear", "module", "train")


def of(*rows):
    """A run of one process with rows of one class."""
    tables = {RunRow: [RunRow("a", ("t.py",), "finished", 0.0, 10.0)]}
    for row in rows:
        tables.setdefault(type(row), []).append(row)
    return RunData([Rank(Path(), tables)])


def cells(table):
    """Each line by its label: what is written in its columns, by their names."""
    names = [column.name for column in table.columns]
    shown = {}
    for line in table.lines:
        pairs = zip(names, line.values, table.columns, strict=False)
        texts = {name: column.show(value) for name, value, column in pairs if value is not None}
        shown["  " * line.depth + line.label] = texts
    return shown


def test_nothing_measured_no_tables():
    for kind in (flops, memory, nonfinite, parameters, ranks, silent, stats):
        assert list(kind.sheets(of())) == []


def test_flops_stand_in_a_tree_with_shares():
    root = FlopRow("Net", "", "Net", "module", "train", "forward", 2, 0, 4000, ())
    head = FlopRow(*AT, "forward", 2, 1000, 1000, ())
    back = FlopRow(*AT, "backward", 2, 2_000_000, 2_000_000, ())
    table, unknown = flops.sheets(
        of(root, head, back, UncountedRow(*AT, "forward", "aten._trilinear", 3, "no formula"))
    )
    assert table.title == "FLOPs by module: Net (train)"
    line = cells(table)["    head"]
    assert line == {
        "type": "Linear",
        "calls": "2",
        "forward": "1.00 k",
        "forward self": "1.00 k",
        "backward": "2.00 M",
        "backward self": "2.00 M",
        "share": f"{2_001_000 / 4000:.1%}",
    }
    assert cells(unknown)["Net body.head"]["operator"] == "aten._trilinear"
    assert cells(unknown)["Net body.head"]["reason"] == "no formula"


def test_memory_leaves_out_what_no_device_tells():
    row = MemoryRow(*AT, 6, 3, 2048, 4096, 1024, 40, 200, 80, 400, parameter_bytes=512)
    (table,) = memory.sheets(of(row))
    assert cells(table)["    head"] == {
        "type": "Linear",
        "calls": "6",
        "outputs": "2.00 KiB",
        "saved": "4.00 KiB",
        "saved self": "1.00 KiB",
        "parameters": "512   B",
    }


def test_memory_of_functions_stands_by_caller():
    row = MemoryRow("Net", "body", "", "function", "train", 6, 3, 1, 1, 1, 0, 0, 0, 0, name="relu")
    (table,) = memory.sheets(of(row))
    assert [line.label for line in table.lines] == ["Net body", "relu"]
    assert table.sorted_by("outputs").lines[0].label == "body:relu"


def stats_row(leaf="output", direction="forward", zero_share=0.25, nan=0, path="body.head"):
    where = ("Net", path, "Linear", "module", "train", direction, leaf)
    return StatsRow(*where, 2, 80, 0.5, 1.0, -1.0, 2.0, 2.0, 10.0, zero_share, nan, 0)


def test_statistics_of_activations_and_gradients_are_apart():
    activations, gradients = stats.sheets(of(stats_row(), stats_row("grad_output", "backward")))
    assert activations.title == "activations by module: Net (train)"
    assert gradients.title == "gradients by module: Net (train)"
    assert cells(activations)["body.head"] == {
        "leaf": "output",
        "calls": "2",
        "mean": "0.5",
        "std": "1",
        "abs max": "2",
        "norm": "10",
        "zeros": "25.0%",
    }


def test_what_is_dead_or_not_finite_stays_in_a_cut_table():
    rows = [stats_row(path=str(i)) for i in range(9)]
    rows += [stats_row(zero_share=1.0, path="dead"), stats_row(nan=3, path="bad")]
    (table,) = stats.sheets(of(*rows))
    assert [line.label for line in table.cut(2).lines] == ["dead", "bad"]
    assert cells(table)["bad"]["NaN"] == "3"


def test_parameters_tell_ties_and_gradients_that_are_not_finite():
    plain = ParameterRow("Net", "a.weight", (), (10, 4), "SGD", 3, *[0.5] * 7)
    tied = replace(plain, name="b.weight", ties=("c.weight",), nonfinite=2, note="sharded")
    (table,) = parameters.sheets(of(plain, tied))
    assert table.title == "parameters: Net (SGD)"
    assert cells(table)["a.weight"]["shape"] == "10×4"
    assert cells(table)["b.weight"]["note"] == "sharded; tied to c.weight"
    assert cells(table)["b.weight"]["not finite"] == "2"
    assert [line.label for line in table.cut(1).lines] == ["b.weight"]


def nonfinite_row(verdict, number=0, **changes):
    shape = (3, 0, (4, 10), "float32")
    row = NonFiniteRow(*AT, "forward", verdict, "", "output", 0, number, number, *shape)
    return replace(row, **changes)


def test_producers_come_first():
    rows = [
        nonfinite_row("propagator", cause="args[0]"),
        nonfinite_row("bad parameter", 2, cause="weight"),
        nonfinite_row("producer", 5, direction="backward", inf=2, skipped=True),
        nonfinite_row("producer", 4, nan=None, inf=None),
    ]
    (table,) = nonfinite.sheets(of(*rows))
    names = [column.name for column in table.columns]
    found = [dict(zip(names, line.values, strict=True)) for line in table.lines]
    assert [(each["verdict"], each["pass"]) for each in found] == [
        ("producer", 4),
        ("producer", 5),
        ("bad parameter", 2),
        ("propagator", 0),
    ]
    assert [each["values"] for each in found[:2]] == [
        "some of 40 float32",
        "3 NaN, 2 Inf of 40 float32; step skipped by the scaler",
    ]
    assert found[2]["cause"] == "weight"
    assert "rank" not in names


def silent_row(path, cause="bypassed", kind="Dropout"):
    return Silent(path, kind, cause, "call it", ("T",), "Net")


def test_r9_what_never_ran_is_folded():
    rows = [
        silent_row("layers", "no forward", "ModuleList"),
        *(silent_row(f"layers.{i}.drop") for i in range(12)),
        silent_row("aux", "not called", "Aux"),
        silent_row("aux.fc", "not called", "Linear"),
        silent_row("aux.fc2", "not called", "Linear"),
        silent_row("extra2"),
    ]
    (table,) = silent.sheets(of(*rows))
    assert table.title == "never called: 17 modules"
    found = {line.label: list(line.values) for line in table.lines}
    assert found == {
        "Net layers.*.drop": ["Dropout", 12, "bypassed", "call it"],
        "Net aux": ["Aux", 3, "not called", "call it"],
        "Net extra2": ["Dropout", None, "bypassed", "call it"],
        "Net layers": ["ModuleList", None, "no forward", "call it"],
    }
    assert list(found)[-1] == "Net layers"


def test_ranks_are_compared_call_by_call():
    def rank(number, total):
        info = RunRow("a", ("t.py",), "finished", 0.0, 10.0, rank=number, ranks=3)
        row = TimeRow(*AT, "forward", 4, total, total, total, total, total)
        return Rank(Path("run"), {RunRow: [info], TimeRow: [row]})

    (table,) = ranks.sheets(RunData([rank(0, 4.0), rank(1, 2.0), rank(2, 8.0)]))
    assert cells(table)["body.head"] == {
        "direction": "forward",
        "minimum": "500.00 ms",
        "median": "1.00  s",
        "maximum": "2.00  s",
        "ratio": "×4.00",
        "slowest rank": "2",
        "ranks": "3",
    }
