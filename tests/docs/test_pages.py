"""The documentation is whole: each page can be reached, each public name is explained.

Links between pages are checked where the site is built (`make docs`).
"""

import re
from pathlib import Path

import pytest

import hookline
from hookline import edits, function_hooks, module_hooks
from hookline.core import records

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))


def public_names():
    """What users import, by the name under which they do."""
    yield from (f"hookline.{name}" for name in hookline.__all__ if not name.startswith("__"))
    for module in (module_hooks, function_hooks):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    own = (value for value in vars(records).values() if isinstance(value, type))
    yield from (
        f"{each.__module__}.{each.__name__}" for each in own if each.__module__ == records.__name__
    )


def documented():
    """The names that have a place in the reference, under the heading that is shown."""
    blocks = re.findall(r"^::: (\S+)(?:\n    .*)*", REFERENCE, re.MULTILINE)
    headings = re.findall(r"^      heading: (\S+)", REFERENCE, re.MULTILINE)
    return {*blocks, *headings}


def test_each_public_name_is_in_the_reference():
    """Modules of ready-made hooks have a page instead of an entry."""
    pages = {module_hooks.__name__, function_hooks.__name__}
    # These two are shown where they are at home, and the edits all together.
    homes = {"hookline.TimerHook", "hookline.Edit"}
    assert edits.__name__ in documented()
    assert set(public_names()) - documented() == pages | homes


def test_each_page_is_in_the_menu_once():
    """A page that no menu leads to is not found."""
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(name):
    """These two are read where they stand."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text())
    files = [target for target in targets if not target.startswith("http")]
    assert files or name != "README.md"
    assert [target for target in files if not (ROOT / target).exists()] == []
