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


def threads(options):
    from tests.soak.threads import run_threads

    rounds = run_threads(seconds=options.seconds / 2)
    rounds += run_threads(seconds=options.seconds / 2, interval=1e-6)
    return f"{rounds} rounds in 8 threads"


def cycles(options):
    from tests.soak.cycles import run_cycles

    return run_cycles(count=options.count, number=options.seed or 0)


def interrupts(options):
    from tests.soak.interrupts import SCENARIOS, faults, points_of

    total, found = 0, []
    for scenario in SCENARIOS:
        count = points_of(scenario)
        total += count
        found += faults(scenario, range(1, count + 1))
        print(f"{scenario.__name__}: {count} points, {len(found)} faults so far", flush=True)
    assert not found, "\n".join(found)
    return f"interrupted at {total} points"


COMMANDS = {"machine": machine, "threads": threads, "cycles": cycles, "interrupts": interrupts}

if __name__ == "__main__":
    main()
