"""The HTML report in a browser, as people use it: what it shows is what the run's file holds."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    Silent,
    StatsRow,
    TimeRow,
    UncountedRow,
)
from hookline.record.merge import over_ranks, remarks
from hookline.record.rows import EventRow, ModuleRow, PassRow, RunRow, SeriesRow, pack
from hookline.record.runs import Rank, RunData
from hookline.report.html import write_html
from hookline.runs import Run
from tests.conftest import BROWSER
from tests.record.sample import SLOW, sample
from tests.report.report_page import stored
from tests.report.test_html import HOSTILE, hostile

PANELS = [
    "summary",
    "modules",
    "functions",
    "heatmap",
    "timeline",
    "nonfinite",
    "parameters",
    "statistics",
    "silent",
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the report of a run; afterwards nothing may have been asked for or complained about."""
    bad, contexts = [], []

    def show(*ranks, panel="summary", **options):
        path = tmp_path / "report.html"
        write_html(stored(tmp_path, *ranks), path)
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: bad.append(message.text))
        page.on("pageerror", lambda error: bad.append(str(error)))
        page.on("dialog", lambda dialog: bad.append(dialog.message))
        page.on(
            "request", lambda asked: asked.url.startswith(path.as_uri()) or bad.append(asked.url)
        )
        page.goto(f"{path.as_uri()}#{panel}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert not bad


def table(page):
    """The rows of the grid in a page or a part of it: each cell's exact value by its column."""
    part = page.locator("body") if hasattr(page, "goto") else page
    return part.evaluate(
        """(part) => {
          const heads = [...part.querySelectorAll('.head button')].map(e => e.dataset.label);
          return [...part.querySelectorAll('.body .row')].map(row =>
            Object.fromEntries([...row.children].map((cell, i) => [heads[i], cell.title])));
        }"""
    )


def column(page, label):
    return [row[label] for row in table(page)]


def numbers(texts):
    """The numbers that cells begin with."""
    return [float(text.split()[0].replace(",", "")) for text in texts]


def head(page, label):
    return page.locator(f".head [data-label='{label}']")


def choose(page, name, value):
    page.locator(f"select[name='{name}']").select_option(value)
    page.wait_for_selector("html[data-ready]")


def go(page, panel):
    page.locator(f"#tab-{panel}").click()
    page.wait_for_selector(f"html[data-ready='{panel}']")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def found(page):
    return page.locator("#found").inner_text()


@dataclass
class Times:
    """What the rows of one module add up to."""

    calls: int = 0
    own: float = 0.0
    total: float = 0.0


def times(tables, mode="train"):
    """The times of each module, added up by path and direction."""
    added = defaultdict(lambda: defaultdict(Times))
    for row in tables[TimeRow]:
        if row.level == "module" and row.mode == mode:
            entry = added[row.path][row.direction]
            entry.calls += row.calls
            entry.own += row.self_time
            entry.total += row.total_time
    return added


# ------------------------------------------------------------------------------------------ summary


def test_the_summary_says_what_the_run_was(show):
    page = show(sample())
    text = page.inner_text("main")
    told = ["train.py --epochs 3", "finished", "12.5 s", "2.13.0", "Linux x86_64", "encodr"]
    assert [each for each in told if each not in text] == []
    cells = page.locator(".card:has(h2:text-is('Passes')) td").all_inner_texts()
    assert cells == ["GPT", "train", "60", "GPT", "eval", "4"]
    slowest = page.locator(".card:has(h2:text-is('Where the time went')) td").first
    assert slowest.inner_text() == SLOW
    page.click("text=first made by head (pass 41)")
    page.wait_for_selector("html[data-ready='nonfinite']")
    assert column(page, "verdict") == ["producer"]


@pytest.mark.parametrize("panel", ["summary", "nonfinite"])
def test_r9_a_run_in_which_nobody_looked_for_nan_does_not_say_that_there_is_none(show, panel):
    """What statistics saw of it is told."""
    tables = sample() | {NonFiniteRow: []}
    assert "No NaN or Inf was found." in show(tables, panel=panel).inner_text("main")
    tables[RunRow] = [replace(tables[RunRow][0], options=("--time", "--stats"))]
    rows = [replace(row, nan=0, inf=0) for row in tables[StatsRow]]
    text = show(tables | {StatsRow: rows}, panel=panel).inner_text("main")
    assert "NaN and Inf were not looked for (--nonfinite)." in text
    assert "Statistics saw" not in text
    assert "No NaN" not in text
    rows[:2] = [replace(rows[0], nan=3), replace(rows[1], inf=1)]
    text = show(tables | {StatsRow: rows}, panel=panel).inner_text("main")
    assert "not looked for (--nonfinite). Statistics saw them in 2 places." in text


def test_a_run_that_was_killed_says_so(show):
    tables = sample()
    running = replace(tables[RunRow][0], state="running")
    page = show(tables | {RunRow: [running], Silent: []})
    assert "still running when this was written, or it was killed" in page.inner_text("main")
    go(page, "silent")
    assert "found out at the end" in page.inner_text("main")


def test_an_error_that_ended_the_run_is_shown(show):
    tables = sample()
    failed = replace(tables[RunRow][0], state="failed", error="ValueError: no more data")
    page = show(tables | {RunRow: [failed]})
    assert "ValueError: no more data" in page.inner_text("main")


@pytest.mark.parametrize("panel", PANELS)
def test_without_rows_each_panel_says_why(show, panel):
    page = show({RunRow: sample()[RunRow]}, panel=panel)
    text = page.inner_text("main")
    assert re.search(r"[Nn]o |Nothing|All that was", text), text
    assert not re.search(r"undefined|NaN(?! and| or)|null|Infinity", text)


def test_a_process_that_wrote_nothing_says_so(show):
    page = show({})
    assert "killed before it wrote anything" in page.inner_text("main")


# ------------------------------------------------------------------------------------------ modules


def test_the_tree_has_each_module_with_its_times(show):
    tables = sample()
    page = show(tables, panel="modules")
    shown, expected = table(page), times(tables)
    names = [row["module"] for row in shown]
    assert names == ["GPT", *[row.path for row in tables[ModuleRow]][1:]]
    types = {row.path: row.type for row in tables[ModuleRow]}
    for row in shown:
        path = "" if row["module"] == "GPT" else row["module"]
        assert row["type"] == types[path]
        own = sum(each.own for each in expected[path].values())
        for direction, each in expected[path].items():
            cells = [row["calls"], row[direction], row[f"{direction} self"], row["self"]]
            assert numbers(cells) == pytest.approx([each.calls, each.total, each.own, own])
    whole = sum(each.total for each in expected[""].values())
    head_time = sum(each.total for each in expected["head"].values())
    assert numbers([shown[-1]["share"]]) == pytest.approx([head_time / whole * 100])


def test_parameters_of_a_module_include_those_in_it(show):
    tables = sample()
    page = show(tables, panel="modules")
    for row in table(page):
        path = row["module"].replace("GPT", "")
        inside = [
            each.parameters
            for each in tables[ModuleRow]
            if not path or each.path == path or each.path.startswith(f"{path}.")
        ]
        assert numbers([row["parameters"]]) == [sum(inside)]


def test_bars_are_as_long_as_the_times(show):
    tables = sample()
    page = show(tables, panel="modules")
    widths = page.evaluate(
        "[...document.querySelectorAll('.body .row:last-child .bars i')].map(e => e.style.width)"
    )
    expected = times(tables)
    whole = sum(each.total for each in expected[""].values())
    parts = [expected["head"][way].total / whole * 100 for way in ("forward", "backward")]
    assert [float(width.rstrip("%")) for width in widths] == pytest.approx(parts, rel=1e-3)


def test_a_click_folds_and_unfolds(show):
    page = show(sample(), panel="modules")
    block = page.locator(".body .row", has_text=re.compile(r"^▾0"))
    before = column(page, "module")
    block.locator(".fold").click()
    after = column(page, "module")
    assert [path for path in before if not path.startswith("blocks.0.")] == after
    folded = page.locator(".body .row", has_text=re.compile(r"^▸0"))
    expect(folded).to_have_attribute("aria-expanded", "false")
    folded.locator(".fold").click()
    assert column(page, "module") == before


def test_all_can_be_folded_at_once(show):
    page = show(sample(), panel="modules")
    before = column(page, "module")
    page.click("text=Fold all")
    assert column(page, "module") == ["GPT", "embed", "blocks", "head"]
    page.click("text=Unfold all")
    assert column(page, "module") == before


def test_the_tree_is_used_by_keys(show):
    """As the ARIA practices for a treegrid say."""
    page = show(sample(), panel="modules")
    grid = page.get_by_role("treegrid")
    grid.focus()

    def active():
        row = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
        return row.locator(".name").get_attribute("title"), row.get_attribute("aria-expanded")

    press(page, "ArrowDown", "ArrowDown", "ArrowDown")
    assert active() == ("blocks", "true")
    press(page, "ArrowRight")
    assert active() == ("blocks.0", "true")
    press(page, "ArrowLeft")
    assert active() == ("blocks.0", "false")
    press(page, "ArrowLeft")
    assert active() == ("blocks", "true")
    press(page, "Enter")
    assert active() == ("blocks", "false")
    assert column(page, "module") == ["GPT", "embed", "blocks", "head"]
    press(page, "Space", "End")
    assert active() == ("head", None)
    press(page, "Home")
    assert active() == ("GPT", "true")
    chosen = page.locator(".body .row[aria-selected='true']")
    expect(chosen).to_have_attribute("aria-level", "1")
    assert "60" in page.inner_text(".details")


def test_siblings_are_sorted_within_the_tree(show):
    tables = sample()
    page = show(tables, panel="modules")
    head(page, "self").click()
    names = column(page, "module")
    own = {path: sum(each.own for each in ways.values()) for path, ways in times(tables).items()}
    blocks = sorted((f"blocks.{i}" for i in range(3)), key=own.get, reverse=True)
    assert [name for name in names if name in blocks] == blocks
    within = [name for name in names if name.startswith("blocks.1.") and name.count(".") == 2]
    assert within == sorted(within, key=own.get, reverse=True)
    assert names.index(f"{blocks[0]}.mlp.fc") < names.index(blocks[1])


def test_bars_are_sorted_by_what_they_show(show):
    tables = sample()
    page = show(tables, panel="modules")
    choose(page, "view", "flat")
    head(page, "time").click()
    own = numbers(column(page, "self"))
    assert own == sorted(own, reverse=True)
    choose(page, "view", "tree")
    head(page, "time").click()
    whole = {
        path: sum(ways[way].total for way in ("forward", "backward"))
        for path, ways in times(tables).items()
    }
    blocks = [path for path in column(page, "module") if re.fullmatch(r"blocks\.\d", path)]
    assert blocks == sorted(blocks, key=whole.get, reverse=True)


def test_a_column_is_sorted_by_click_and_by_key(show):
    tables = sample()
    page = show(tables, panel="modules")
    choose(page, "view", "flat")
    own = {path: sum(each.own for each in ways.values()) for path, ways in times(tables).items()}
    expected = sorted(own, key=own.get, reverse=True)
    heading = page.locator("[role=columnheader]:has([data-label='self'])")
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert [name.replace("GPT", "") for name in column(page, "module")] == expected
    assert numbers(column(page, "self")) == pytest.approx([own[path] for path in expected])
    head(page, "self").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert [name.replace("GPT", "") for name in column(page, "module")] == expected[::-1]
    head(page, "module").focus()
    press(page, "Enter")
    expect(heading).to_have_attribute("aria-sort", "none")
    assert column(page, "module")[:3] == ["blocks.0", "blocks.0.attn", "blocks.0.attn.qkv"]


def test_numbers_in_names_are_sorted_as_numbers(show):
    page = show(sample(blocks=12), panel="statistics")
    head(page, "module").click()
    blocks = [path for path in column(page, "module") if re.fullmatch(r"blocks\.\d+", path)]
    assert blocks[::2] == [f"blocks.{i}" for i in range(12)]


def test_a_search_leaves_what_matches_and_what_it_is_in(show):
    page = show(sample(), panel="modules")
    before = column(page, "module")
    press(page, "/")
    page.keyboard.type("qkv")
    assert found(page) == "3 found"
    kept = ["GPT", "blocks"]
    kept += [f"blocks.{i}{part}" for i in range(3) for part in ("", ".attn", ".attn.qkv")]
    assert column(page, "module") == kept
    assert page.locator("mark").all_inner_texts() == ["qkv"] * 3
    press(page, "Escape")
    assert column(page, "module") == before
    assert found(page) == ""


def test_a_search_finds_types_and_opens_what_is_folded(show):
    page = show(sample(), panel="modules")
    page.click("text=Fold all")
    page.fill("#search", "LayerNorm")
    assert found(page) == "3 found"
    assert "blocks.2.norm" in column(page, "module")


def test_a_search_goes_on_in_the_next_panel(show):
    page = show(sample(), panel="modules")
    page.fill("#search", "embed")
    go(page, "statistics")
    assert set(column(page, "module")) == {"embed"}
    assert found(page) == "2 found"


def test_modes_are_kept_apart(show):
    tables = sample()
    page = show(tables, panel="modules")
    choose(page, "mode", "eval")
    expected = times(tables, "eval")
    shown = {row["module"]: row for row in table(page)}
    assert "backward" not in shown["head"]
    assert numbers([shown["head"]["calls"], shown["head"]["forward"]]) == pytest.approx(
        [4, expected["head"]["forward"].total]
    )


def other_root(tables):
    """The same run with a second model in it."""
    added = [
        TimeRow("Critic", "", "Critic", "module", "train", "forward", 7, *[0.5] * 5),
        TimeRow("Critic", "out", "Linear", "module", "train", "forward", 7, *[0.25] * 5),
    ]
    modules = [ModuleRow("Critic", "", "Critic", 0, 0), ModuleRow("Critic", "out", "Linear", 1, 5)]
    return tables | {
        TimeRow: tables[TimeRow] + added,
        ModuleRow: tables[ModuleRow] + modules,
        PassRow: [*tables[PassRow], PassRow("Critic", "train", 7, 6)],
    }


def test_roots_are_kept_apart(show):
    page = show(other_root(sample()), panel="modules")
    assert column(page, "module")[0] == "GPT"
    choose(page, "root", "Critic")
    assert column(page, "module") == ["Critic", "out"]
    assert numbers(column(page, "calls")) == [7, 7]


def test_ranks_are_chosen_and_compared(show):
    ranks = [sample(rank=rank, ranks=2, seed=rank) for rank in range(2)]
    page = show(*ranks, panel="modules")
    for number, tables in enumerate(ranks):
        choose(page, "rank", str(number))
        (shown,) = [row for row in table(page) if row["module"] == "head"]
        assert numbers([shown["forward"]]) == pytest.approx(
            [times(tables)["head"]["forward"].total]
        )
    go(page, "ranks")
    processes, calls = page.locator("#panel section").all()
    assert column(processes, "rank") == ["0", "1"]
    kept = RunData([Rank(Path(), tables) for tables in ranks])
    rows = {(row.path, row.direction): row for row in over_ranks(kept) if row.mode == "train"}
    shown = {(row["module or function"], row["direction"]): row for row in table(calls)}
    row, found = rows["head", "backward"], shown["head", "backward"]
    assert numbers([found[each] for each in ("minimum", "median", "maximum")]) == pytest.approx(
        [row.minimum, row.median, row.maximum], rel=0.01
    )
    assert found["slowest rank"] == str(row.slowest)
    assert page.locator("#panel li").all_inner_texts() == remarks(kept)


def test_modules_that_ran_without_being_listed_are_in_the_tree(show):
    """A part that was watched alone, or added later."""
    row = TimeRow("Net", "a.b.c", "Linear", "module", "train", "forward", 2, *[0.5] * 5)
    page = show({RunRow: sample()[RunRow], TimeRow: [row]}, panel="modules")
    assert column(page, "module") == ["Net", "a", "a.b", "a.b.c"]
    assert column(page, "share")[-1] == "100 %"


def test_memory_and_flops_have_columns_where_they_were_measured(show):
    where = ("GPT", "head", "Linear", "module", "train")
    other = ("GPT", "embed", "Embedding", "module", "train")
    megabyte = 1024**2
    added = {
        MemoryRow: [
            MemoryRow(*where, 60, 60, 3 * megabyte, 512, 256, 1, 1, 1, 1),
            MemoryRow(*other, 60, 60, 6 * megabyte, 1024, 0, 1, 1, 1, 1),
        ],
        FlopRow: [
            FlopRow(*where, "forward", 60, 2_000_000, 2_000_000, (("aten.mm", 2_000_000),)),
            FlopRow(*where, "backward", 60, 4_000_000, 5_000_000, (("aten.mm", 4_000_000),)),
            FlopRow(*where, "recompute", 60, 1_000_000, 1_000_000, (("aten.mm", 1_000_000),)),
        ],
        UncountedRow: [UncountedRow(*where, way, "aten.sort", 3, "no formula") for way in "ab"],
    }
    page = show(sample() | added)
    card = page.locator(".card:has(h2:text-is('FLOPs that are not known')) td")
    assert card.all_inner_texts() == ["aten.sort", "no formula", "6"]
    page.set_viewport_size({"width": 2800, "height": 800})
    go(page, "modules")
    rows = {row["module"]: row for row in table(page)}
    assert rows["head"]["output"] == "3,145,728 bytes"
    assert rows["head"]["saved"] == "512 bytes"
    assert rows["head"]["self saved"] == "256 bytes"
    assert "peak" not in rows["head"]  # no device that tells it
    assert (rows["head"]["FLOPs"], rows["head"]["own FLOPs"]) == ("7,000,000", "7,000,000")
    widths = page.locator(".body .row .memory").evaluate_all("all => all.map(e => e.style.width)")
    assert (widths[1], widths[-1]) == ("100%", "50%")


def test_of_many_modules_only_those_in_view_are_drawn(show):
    tables = sample(blocks=300, passes=2)
    page = show(tables, panel="modules")
    page.click("text=Unfold all")
    grid = page.get_by_role("treegrid")
    assert grid.get_attribute("aria-rowcount") == "1805"
    assert page.locator(".body .row").count() < 100
    grid.focus()
    press(page, "End")
    last = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    expect(last).to_be_in_viewport()
    assert last.locator(".name").get_attribute("title") == "head"
    assert last.get_attribute("aria-rowindex") == "1805"
    press(page, "PageUp", "ArrowUp")
    expect(page.locator(f"#{grid.get_attribute('aria-activedescendant')}")).to_be_in_viewport()
    page.evaluate("document.querySelector('.grid').scrollTop = 20000")
    page.wait_for_selector(".body .row[data-index='770']")


def test_print_has_all_rows(show):
    page = show(sample(blocks=100, passes=2), panel="statistics")
    count = int(page.get_by_role("grid").get_attribute("aria-rowcount")) - 1
    assert page.locator(".body .row").count() < 100
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".body .row").count() == count == 1206
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".body .row").count() < 100


# ---------------------------------------------------------------------------------------- functions


def test_functions_stand_under_the_module_that_calls_them(show):
    tables = sample()
    page = show(tables, panel="functions")
    assert sorted(column(page, "function")) == sorted(
        [
            "head",
            "head:linear",
            "blocks.0.attn",
            "blocks.0.attn:softmax",
            "outside modules",
            ":add_",
        ]
    )
    assert numbers(column(page, "calls")) == [60] * 6
    choose(page, "group", "none")
    assert sorted(column(page, "function")) == [":add_", "blocks.0.attn:softmax", "head:linear"]
    assert numbers(column(page, "forward")) == [0.01] * 3
    choose(page, "group", "name")
    page.fill("#search", "softmax")
    assert column(page, "function") == ["softmax", "blocks.0.attn:softmax"]


# --------------------------------------------------------------------------- heat map and timeline


def series(tables, path, metric, direction="forward", mode="train"):
    (row,) = [
        row
        for row in tables[SeriesRow]
        if (row.path, row.metric, row.direction, row.mode) == (path, metric, direction, mode)
    ]
    return row.values


def told(page):
    return page.locator(".told").inner_text()


@pytest.mark.parametrize(
    ("metric", "words"),
    [("norm", "norm"), ("abs_max", "largest magnitude"), ("time", "time a call")],
)
def test_the_heat_map_tells_each_number_by_keys(show, metric, words):
    tables = sample()
    page = show(tables, panel="heatmap")
    choose(page, "metric", metric)
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    match = re.fullmatch(rf"embed · pass 2 · {words} ([\d.e+-]+)( µs| ms| s)?", told(page))
    value = float(match[1]) * {" µs": 1e-6, " ms": 1e-3}.get(match[2], 1)
    assert value == pytest.approx(series(tables, "embed", metric)[2], rel=0.01)
    press(page, "End")
    assert "pass 59" in told(page)


def test_the_heat_map_tells_each_number_at_the_pointer(show):
    tables = sample()
    page = show(tables, panel="heatmap")
    choose(page, "direction", "backward")
    box = page.get_by_role("application").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 22 + 17 * 1.5)
    text = page.locator(".tip").inner_text()
    assert text.startswith("embed · pass 59 · norm ")
    value = series(tables, "embed", "norm", "backward")[59]
    assert float(text.split()[-1]) == pytest.approx(value, rel=0.01)


def test_the_heat_map_is_searched(show):
    page = show(sample(), panel="heatmap")
    page.fill("#search", "qkv")
    assert found(page) == "3 found"
    page.get_by_role("application").focus()
    press(page, "ArrowDown")
    assert told(page).startswith("blocks.1.attn.qkv ")


def colour_at(page, column, row, columns):
    """The colour in the middle of a cell of the heat map."""
    return page.evaluate(
        """([column, row, columns]) => {
          const canvas = document.querySelector('canvas');
          const left = Math.min(260, Math.round(canvas.clientWidth * 0.36));
          const x = left + (column + 0.5) * (canvas.clientWidth - left) / columns;
          const y = 22 + 17 * (row + 0.5);
          const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
          pen.drawImage(canvas, -Math.round(x), -Math.round(y));
          return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }""",
        [column, row, columns],
    )


def test_none_zero_and_infinite_have_colours_of_their_own(show):
    values = [1e-3, 1.0, 1000.0, 0.0, math.nan, math.inf]
    where = ("GPT", "head", "", "module", "train", "forward", "output", "norm", 0, 1)
    tables = sample() | {SeriesRow: [SeriesRow(*where, pack(values))]}
    page = show(tables, panel="heatmap", color_scheme="light")
    low, middle, high, zero, none, infinite = (colour_at(page, i, 0, 6) for i in range(6))
    assert (low, high) == ([68, 1, 84], [253, 231, 37])  # the ends of viridis
    assert middle == pytest.approx([33, 145, 140], abs=6)  # on a logarithmic scale 1 is the middle
    assert zero == [184, 190, 197]
    assert none == [246, 248, 250]  # the ground
    assert infinite == [200, 16, 46]
    ends, scale, *others = page.inner_text(".key").splitlines()
    assert ends == "9.99e-41000"  # from 10⁻³, with 8 bits of precision, to 1000
    assert [scale, *others] == ["logarithmic", "0", "nothing known", "Inf"]


def test_each_row_can_have_its_own_scale(show):
    where = ("GPT", "module", "train", "forward", "output", "norm", 0, 1)
    rows = [
        SeriesRow(where[0], path, "", *where[1:], pack(values))
        for path, values in (("a", [1.0, 2.0]), ("b", [10.0, 20.0]))
    ]
    page = show(sample() | {SeriesRow: rows}, panel="heatmap")
    low, high = [68, 1, 84], [253, 231, 37]
    assert colour_at(page, 1, 0, 2) not in (low, high)
    choose(page, "scale", "row")
    assert [colour_at(page, x, y, 2) for y in (0, 1) for x in (0, 1)] == [low, high, low, high]


def event(tables, path, direction, number):
    (row,) = [
        row
        for row in tables[EventRow]
        if (row.path, row.direction, row.pass_number) == (path, direction, number)
    ]
    return row


def test_the_timeline_is_walked_by_keys(show):
    tables = sample()
    page = show(tables, panel="timeline")
    choose(page, "pass", "59")
    page.get_by_role("application").focus()
    seen = []
    keys = ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp", "ArrowRight"]
    for key in keys:
        press(page, key)
        seen.append(told(page))
    paths = ["GPT", "embed", "blocks.0", "blocks.0.norm", "blocks.0", "GPT", "GPT"]
    assert [text.split()[0] for text in seen] == paths
    directions = [text.split(" · ")[1] for text in seen]
    assert directions == ["forward"] * 6 + ["backward"]
    row, start = event(tables, "blocks.0", "forward", 59), event(tables, "", "forward", 59).begin
    duration, begin = re.fullmatch(r".* · ([\d.]+) ms, from ([\d.]+) µs on", seen[2]).groups()
    assert float(duration) == pytest.approx(row.duration * 1e3, rel=0.01)
    assert float(begin) == pytest.approx((row.begin - start) * 1e6, rel=0.01)


def test_calls_one_after_another_stand_on_one_floor(show):
    """Though as floats the end of the first comes after the begin of the second."""
    assert 0.1 + 0.2 > 0.3
    times = [("", 0.0, 1.0), ("a", 0.1, 0.2), ("b", 0.3, 0.2)]
    where = ("Linear", "module", "train", "forward", "", 0, 0, 0, 0)
    events = [EventRow("GPT", path, *where, begin, length) for path, begin, length in times]
    page = show(sample() | {EventRow: events}, panel="timeline")
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "ArrowDown", "ArrowRight")
    assert told(page).startswith("b (Linear) · forward · 200 ms")


def test_the_timeline_zooms(show):
    tables = sample()
    page = show(tables, panel="timeline")
    sheet = page.get_by_role("application")
    box = sheet.bounding_box()
    x, y = box["x"] + 30, box["y"] + 20 + 8
    page.mouse.click(x, y)
    assert told(page).startswith("GPT (GPT) · forward")
    sheet.focus()
    press(page, "ArrowDown", "Enter")
    page.mouse.move(box["x"] + box["width"] / 2, y + 19)
    assert page.locator(".tip").inner_text().startswith("embed (Embedding) · forward")
    press(page, "0")
    page.mouse.move(box["x"] + box["width"] / 2 + 1, y + 19)
    assert not page.locator(".tip").is_visible()


# -------------------------------------------------------------------------------- the other tables


def test_each_table_shows_its_rows(show):
    tables = sample()
    page = show(tables, panel="nonfinite")
    (row,) = table(page)
    told = [row[name] for name in ("module", "verdict", "tensor", "NaN", "Inf", "pass", "times")]
    assert told == ["head", "producer", "output", "3", "1", "41", "2"]
    go(page, "parameters")
    assert column(page, "parameter")[-1] == "head.weight"
    assert numbers(column(page, "update ratio"))[-1] == 1e-3
    go(page, "statistics")
    kept = {(row["module"], row["tensor"]): row for row in table(page)}
    rows = [row for kind in tables for row in tables[kind] if kind.__name__ == "StatsRow"]
    (norm,) = [r.norm for r in rows if (r.path, r.mode, r.leaf) == ("head", "train", "output")]
    assert numbers([kept["head", "output"]["norm"]]) == pytest.approx([norm])
    go(page, "silent")
    (row,) = table(page)
    assert (row["module"], row["cause"]) == ("blocks", "no forward")
    assert row["what is known, and what to do"] == "watch the modules in it"


# ------------------------------------------------------------------------------ the page as a whole


def test_the_report_works_in_the_frame_of_a_notebook(show, tmp_path):
    page = show(sample())
    shown = Run(stored(tmp_path, sample()).ranks)._repr_html_()
    page.evaluate("html => { document.body.innerHTML = html }", shown)
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=summary]").wait_for()
    frame.locator("#tab-modules").click()
    frame.locator("html[data-ready=modules]").wait_for()
    expect(frame.locator(".body .row").first).to_contain_text("GPT")


@pytest.mark.parametrize("panel", PANELS)
def test_texts_of_the_run_are_only_texts(show, panel):
    tables = hostile(sample())
    where = ("GPT", HOSTILE, HOSTILE, "module", "train", "forward")
    tables[TimeRow] = [TimeRow(*where, 1, *[0.5] * 5), TimeRow(*where, 1, *[0.5] * 5, HOSTILE)]
    page = show(tables, panel=panel)
    page.wait_for_timeout(50)
    assert page.locator("img").count() == 0
    assert HOSTILE in page.title().replace("'\"'\"'", "'")
    if panel == "summary":
        assert page.locator("pre.error").first.inner_text() == HOSTILE


@pytest.mark.parametrize("panel", PANELS)
def test_the_page_itself_never_scrolls_sideways_on_a_phone(show, panel):
    page = show(sample(), panel=panel)
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_timeout(50)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for grid in page.locator(".grid").all():
        assert grid.evaluate("e => e.scrollWidth <= e.clientWidth + 1")


@pytest.mark.parametrize(("wanted", "other"), [("light", "dark"), ("dark", "light")])
def test_colours_are_those_of_the_system_until_chosen(show, wanted, other):
    page = show(sample(), color_scheme=wanted)
    scheme = "document.documentElement.dataset.scheme"
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(scheme) == wanted
    before = page.evaluate(ground)
    page.get_by_role("button", name=f"Use {other} colours").click()
    assert page.evaluate(scheme) == other
    assert page.evaluate(ground) != before
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(scheme) == other


def test_panels_are_chosen_by_keys(show):
    page = show(sample())
    page.get_by_role("tab", name="Summary").focus()
    press(page, "ArrowRight")
    expect(page.get_by_role("tab", name="Modules")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("treegrid")).to_be_visible()
    press(page, "End")
    expect(page.get_by_role("tab", name="Never fired")).to_be_focused()
    assert page.evaluate("location.hash") == "#silent"


def test_everything_can_be_reached_by_tab_and_shows_focus(show):
    page = show(sample(), panel="modules")
    reached = []
    for _ in range(40):
        press(page, "Tab")
        reached.append(
            page.evaluate(
                """() => {
                  const e = document.activeElement, style = getComputedStyle(e);
                  return [e.getAttribute('role') || e.tagName.toLowerCase(), style.outlineStyle];
                }"""
            )
        )
    kinds = {kind for kind, _ in reached}
    assert {"button", "select", "input", "tab", "treegrid"} <= kinds
    assert {style for kind, style in reached if kind not in ("body", "html")} <= {"solid", "auto"}
