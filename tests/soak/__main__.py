"""The long versions of the tests in this folder.

    python -m tests.soak machine --seconds 3600
    python -m tests.soak threads --seconds 60
    python -m tests.soak cycles --count 50000
    python -m tests.soak interrupts
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    begin = time.monotonic()
    print(COMMANDS[options.what](options))
    print(f"{options.what}: passed in {time.monotonic() - begin:.0f} s")


def machine(options):
    from tests.soak.machine import run_machine

    return f"{run_machine(seconds=options.seconds, number=options.seed)} programs of 50 steps"


COMMANDS = {"machine": machine}

if __name__ == "__main__":
    main()
