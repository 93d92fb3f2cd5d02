"""Lets the documentation show an `Example:` of a docstring as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """The parser of docstrings takes sections of this name for remarks, not for code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Call the section by the name that the parser knows."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
