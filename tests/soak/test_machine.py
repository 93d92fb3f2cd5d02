from hypothesis import settings
from tests.soak.machine import Machine
import os
TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=int(os.environ.get("N",100)), stateful_step_count=30, deadline=None, report_multiple_bugs=False, database=None)
