"""Every code fence of the documentation and every docstring example is a test."""

from __future__ import annotations

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

torch.set_num_threads(1)  # waiting threads make a busy small machine many times slower

_docs = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    patterns=["*.md"],
    excludes=["CHANGELOG.md", "CONTRIBUTING.md"],
)


def _named_phases(namespace: dict[str, object]) -> None:
    from hookline.core.calls import Inputs
    from hookline.core.clock import Clock
    from hookline.core.names import hook_name
    from hookline.core.phases import HookKind, Phase
    from hookline.core.records import TimeRow
    from hookline.core.switch import Switch
    from hookline.modules.gate import BackwardHookGate
    from hookline.modules.signature import FORWARD_PRE, takes_kwargs
    from hookline.record.run import Recorder

    known = (Inputs, Clock, hook_name, HookKind, Phase, TimeRow, Switch, BackwardHookGate)
    namespace.update({each.__name__: each for each in (*known, takes_kwargs, Recorder)})
    namespace["FORWARD_PRE"] = FORWARD_PRE


_docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
    patterns=["src/**/*.py"],
    setup=_named_phases,
)

pytest_collect_file = (_docs + _docstrings).pytest()
