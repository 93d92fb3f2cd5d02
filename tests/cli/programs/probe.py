"""Prints all that a program can see of how it was started."""

# The first thing to look at is which names are there before any import.
# ruff: noqa: E402

NAMES = list(globals())

import gc
import json
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

main = sys.modules["__main__"]
spec = __spec__ and {
    "name": __spec__.name,
    "origin": __spec__.origin,
    "cached": __spec__.cached,
    "loader": type(__spec__.loader).__name__,
}
seen = {
    "names": NAMES,
    "main is this": vars(main) is globals(),
    "repr": repr(main),
    "__name__": __name__,
    "__doc__": __doc__,
    "__file__": __file__,
    "__cached__": __cached__,
    "__package__": __package__,
    "__spec__": spec,
    "__loader__": f"{type(__loader__).__module__}.{type(__loader__).__name__}",
    "__loader__.name": getattr(__loader__, "name", None),
    "__loader__.path": getattr(__loader__, "path", None),
    "__builtins__": repr(__builtins__),
    "__annotations__": __annotations__,
    "builtins": sorted(vars(__builtins__)),
    "argv": sys.argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "folder": str(Path.cwd()),
    "stdin": sys.stdin.read() if not sys.stdin.isatty() else None,
    "streams": [
        [each.name, each.isatty(), each.encoding, each.errors, each.line_buffering, str(type(each))]
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "original streams": sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__,
    "hooks": [
        sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__,
        threading.excepthook is threading.__excepthook__,
        sys.unraisablehook is sys.__unraisablehook__,
    ],
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGPIPE)],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "threads": [each.name for each in threading.enumerate()],
    "tracing": [sys.gettrace() is None, sys.getprofile() is None],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold()],
    "filters": [str(each) for each in warnings.filters],
    "being handled": str(sys.exc_info()),
    "executable": sys.executable,
    "last line of the stack": traceback.format_stack()[-1],
}
print(json.dumps(seen, indent=1))
print("a word on stderr", file=sys.stderr)
