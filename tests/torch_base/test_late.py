"""A module that torch imports late keeps no function of hookline's, whoever imports it."""

import subprocess
import sys

import pytest

BEFORE = """
import sys
import torch
from torch import nn
import hookline

assert "torch._dynamo" not in sys.modules
torch.set_num_threads(1)
path, finders = sys.meta_path, list(sys.meta_path)
seen = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(x)

model, x = Net(), torch.ones(2)
"""
AFTER = """
assert sys.meta_path == finders, sys.meta_path
utils = sys.modules["torch._dynamo.utils"]
assert "hookline" not in type(utils.__loader__).__module__
assert utils.__spec__.loader is utils.__loader__
assert utils.unpatched_nn_module_call is nn.Module.__call__
variables = sys.modules["torch._dynamo.variables.nn_module"]
assert variables.unpatched_nn_module_call is nn.Module.__call__
print("whole")
"""
HOOKED = {
    "compile": """
with hookline.register_forward_hook(model.act, lambda *a: seen.append(1)):
    torch.compile(model, backend="eager")(x)
assert seen == [1], seen
""",
    "compile_a_function": """
with hookline.register_forward_hook(model.act, lambda *a: seen.append(1)):
    torch.compile(lambda x: model(x), backend="eager")(x)
assert seen == [1], seen
""",
    "import_then_compile_later": """
with hookline.TimerHook():
    import torch._dynamo
with hookline.register_forward_hook(model.act, lambda *a: seen.append(1)):
    torch.compile(model, backend="eager")(x)
assert seen == [1], seen
""",
    "import_inside_of_a_hook": """
def hook(module, args, output):
    import torch._dynamo
    seen.append(1)

with hookline.register_forward_hook(model.act, hook):
    model(x)
assert seen == [1], seen
""",
    "somebody_waits_too": """
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Theirs(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch._dynamo.utils":
            seen.append(name)

with hookline.register_forward_hook(model.act, lambda *a: seen.append(1)):
    sys.meta_path.insert(0, Theirs())
    finders.insert(0, sys.meta_path[0])
    torch.compile(model, backend="eager")(x)
assert seen == ["torch._dynamo.utils", 1], seen
""",
}


@pytest.mark.parametrize("program", HOOKED.values(), ids=HOOKED)
def test_the_compiler_may_come_after_the_hooks(program):
    """It then knows that `nn.Module.__call__` is patched, and traces what stands there."""
    command = [sys.executable, "-c", BEFORE + program + AFTER]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "whole\n", result.stderr


def test_only_while_hooks_are_on():
    program = """
with hookline.TimerHook():
    assert len(sys.meta_path) == len(finders) + 1
assert sys.meta_path == finders
with hookline.TimerHook():
    pass
assert sys.meta_path == finders
print("whole")
"""
    command = [sys.executable, "-c", BEFORE + program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "whole\n", result.stderr
