"""The top of the package, whose names are loaded on first use."""

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import hookline
from hookline import edits, function_hooks, module_hooks

ROOT = Path(__file__).parents[1]


def test_a_misspelt_name_is_told_with_the_near_one():
    """Python itself prints a suggestion, if the error says where to look."""
    with pytest.raises(AttributeError, match="has no attribute 'captur'") as caught:
        _ = hookline.captur
    assert caught.value.name == "captur"
    assert caught.value.obj is hookline


def test_every_public_name_can_be_loaded():
    """Names that are loaded late must lead somewhere."""
    assert [name for name in hookline.__all__ if not hasattr(hookline, name)] == []
    assert set(hookline.__all__) == set(dir(hookline))


@pytest.mark.parametrize("module", [function_hooks, module_hooks])
def test_every_ready_made_hook_can_be_loaded(module):
    """They are loaded late too, and each says of itself where it belongs."""
    level = module.__name__.removeprefix("hookline.").removesuffix("_hooks").capitalize()
    assert set(module.__all__) == set(dir(module))
    for name in module.__all__:
        assert getattr(module, name).__name__ in (name, level + name)
    with pytest.raises(AttributeError, match="has no attribute 'TimeHook'") as caught:
        _ = module.TimeHook
    assert (caught.value.name, caught.value.obj) == ("TimeHook", module)


def test_one_ready_made_hook_loads_no_other():
    """Who imports a timer does not wait for statistics and reports."""
    code = """
        import sys
        from hookline.module_hooks import TimerHook
        print(*sorted(name for name in sys.modules if name.startswith("hookline.hooks.")))
    """
    run = [sys.executable, "-c", inspect.cleandoc(code)]
    loaded = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert "hookline.hooks.timer" in loaded
    others = ("stats", "nonfinite", "memory", "flops", "capture", "patch_hooks", "ranges")
    assert not {f"hookline.hooks.{other}" for other in others} & set(loaded)


def test_every_public_name_is_typed_in_the_api_file():
    """`tests/typing/api.py`, which checkers read, uses each of them as users do."""
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse((ROOT / "tests/typing/api.py").read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    modules = hookline, edits, function_hooks, module_hooks
    assert {name for module in modules for name in module.__all__} - used == set()


@pytest.mark.parametrize("home", [hookline.module_hooks, hookline.function_hooks])
def test_ready_made_hooks_are_called_as_they_are_imported(home):
    """In errors and pickles: the same name at both levels, and where it is found."""
    for name in home.__all__:
        cls = getattr(home, name)
        assert (cls.__name__, cls.__qualname__, cls.name) == (name, name, name)
        assert pickle.loads(pickle.dumps(cls)) is cls
