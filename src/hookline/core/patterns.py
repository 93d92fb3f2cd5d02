"""Patterns written as text: which dotted paths, and which functions, they mean.

A path is matched segment by segment: `*` is any text within a segment, `?` one character, `[0-3]`
one of a set and `[!0]` one that is not in it. `**` is any number of whole segments, none too:
`encoder.**` means `encoder` and all that is in it. `""` is the root.

An address, `layers.*.self_attn:softmax[0]`, means functions: of that name (`*` and `?` are allowed)
where the forward of such a module calls them; with an index, that call of a pass only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from hookline.errors import SelectionError

_SPECIAL: Final = frozenset("*?[")
_TOKEN: Final = re.compile(
    r"(?P<any>\*)|(?P<one>\?)|\[(?P<none>!?)(?P<set>[^\]]+)\]|(?P<text>.)", re.DOTALL
)
_ADDRESS: Final = re.compile(r"(?P<path>.*):(?P<name>[^:\[\]]+)(?:\[(?P<index>\d+)\])?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PathPattern:
    """Which dotted paths a text means.

    Example:
        >>> pattern = PathPattern.of("layers.*.attn")
        >>> pattern.matches("layers.10.attn"), pattern.matches("layers.0.mlp.attn")
        (True, False)
    """

    text: str
    """The pattern as it was given."""
    regex: re.Pattern[str]
    """What a path with a dot behind each segment must match in full."""

    @classmethod
    def of(cls, text: str) -> PathPattern:
        """Read a pattern.

        Raises:
            SelectionError: it is not well formed.
        """
        segments = _segments(text)
        if not all(segments):
            msg = f"the pattern {text!r} has an empty segment between, before or after its dots"
            raise SelectionError(msg)
        try:
            return cls(text, re.compile("".join(_segment(s, text) for s in segments), re.DOTALL))
        except re.error as error:
            msg = f"the pattern {text!r} cannot be read: {error}"
            raise SelectionError(msg) from None

    @property
    def is_exact(self) -> bool:
        """Whether it means one path only."""
        return _SPECIAL.isdisjoint(self.text)

    def matches(self, path: str) -> bool:
        """Whether it means a path."""
        return self.regex.fullmatch(path + "." if path else "") is not None


@dataclass(frozen=True, slots=True)
class FunctionPattern:
    """Which calls of functions a text means, within a module.

    Example:
        >>> FunctionPattern("*dropout", 0).matches("alpha_dropout", 0)
        True
    """

    name: str
    """The name of the function; `*` and `?` as in paths."""
    index: int | None = None
    """Which call of the pass; None for all."""

    def names(self, name: str) -> bool:
        """Whether it means functions of a name."""
        return re.fullmatch(_body(self.name), name, re.DOTALL) is not None

    def matches(self, name: str, index: int) -> bool:
        """Whether it means a call."""
        return self.index in (None, index) and self.names(name)

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


def split_address(text: str) -> tuple[str, FunctionPattern] | None:
    """Take an address apart into the pattern of its module and that of its function.

    Returns:
        None if it is no address but the pattern of a path.

    Example:
        >>> split_address("layers.*.attn:softmax[0]")
        ('layers.*.attn', FunctionPattern(name='softmax', index=0))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    index = match["index"]
    return match["path"], FunctionPattern(match["name"], None if index is None else int(index))


def check_pattern(text: str) -> None:
    """Refuse a pattern or address that is not well formed, before there is any model.

    Raises:
        SelectionError: it is not.

    Example:
        >>> check_pattern("layers.*.attn:softmax")
    """
    address = split_address(text)
    PathPattern.of(text if address is None else address[0])


def _segments(text: str) -> list[str]:
    return text.split(".") if text else []


def _segment(text: str, whole: str) -> str:
    """The regular expression of one segment, its dot included."""
    if text == "**":
        return r"(?:[^.]+\.)*"
    if "**" in text:
        msg = (
            f"the pattern {whole!r} has ** inside a segment; ** stands for whole segments, as in "
            "'encoder.**.attn', and * for text within one"
        )
        raise SelectionError(msg)
    return _body(text) + r"\."


def _body(text: str) -> str:
    return "".join(map(_token, _TOKEN.finditer(text)))


def _token(match: re.Match[str]) -> str:
    if match["any"]:
        return "[^.]*"
    if match["one"]:
        return "[^.]"
    if match["set"]:
        chosen = re.escape(match["set"]).replace(r"\-", "-")
        return f"[^.{chosen}]" if match["none"] else f"[{chosen}]"
    return re.escape(match["text"])


def near(text: str, names: Iterable[str], count: int = 3) -> list[str]:
    """What somebody may have meant by a pattern that matches nothing.

    Args:
        text: the pattern.
        names: all paths that there are.
        count: how many to give at most.

    Returns:
        Patterns that do match: the same one further inside (`**.attn` for `attn`), or without its
        first segments (`fc` for `module.fc`); else the names that look most like it.

    Example:
        >>> near("attn", ["layers.0.attn", "layers.1.attn"])
        ['**.attn']
        >>> near("layer.0.attn", ["layers.0.attn", "layers.0", "norm"])
        ['layers.0.attn', 'layers.0']
    """
    names = list(names)
    segments = _segments(text)
    inside = [segments[first:] for first in range(1, len(segments))]
    repaired = [["**", *segments], *(rest for rest in inside if _SPECIAL.isdisjoint(rest[0]))]
    for pattern in map(PathPattern.of, map(".".join, repaired)):
        if any(pattern.matches(name) for name in names):
            return [pattern.text]
    return get_close_matches(text, names, count)


def did_you_mean(found: list[str]) -> str:
    """The end of an error's text that offers near names; empty if there are none.

    Example:
        >>> did_you_mean(["fc1", "fc2"])
        "; did you mean 'fc1' or 'fc2'?"
    """
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
