"""A plugin that checks what the package is given and returns against its annotations.

`make test-types` loads it. The other tests run the package as it is installed.
"""

import ast
import collections
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import get_type_hints
from unittest.mock import patch

import pytest
import torch
from beartype import BeartypeConf, beartype
from beartype._check.forward import fwdresolve
from beartype._util.func import utilfunctest
from beartype.claw import beartype_package
from beartype.roar import BeartypeCallHintViolation, BeartypeDecorHintPep613DeprecationWarning
from torch.autograd.graph import Node

_namedtuple = collections.namedtuple  # noqa: PYI024 - what `typing.NamedTuple` is made of


class Violation(UserWarning):
    """An error, but where a test waits for one: there it gives what is wrong on purpose."""

    waiting = 0

    def __init__(self, message, **_):
        super().__init__(message)
        if not self.waiting:
            raise BeartypeCallHintViolation(message, culprits=(self,))


CONF = BeartypeConf(
    violation_type=Violation,
    is_pep484_tower=True,  # an int is a float
    # Assignments are left to pyright: beartype holds a lock while it checks one, and would wait for
    # itself where the garbage collector comes in between and drops hooks, which assigns too.
    claw_is_pep526=False,
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Before anything has imported the package."""
    _let_go_of_functions()
    beartype_package("hookline", conf=CONF)
    package = import_module("hookline")
    with warnings.catch_warnings(), patch.object(collections, "namedtuple", _unchecked):
        warnings.simplefilter("error")
        # the `type` statement that beartype asks for is of Python 3.12
        warnings.simplefilter("ignore", BeartypeDecorHintPep613DeprecationWarning)
        names = [found.name for found in walk_packages(package.__path__, "hookline.")]
        modules = [import_module(name) for name in names if not name.endswith("__main__")]
    for module in modules:
        _add_names_for_checkers(module)
    for module in modules:
        _check_named_tuples(module)
    _know_which_errors_are_waited_for()
    _know_all_nodes()


def pytest_configure(config):
    """A violation that is let pass is no warning either."""
    config.addinivalue_line("filterwarnings", f"ignore::{__name__}.Violation")


def pytest_collection_modifyitems(config, items):
    """Leave out what the checks themselves would disturb."""
    left_out = [item for item in items if _is_disturbed(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _is_disturbed(item)]


def _is_disturbed(item):
    # The compiler would trace the checks into its graphs, and the checks draw random numbers, where
    # hypothesis wants to draw all of them.
    is_compiled = "fresh_compiler" in getattr(item, "fixturenames", ())
    return is_compiled or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _let_go_of_functions():
    """Let beartype not remember whether each function is nested, and so all it closes over."""
    forgetful = utilfunctest.is_func_nested.__wrapped__
    fwdresolve.is_func_nested = utilfunctest.is_func_nested = forgetful


def _know_all_nodes():
    """Functions for whose nodes torch has no class of its own make nodes all the same."""
    [output] = torch._foreach_mul([torch.ones((), requires_grad=True)], 2)
    Node.register(type(output.grad_fn))


def _add_names_for_checkers(module):
    """What stands under `if TYPE_CHECKING` is there when beartype looks for it, at a first call."""
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            names = compile(ast.Module(node.body, []), module.__file__, "exec")
            exec(names, vars(module))  # noqa: S102 - lines of the package itself


def _unchecked(*args, **options):
    """The constructor of a named tuple is made in a module of its own, which knows no names."""
    made = _namedtuple(*args, **options)
    made.__new__.__no_type_check__ = True
    return made


def _check_named_tuples(module):
    for cls in vars(module).values():
        if getattr(cls, "__module__", "") == module.__name__ and hasattr(cls, "_field_defaults"):
            cls.__new__.__no_type_check__ = False
            cls.__new__.__annotations__ = get_type_hints(cls)
            cls.__new__ = beartype(conf=CONF)(cls.__new__)


def _know_which_errors_are_waited_for():
    enter, leave = pytest.RaisesExc.__enter__, pytest.RaisesExc.__exit__

    def entering(self):
        Violation.waiting += 1
        return enter(self)

    def leaving(self, *error):
        Violation.waiting -= 1
        return leave(self, *error)

    pytest.RaisesExc.__enter__, pytest.RaisesExc.__exit__ = entering, leaving
