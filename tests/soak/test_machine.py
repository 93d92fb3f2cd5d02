"""Random programs of hooks against the rules written apart.

`python -m tests.soak machine` goes on for as long as one wants.
"""

from hypothesis import settings

from tests.soak.machine import Machine

TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, database=None
)
