"""The HTML report as a text: all of the run is in it, none of that is code, it needs no other."""

import json
import math
import re
import shlex
from dataclasses import asdict, replace

import pytest

from hookline.core.records import Silent, TimeRow
from hookline.record.rows import FaultRow, ModuleRow, RunRow, SeriesRow, pack
from hookline.record.schema import NAMES
from hookline.report.html import SERIES_ROOM, render, write_html
from hookline.report.packed import packed
from tests.record.sample import sample
from tests.report.report_page import Page, rows_of, stored

HOSTILE = """</script><img src="x" onerror='alert(1)'>&amp;{{ 7 * 7 }}<!--"""


def as_page(value):
    """A value as the page has it: tuples are lists, floats have 12 digits."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-11, nan_ok=True)
    return json.loads(json.dumps(value))


def series(values, metric="norm", first=0, width=1):
    where = ("Net", "head", "", "module", "train", "forward", "output", metric, first, width)
    return SeriesRow(*where, pack(values))


def test_every_row_of_the_run_is_in_the_page(tmp_path):
    tables = sample()
    page = Page(render(stored(tmp_path, tables)))
    assert set(page.data[0]) == {NAMES[kind] for kind in tables}
    for kind in set(tables) - {SeriesRow}:
        shown = page.data[0][NAMES[kind]]
        assert len(shown) == len(tables[kind]) > 0
        for row, kept in zip(tables[kind], shown, strict=True):
            expected = {name: as_page(value) for name, value in asdict(row).items()}
            for name in ("histogram", "operators"):  # what the page does not show
                expected.pop(name, None)
            assert kept == expected


def test_series_come_with_8_bits_of_precision(tmp_path):
    tables = sample(passes=300)
    page = Page(render(stored(tmp_path, tables)))
    for row, kept in zip(tables[SeriesRow], page.data[0]["series"], strict=True):
        assert kept["values"] == pytest.approx(row.values, rel=1 / 256)
        told = {name: kept[name] for name in ("path", "metric", "direction", "first", "width")}
        assert told == {name: getattr(row, name) for name in told}


def test_what_is_no_number_in_a_series_stays_what_it_is(tmp_path):
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.5, 3.3e38, 1e-40]
    (kept,) = rows_of(
        packed(stored(tmp_path, {SeriesRow: [series(values)]}).ranks[0], 99)["series"]
    )
    assert kept["values"][:6] == pytest.approx(values[:6], nan_ok=True)
    assert kept["values"][6] == pytest.approx(3.3e38, rel=1 / 256)
    assert kept["values"][7] == pytest.approx(1e-40, rel=0.01)  # denormal, with fewer bits


@pytest.mark.parametrize(
    ("metric", "merge"),
    [("norm", lambda part: sum(part) / len(part)), ("abs_max", max), ("nonfinite", sum)],
)
def test_where_there_is_no_room_neighbouring_bins_become_one(tmp_path, metric, merge):
    nan = math.nan
    values = [1.0, 2.0, 4.0, nan, nan, nan, nan, nan, 8.0, 16.0]
    rows = [series(values, metric, first=20, width=3), series([1.0], metric, width=3)]
    rank = stored(tmp_path, {SeriesRow: rows}).ranks[0]
    kept, short = rows_of(packed(rank, room=4)["series"])
    assert (kept["first"], kept["width"], kept["bins"]) == (20, 12, 3)
    expected = [merge([1.0, 2.0, 4.0]), nan, merge([8.0, 16.0])]
    assert kept["values"] == pytest.approx(expected, rel=1 / 256, nan_ok=True)
    assert short["values"] == [1.0]


def test_room_for_series_is_shared_by_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.report.html.SERIES_ROOM", 16)
    tables = {SeriesRow: [series([1.0] * 16)]}
    one, two = render(stored(tmp_path, tables)), render(stored(tmp_path, tables, tables))
    assert Page(one).data[0]["series"][0]["bins"] == 16
    assert [Page(two).data[rank]["series"][0]["bins"] for rank in (0, 1)] == [8, 8]
    assert SERIES_ROOM == 2_500_000


def test_numbers_that_json_lacks_come_back(tmp_path):
    row = TimeRow("Net", None, "", "function", "train", "forward", 2**40, *[math.nan] * 4, math.inf)
    (kept,) = Page(render(stored(tmp_path, {TimeRow: [row]}))).data[0]["times"]
    assert kept["calls"] == 2**40
    assert math.isnan(kept["median"])
    assert kept["maximum"] == math.inf
    assert kept["path"] is None


def hostile(tables):
    """The run of a program that means harm, or only has odd names."""
    (info,) = tables[RunRow]
    return tables | {
        RunRow: [replace(info, program=("train.py", HOSTILE), host=HOSTILE, error=HOSTILE)],
        ModuleRow: [ModuleRow("GPT", "", HOSTILE, 0, 0), ModuleRow("GPT", HOSTILE, "A", 1, 2)],
        FaultRow: [FaultRow(HOSTILE)],
        Silent: [Silent(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)],
    }


def test_texts_of_the_run_are_never_read_as_html(tmp_path):
    text = render(stored(tmp_path, hostile(sample())))
    page, usual = Page(text), Page(render(stored(tmp_path, sample())))
    assert page.tags == usual.tags
    assert HOSTILE not in text
    assert "onerror" not in text.replace("onerror=&#39;", "")
    assert shlex.join(("train.py", HOSTILE)) in page.texts["title"]  # there, but only as a text
    assert page.data[0]["silent"][0]["advice"] == HOSTILE


def test_the_page_needs_nothing_else(tmp_path):
    text = render(stored(tmp_path, hostile(sample())))
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]+\.", page.texts["script"] + page.texts["style"])
    links = [value for _, name, value in page.attributes if name in ("src", "href")]
    assert links == ["data:,"]  # else a browser asks the server for an icon
    assert not re.search(r"url\(|@import", page.texts["style"])
    reach = r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|\bimport\b|innerHTML|eval\(|Function\("
    assert not re.search(reach, page.texts["script"])
    (policy,) = [value for _, name, value in page.attributes if "default-src" in (value or "")]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy


def test_a_process_that_wrote_nothing_has_a_page(tmp_path):
    page = Page(render(stored(tmp_path, {})))
    assert "an empty run" in page.texts["title"]
    assert ("body", "data-ranks", "1") in page.attributes
    assert not page.data


def test_ranks_are_kept_apart(tmp_path):
    ranks = [sample(rank=rank, ranks=3, seed=rank) for rank in range(3)]
    page = Page(render(stored(tmp_path, *ranks)))
    assert ("body", "data-ranks", "3") in page.attributes
    for number, tables in enumerate(ranks):
        assert page.data[number]["run"][0]["rank"] == number
        own = [row["self_time"] for row in page.data[number]["times"]]
        assert own == pytest.approx([row.self_time for row in tables[TimeRow]], rel=1e-11)


def test_a_file_that_is_there_is_replaced(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("x" * 10**6, encoding="utf-8")
    run = stored(tmp_path, sample())
    write_html(run, path)
    assert path.read_text(encoding="utf-8") == render(run)
