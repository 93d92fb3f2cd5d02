"""The `hookline` command with a recorder that records nothing, so that no torch is loaded.

The variable FAULT names the method of the recorder that fails.
"""

import os
import sys
import types

from hookline.cli.main import main


class Recorder:
    def __init__(self, *, time, level):
        self.faults = []
        self._fail_in("__init__")

    def __enter__(self):
        self._fail_in("__enter__")
        return self

    def __exit__(self, *_):
        self._fail_in("__exit__")

    def rows(self):
        self._fail_in("rows")
        return []

    def _fail_in(self, method):
        if os.environ.get("FAULT") == method:
            msg = f"the recorder failed in {method}"
            raise RuntimeError(msg)


sys.modules["hookline.record.run"] = types.ModuleType("hookline.record.run")
sys.modules["hookline.record.run"].Recorder = Recorder

if __name__ == "__main__":
    main()
