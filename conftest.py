"""Every code fence of the documentation and every docstring example is a test."""

from __future__ import annotations

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

import torch
from hypothesis import settings
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

from hookline.modules.places import everywhere as module_hooks
from hookline.modules.places import table
from hookline.torch_base.paths import roots
from hookline.torch_base.stack import current_thread

# What fails here fails everywhere, and no test depends on time; the soak machine looks for more.
settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")
torch.set_num_threads(1)  # waiting threads make a busy small machine many times slower


def _count_anew(_: object) -> None:
    """What ran on other pages takes no names and no numbers from what runs on this one."""
    roots.clear()
    current_thread().outside = None


def _no_hooks_left(_: object) -> None:
    """Examples are short and leave hooks on; the tests that follow want none."""
    for registry in (*table.values(), module_hooks):
        registry.clear()


_docs = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    patterns=["*.md"],
    excludes=["CHANGELOG.md", "CONTRIBUTING.md"],
    setup=_count_anew,
    teardown=_no_hooks_left,
)


# The names of its module are there in a docstring's example.
_docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
    patterns=["*.py"],
    excludes=["tests/*", "examples/*", "benchmarks/*", "conftest.py"],
    setup=_count_anew,
    teardown=_no_hooks_left,
    document_types={".py": PythonDocStringDocument},
)


pytest_collect_file = (_docs + _docstrings).pytest()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Ids without addresses, which differ between the processes that share the tests."""
    if not callable(val) or isinstance(val, type):
        return None
    return getattr(val, "__name__", type(val).__name__)
