"""What is said of each public name, where it stands: ruff sees to the form, these to the rest."""

import inspect
import re

import pytest

import hookline
from hookline import edits, function_hooks, module_hooks
from hookline.core.scope import HookObject

MODULES = hookline, edits, module_hooks, function_hooks
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if name != "__version__" and not inspect.ismodule(getattr(module, name))
}
# What users call: verbs, and classes of which they make objects. The others are given to them.
MADE = HookObject, hookline.FunctionNode, hookline.Inputs, hookline.BackwardHookGate
CALLED = {
    name: each
    for name, each in PUBLIC.items()
    if inspect.isfunction(each) or issubclass(each, MADE)
}


def arguments_told(text):
    """The names below `Args:`, without the stars."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+):", section[1], re.MULTILINE) if section else []


def parameters_of(each):
    """Those of a function, or of making an object."""
    return [name for name in inspect.signature(each).parameters if name != "self"]


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_says_what_it_is(name):
    """In a docstring of its own, that begins with a sentence."""
    text = vars(PUBLIC[name])["__doc__"] if isinstance(PUBLIC[name], type) else None
    text = text or PUBLIC[name].__doc__
    assert text
    assert text.splitlines()[0].rstrip().endswith((".", ":"))


@pytest.mark.parametrize("name", CALLED)
def test_what_users_call_has_an_example(name):
    """It runs with the tests, as every example of a docstring."""
    assert re.search(r"^ *Example:\n +>>> ", CALLED[name].__doc__, re.MULTILINE)


@pytest.mark.parametrize("name", CALLED)
def test_every_argument_is_explained_and_no_other(name):
    """The names below `Args:` are those of the signature, in its order."""
    text = inspect.getdoc(CALLED[name])
    told = arguments_told(text)
    if "Takes and returns what" not in text:
        assert told == parameters_of(CALLED[name])
