"""After each test nothing of hookline is left behind: no hook, patch, mode or global hook."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from hookline.core.demand import demand
from hookline.core.thread import local, module_switch
from hookline.modules.places import everywhere, table
from hookline.torch_base.paths import roots

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
"""What the HTML report is opened in; without one, these tests are left out, and it is said so."""

collect_ignore = [] if BROWSER else ["report/test_html_browser.py"]

_ORIGINAL = {
    "nn.Module.__call__": nn.Module.__call__,
    "_engine_run_backward": torch.autograd._engine_run_backward,
}


def leftovers() -> list[str]:  # noqa: C901 - a plain list of checks
    """What of hookline is still on, in words."""
    found = [f"hooks on a module: {reg!r}" for reg in table.values() if len(reg)]
    if len(everywhere):
        found.append(f"hooks on all modules: {everywhere!r}")
    thread = local.thread
    for what, registry in (("module", thread.modules), ("function", thread.functions)):
        if len(registry):
            found.append(f"scoped {what} hooks: {registry!r}")
    if thread.stack or thread.runs or thread.busy or thread.culprit is not None:
        found.append(f"thread state: {thread.stack} {thread.runs} {thread.busy} {thread.culprit}")
    if demand.backward or demand.clock or demand.modes:
        found.append(f"demand: {demand.backward}, {demand.clock}, {demand.modes}")
    if demand.aims:
        found.append(f"hooks that wait for a pass: {list(demand.aims)}")
    if module_switch:
        found.append("the engine is on")
    now = {
        "nn.Module.__call__": nn.Module.__call__,
        "_engine_run_backward": torch.autograd._engine_run_backward,
    }
    found += [f"patched: {name}" for name, value in now.items() if value is not _ORIGINAL[name]]
    if torch_module._global_module_registration_hooks:
        found.append("torch's registration hooks")
    if torch_optimizer._global_optimizer_post_hooks:
        found.append("torch's optimizer hooks")
    if torch._C._len_torch_function_stack():
        found.append("a torch function mode")
    if torch._C._len_torch_dispatch_stack():
        found.append("a torch dispatch mode")
    if not torch.backends.mha.get_fastpath_enabled():
        found.append("the fast path is off")
    return found


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    if "torch._dynamo.convert_frame" in sys.modules:
        torch._dynamo.reset()  # what another test compiled is none of this one's
    roots.clear()  # models that another test left alive take no names of this one's
    local.thread.outside = None  # nor do functions that it called take numbers
    yield
    if leftovers():
        gc.collect()  # hooks on a module go with the module
    left = leftovers()
    for registry in (*table.values(), everywhere, local.thread.modules, local.thread.functions):
        registry.clear()  # so that one test's fault is not the next one's
    assert not left, f"left behind: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    if not BROWSER:
        left_out = "tests/report/test_html_browser.py was left out: there is no chromium or Chrome"
        terminalreporter.write_line(left_out, yellow=True, bold=True)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """The compiler knows nothing of other tests, and says nothing of the version of Python."""
    torch._dynamo.reset()
    torch._dynamo.config.issue_3_13_0_warning = False
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Everything must go by itself: the collector does not run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Lets threads interrupt each other as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
