"""How long the HTML report of a large run takes to open, sort and search in headless Chromium.

Prints a table in Markdown: `python -m benchmarks.report`. Needs Debian's `chromium`, or Chrome.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from playwright.sync_api import Page, sync_playwright

from hookline.record.runs import load
from hookline.record.store import Store
from hookline.report.html import write_html
from tests.record.sample import sample

# Each resolves once the browser has painted what came of it.
_PAINTED = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
_STEPS = {
    "open Modules": "location.hash = 'modules'",
    "sort the tree": "document.querySelector('.head [data-label=self]').click()",
    "unfold all": "[...document.querySelectorAll('.tools button')].at(-1).click()",
    "sort the unfolded tree": "document.querySelector('.head [data-label=calls]').click()",
    "search the tree": (
        "search.value = 'blocks.15'; search.dispatchEvent(new InputEvent('input'))"
    ),
    "end the search": "search.value = ''; search.dispatchEvent(new InputEvent('input'))",
    "to the flat view": (
        "document.querySelector('[name=view]').value = 'flat';"
        "document.querySelector('[name=view]').dispatchEvent(new Event('change'))"
    ),
    "sort by path": "document.querySelector('.head [data-label=module]').click()",
    "search the flat view": ("search.value = 'mlp'; search.dispatchEvent(new InputEvent('input'))"),
    "scroll to the middle": "document.querySelector('.grid').scrollTop = 60000",
    "open Heat map": "location.hash = 'heatmap'",
    "open Timeline": "location.hash = 'timeline'",
    "open Statistics": "location.hash = 'statistics'",
}


def _opened(page: Page, path: Path) -> float:
    """Seconds from the start of loading to the painted first view."""
    page.goto("about:blank")
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-ready]")
    return page.evaluate(f"{_PAINTED}.then(() => performance.now())") / 1000


def _step(page: Page, action: str) -> float:
    code = f"(async () => {{ const t = performance.now(); {action}; await {_PAINTED};"
    return page.evaluate(f"{code} return performance.now() - t }})()") / 1000


def _timed(action: Callable[[], object]) -> float:
    begin = perf_counter()
    action()
    return perf_counter() - begin


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--blocks", type=int, default=1666, help="6 modules each, and 4 more")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with Store(folder / "run.hookline") as store:
        store.write(sample(blocks=options.blocks))
    run, path = load(folder / "run.hookline"), folder / "report.html"
    written = _timed(lambda: write_html(run, path))
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        taken: dict[str, list[float]] = {name: [] for name in ("first view", *_STEPS)}
        for _ in range(options.rounds):
            taken["first view"].append(_opened(page, path))
            for name, action in _STEPS.items():
                taken[name].append(_step(page, action))
        browser.close()
    print(f"{6 * options.blocks + 4} modules, {path.stat().st_size / 1e6:.1f} MB,")
    print(f"written in {written:.1f} s\n\n| what | median | slowest |\n|---|--:|--:|")
    for name, times in taken.items():
        print(f"| {name} | {median(times) * 1e3:.0f} ms | {max(times) * 1e3:.0f} ms |")


if __name__ == "__main__":
    main()
