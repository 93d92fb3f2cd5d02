"""Patterns written as text: which paths and functions they mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import HooklineError, SelectionError
from hookline.core.patterns import (
    FunctionPattern,
    PathPattern,
    did_you_mean,
    near,
    split_address,
)


def fits_text(pattern: str, text: str) -> bool:
    """A plain reference within a segment: `*`, `?` and sets, one character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(fits_text(pattern[1:], text[skip:]) for skip in range(len(text) + 1))
    if pattern[0] == "[" and "]" in pattern:
        inside, rest = pattern[1:].split("]", 1)
        wanted = text[:1] not in inside[1:] if inside[0] == "!" else text[:1] in inside
        return bool(text) and wanted and fits_text(rest, text[1:])
    return bool(text) and pattern[0] in ("?", text[0]) and fits_text(pattern[1:], text[1:])


def fits(pattern: list[str], path: list[str]) -> bool:
    """A plain reference across segments: `**` takes any number of them."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(fits(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and fits_text(pattern[0], path[0]) and fits(pattern[1:], path[1:])


def segments(text: str) -> list[str]:
    return text.split(".") if text else []


names = st.text("ab0_", min_size=1, max_size=3)
paths = st.lists(names, max_size=5).map(".".join)
pieces = st.one_of(names, st.sampled_from(["*", "?", "[ab]", "[!a]", "[0]"]))
globs = st.lists(pieces, min_size=1, max_size=3).map("".join).filter(lambda s: "**" not in s)
patterns = st.lists(st.one_of(globs, st.just("**")), max_size=4).map(".".join)


@given(patterns, paths)
def test_a_pattern_means_what_a_plain_matcher_says(pattern, path):
    """Every combination of wildcards, sets and segments agrees with the reference."""
    assert PathPattern.of(pattern).matches(path) == fits(segments(pattern), segments(path))


@given(patterns, st.lists(st.sampled_from(["a", "b", "ab", "a0", "aa"]), max_size=4))
def test_a_pattern_means_what_a_plain_matcher_says_of_few_names(pattern, path):
    """As above, with names that match often."""
    assert PathPattern.of(pattern).matches(".".join(path)) == fits(segments(pattern), path)


@given(paths)
def test_a_path_means_itself_only(path):
    """Without wildcards, a pattern is one path."""
    pattern = PathPattern.of(path)
    assert pattern.is_exact
    assert pattern.matches(path)
    assert not pattern.matches(path + "x")
    assert not pattern.matches(f"{path}.x" if path else "x")


@pytest.mark.parametrize(
    ("pattern", "means", "means_not"),
    [
        ("", ["", ""], ["a"]),
        ("*", ["a", "encoder"], ["", "a.b"]),
        ("**", ["", "a", "a.b.c"], []),
        ("encoder.**", ["encoder", "encoder.0", "encoder.0.a"], ["", "encoders", "x.encoder"]),
        ("**.act", ["act", "a.act", "a.b.act"], ["a.act.b", "react", "a.react"]),
        ("a.**.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.bz"]),
        ("layers.*.attn", ["layers.0.attn", "layers.11.attn"], ["layers.attn", "layers.0.1.attn"]),
        ("l?.[0-2]", ["l1.0", "lx.2"], ["l.0", "l1.3", "l12.0"]),
        ("h.[!0]", ["h.1", "h.x"], ["h.0", "h.10", "h."]),
        ("norm*", ["norm", "norm1", "norm_final"], ["prenorm", "norm.weight"]),
        ("a+b", ["a+b"], ["aab"]),
        ("a[b", ["a[b"], ["ab"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
    ],
)
def test_what_patterns_mean(pattern, means, means_not):
    """The documented forms, each with what they mean and what they do not."""
    read = PathPattern.of(pattern)
    assert [path for path in means if not read.matches(path)] == []
    assert [path for path in means_not if read.matches(path)] == []


@pytest.mark.parametrize("pattern", ["*", "a.?", "[ab]", "**"])
def test_a_pattern_with_wildcards_is_not_exact(pattern):
    """Only a plain path counts as the name of one module."""
    assert not PathPattern.of(pattern).is_exact


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a..b", "'a..b' has an empty segment"),
        (".a", "has an empty segment"),
        ("a.", "has an empty segment"),
        ("a**", "write|'encoder.**.attn'"),
        ("a.***", "whole segments"),
        ("[z-a]", "'[z-a]' cannot be read: bad character range z-a"),
    ],
)
def test_r10_a_pattern_that_cannot_be_read(pattern, says):
    """What was given and why it cannot be read is said."""
    with pytest.raises(SelectionError) as caught:
        PathPattern.of(pattern)
    assert any(part in str(caught.value) for part in says.split("|"))
    assert isinstance(caught.value, HooklineError)
    assert isinstance(caught.value, ValueError)


@given(paths, st.text("ab*?_", min_size=1, max_size=4), st.none() | st.integers(0, 20))
def test_an_address_comes_apart_as_it_was_put_together(path, name, index):
    """Module, function and index of an address, in any combination."""
    function = FunctionPattern(name, index)
    assert split_address(f"{path}:{function}") == (path, function)


@pytest.mark.parametrize("text", ["", "a.b", "a[0]", "a:", "a:b[", "a:b[x]", "a:b[-1]", "a:[0]"])
def test_what_is_no_address(text):
    """A path is not taken for an address, nor an address with something wrong in it."""
    assert split_address(text) is None


@given(st.text("ab*?", max_size=4).filter(bool), st.text("ab", min_size=1, max_size=4))
def test_function_names_are_globs(pattern, name):
    """`*` and `?` in the name of a function are those of a segment."""
    function = FunctionPattern(pattern)
    assert function.names(name) == fits_text(pattern, name)
    assert function.matches(name, 3) == function.names(name)


def test_an_index_means_one_call():
    """With an index, other calls of the function are not meant."""
    first = FunctionPattern("relu", 0)
    assert [first.matches("relu", index) for index in range(3)] == [True, False, False]
    assert not first.matches("gelu", 0)
    assert first.names("relu")


def test_functions_print_as_in_addresses():
    """`str` gives what stands behind the colon."""
    assert str(FunctionPattern("relu")) == "relu"
    assert str(FunctionPattern("soft*", 2)) == "soft*[2]"


NAMES = [
    "",
    "encoder",
    "encoder.layers",
    *(f"encoder.layers.{i}{part}" for i in range(2) for part in ("", ".self_attn", ".norm1")),
    "head",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self_attn", ["**.self_attn"]),
        ("layers.*.self_attn", ["**.layers.*.self_attn"]),
        ("module.encoder.layers", ["encoder.layers"]),
        ("Net.module.head", ["head"]),
        ("_orig_mod.encoder.layers.*", ["encoder.layers.*"]),
        ("hed", ["head"]),
        ("zzz", []),
        ("encoder.x.*", ["encoder"]),
    ],
)
def test_r10_near_names(text, expected):
    """The pattern repaired where it can be, else names like it, else nothing."""
    assert near(text, NAMES)[: max(1, len(expected))] == expected


def test_r10_near_names_of_a_typing_error():
    """A wrong letter in the middle of a path still finds it first."""
    found = near("encoder.layer.0.self_attn", NAMES)
    assert found[0] == "encoder.layers.0.self_attn"
    assert len(found) <= 3


@given(patterns, st.lists(paths, max_size=6))
def test_r10_a_repaired_pattern_matches(text, known):
    """Whatever is offered is there, as a name or as a pattern that matches a name."""
    for offered in near(text, known):
        assert any(PathPattern.of(offered).matches(name) for name in known)


def test_the_offer_in_words():
    """How near names stand in an error's text."""
    assert did_you_mean([]) == ""
    assert did_you_mean(["a"]) == "; did you mean 'a'?"
    assert re.search("'a' or 'b' or 'c'", did_you_mean(["a", "b", "c"]))
