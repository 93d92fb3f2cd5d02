"""Ends in the way that its argument names."""

# A traceback shows the raising line, so that is kept as a user would write it.
# ruff: noqa: EM101

import atexit
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def chained():
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("what the user sees") from error


def group():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def noted():
    error = RuntimeError("with a note")
    error.add_note("the note")
    raise error


def in_a_library():
    import json

    json.loads("{")


def bad_import():
    import broken  # noqa: F401


def interrupt():
    raise KeyboardInterrupt


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def handled_by_hook():
    def hook(kind, value, traceback):
        print("the program's hook:", kind, value, traceback.tb_lineno, traceback.tb_next)
        print(value.__traceback__ is traceback is sys.last_traceback, sys.excepthook is hook)

    sys.excepthook = hook
    raise ValueError("for the hook")


def hook_fails():
    def hook(kind, value, traceback):
        raise TypeError("in the hook")

    sys.excepthook = hook
    chained()


def hook_exits():
    sys.excepthook = lambda *_: sys.exit(5)
    chained()


def exit_handlers():
    atexit.register(lambda: print("handler:", "__file__" in globals(), "__cached__" in globals()))


def exit_handlers_after_exit():
    exit_handlers()
    sys.exit(4)


def exit_handlers_after_error():
    exit_handlers()
    chained()


def exit_handler_fails():
    atexit.register(chained)


def thread_goes_on():
    def work():
        time.sleep(0.1)
        print("thread:", threading.main_thread().is_alive())

    threading.Thread(target=work).start()
    chained()


def thread_fails():
    thread = threading.Thread(target=chained, name="worker")
    thread.start()
    thread.join()


def pool_left_open():
    pool = ThreadPoolExecutor(1)
    print(pool.submit(pow, 2, 3).result())


def streams_replaced():
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.excepthook = lambda *_: None
    chained()


def fork():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    print("parent" if child else "child")


def fork_fails():
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        chained()


ENDINGS = {
    "nothing": lambda: None,
    "status": lambda: sys.exit(3),
    "large status": lambda: sys.exit(1000),
    "text": lambda: sys.exit("a text"),
    "none": lambda: sys.exit(None),
    "object": lambda: sys.exit(["a list"]),
    "quit": lambda: quit(6),  # noqa: PLR1722 (another way than `sys.exit`)
    **{
        function.__name__: function
        for function in (
            chained,
            group,
            noted,
            in_a_library,
            bad_import,
            interrupt,
            ctrl_c,
            handled_by_hook,
            hook_fails,
            hook_exits,
            exit_handlers,
            exit_handlers_after_exit,
            exit_handlers_after_error,
            exit_handler_fails,
            thread_goes_on,
            thread_fails,
            pool_left_open,
            streams_replaced,
            fork,
            fork_fails,
        )
    },
}

if __name__ == "__main__":
    ENDINGS[sys.argv[1]]()
