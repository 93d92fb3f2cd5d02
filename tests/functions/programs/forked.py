"""Forks inside of a scope and tells what is on in parent and child."""

import os
import sys
import threading

import torch

import hookline
from hookline.record.measures import Measures
from hookline.record.run import Recorder

torch.set_num_threads(1)


def applies():
    return [vars(cls).get("apply") for cls in torch.autograd.Function.__mro__]


original = applies()


class Log(hookline.FunctionHook):
    def __init__(self):
        self.events = []

    def forward_preprocess(self, function, in_data):
        self.events.append(function.name)


def tell(who, log):
    profile = threading.getprofile()
    print(
        f"{who}: events {log.events}, modes {torch._C._len_torch_function_stack()},",
        f"hooks {list(hookline.get_function_hooks())},",
        f"apply patched {applies() != original},",
        f"profile {profile and 'ours'}",
        flush=True,
    )


def in_child(log):
    torch.zeros(2)
    tell("child", log)


with Recorder(Measures(time=True, level="function")):
    log = Log()
    with log:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            torch.zeros(2)
            tell("parent", log)
        else:
            in_child(log)
    if not child:
        tell("child after leaving", log)
        with Log() as own:
            torch.ones(2)
        print("child's own scope:", own.events, flush=True)
        sys.exit()
tell("after", log)
