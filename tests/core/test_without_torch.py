"""The core, the errors and the reports know no torch."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hookline


def submodules(package):
    folder = Path(hookline.__file__).parent / package
    found = pkgutil.walk_packages([str(folder)], f"hookline.{package}.")
    return [f"hookline.{package}", *(name for _, name, _ in found)]


RECORD = ["bottom", "live", "measures", "merge", "pace", "ranks", "rows", "runs", "schema", "store"]
LIGHT = [
    *("hookline", "hookline.errors", *submodules("core"), *submodules("report")),
    *(f"hookline.record.{name}" for name in RECORD),
    *submodules("cli"),
]


def loads_torch(code):
    """Whether a fresh Python that runs the code has loaded torch."""
    code = f"import sys\n{code}\nprint('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {"True\n": True, "False\n": False}[result.stdout]


def test_the_core_and_the_reports_load_no_torch():
    """All of their modules together can be imported without torch."""
    assert len(LIGHT) > 50
    assert "hookline.report.tables.times" in LIGHT
    assert not loads_torch("import " + ", ".join(LIGHT))


@pytest.mark.parametrize("module", LIGHT)
def test_each_module_alone_loads_no_torch(module):
    """Whichever of them comes first."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import hookline.torch_base.tree",
        "import hookline.modules.engine",
        "import hookline\nhookline.register_forward_hook",
        "from hookline.module_hooks import TimerHook",
    ],
)
def test_what_does_load_torch_is_noticed(code):
    """The tests above can fail."""
    assert loads_torch(code)


def test_names_at_the_top_are_loaded_when_used():
    """What needs no torch can be had without it; all names are listed."""
    code = "import hookline; hookline.Phase, hookline.Inputs, hookline.HooklineError, dir(hookline)"
    assert not loads_torch(code)
