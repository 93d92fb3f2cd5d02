"""How long the HTML report of a large run takes to open, sort and search in headless Chromium.

Prints a table in Markdown: `python -m benchmarks.report`. Needs Debian's `chromium`, or Chrome.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from hookline.record.runs import load
from hookline.record.store import Store
from hookline.report.html import write_html
from tests.record.sample import sample

# A panel that is opened says so once it is drawn.
_OPENED = """new Promise(done => {
  const look = () => document.documentElement.dataset.ready === %r ? done() : setTimeout(look);
  look();
})"""
_PAINTED = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
_STEPS = {
    "open Modules": "location.hash = 'modules'; await " + _OPENED % "modules",
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
    "open Heat map": "location.hash = 'heatmap'; await " + _OPENED % "heatmap",
    "open Timeline": "location.hash = 'timeline'; await " + _OPENED % "timeline",
    "open Statistics": "location.hash = 'statistics'; await " + _OPENED % "statistics",
}


@dataclass
class Taken:
    """Seconds of each round: until it was painted, and of the page's main thread alone.

    The second does not depend on what else runs on the machine.
    """

    wall: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)


class Measured:
    """A page whose steps are timed.

    Args:
        page: the page, empty.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def open(self, path: Path) -> tuple[float, float]:
        """Load the report, up to its painted first view."""
        begin = self._thread()
        self._page.goto(path.as_uri(), wait_until="commit")
        self._page.wait_for_selector("html[data-ready]")
        wall = self._page.evaluate(f"{_PAINTED}.then(() => performance.now())") / 1000
        return wall, self._thread() - begin

    def step(self, action: str) -> tuple[float, float]:
        """Do something on the page, up to its painted result."""
        begin = self._thread()
        code = f"(async () => {{ const t = performance.now(); {action}; await {_PAINTED};"
        wall = self._page.evaluate(f"{code} return performance.now() - t }})()") / 1000
        return wall, self._thread() - begin

    def _thread(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "ThreadTime")


def _rounds(path: Path, rounds: int) -> dict[str, Taken]:
    taken = {name: Taken() for name in ("first view", *_STEPS)}
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        for _ in range(rounds):
            page = browser.new_page()
            measured = Measured(page)
            for name, each in taken.items():
                step = _STEPS.get(name)
                wall, thread = measured.step(step) if step else measured.open(path)
                each.wall.append(wall)
                each.thread.append(thread)
            page.close()
        browser.close()
    return taken


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--blocks", type=int, default=1666, help="6 modules each, and 4 more")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        with Store(path.with_name("run.hookline")) as store:
            store.write(sample(blocks=options.blocks))
        write_html(load(path.with_name("run.hookline")), path)
        print(f"{6 * options.blocks + 4} modules, {path.stat().st_size / 1e6:.1f} MB\n")
        taken = _rounds(path, options.rounds)
    print("| what | fastest | median | main thread, median |\n|---|--:|--:|--:|")
    for name, each in taken.items():
        figures = min(each.wall), median(each.wall), median(each.thread)
        print(f"| {name} |" + "".join(f" {figure * 1e3:.0f} ms |" for figure in figures))


if __name__ == "__main__":
    main()
