"""Runs a program so that it sees what it would see under `python`.

Python itself ends the process: a `Program` lets whatever the program raised pass on to the
interpreter, which then prints, joins threads, runs exit handlers and picks the exit status as
ever. Only the traceback is cut first, to begin where the program begins.
"""

# The program must see paths exactly as Python spells them, and `Path` tidies them up.
# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import atexit
import builtins
import contextlib
import difflib
import os
import pkgutil
import runpy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import cast

from hookline.errors import HooklineError


class ProgramError(HooklineError):
    """There is no such program: nothing was run."""


class Program(ABC):
    """A program that can be run in this process, once.

    Args:
        argv: its `sys.argv`.
        folder: where it finds its own modules, the first entry of `sys.path`.
    """

    def __init__(self, argv: list[str], folder: str) -> None:
        self.argv = argv
        self.folder = folder
        self._error: BaseException | None = None

    @staticmethod
    def from_args(target: str, args: Iterable[str] = (), *, as_module: bool = False) -> Program:
        """The program that `python target args…` or `python -m target args…` would run.

        Nothing of it is imported or run yet, and no state of the process changes.

        Raises:
            ProgramError: if `target` can't be read, or is a folder without a `__main__.py`.
        """
        if as_module:
            return _Module(target, args)
        kind = _Container if pkgutil.get_importer(_absolute(target)) else _Script
        return kind(target, args)

    def prepare(self) -> None:
        """Make `sys.argv`, `sys.path` and `__main__` the program's."""
        sys.argv = self.argv
        self._set_path()
        sys.modules["__main__"] = _fresh_main()

    def run(self, around: AbstractContextManager[object] | None = None) -> None:
        """Run it to its end; what it raised comes out, ready for Python to print.

        Args:
            around: entered before the program starts, and left when all that belongs to it is
                over: its threads are joined, its exit handlers ran, its traceback is printed.
                It is left with what the program raised, if anything, and never in a forked child.

        Raises:
            ProgramError: if there is no such module; `around` was left with this error.
        """
        leave = self._enter(around) if around else None
        try:
            self._execute()
        except ProgramError as error:
            self._error = error
            if leave:
                atexit.unregister(leave)
                leave()
            raise
        except SystemExit as end:
            self._error = SystemExit(end.code)  # without its frames, which end now
            raise
        except BaseException as error:
            self._error = error
            _print_without_us(error, then=self._forget)
            raise
        else:
            self._forget()

    @abstractmethod
    def _execute(self) -> None:
        """Run the program's code as `__main__`."""

    def _enter(self, around: AbstractContextManager[object]) -> Callable[[], None]:
        """Enter; leave when Python runs exit handlers: ours comes first here, so it runs last."""
        around.__enter__()
        process = os.getpid()

        def leave() -> None:
            if os.getpid() == process:
                error = self._error
                around.__exit__(type(error) if error else None, error, None)
                if isinstance(error, KeyboardInterrupt):
                    _remember_interrupt()

        atexit.register(leave)
        return leave

    def _set_path(self) -> None:
        # Python put the folder of hookline's own script, or the current one, there.
        if not sys.flags.safe_path:
            sys.path[:1] = [self.folder]

    def _forget(self) -> None:  # noqa: B027 - only plain scripts have something to forget
        """What Python does when the program's code has run."""


class _Script(Program):
    """One file: `python script.py`."""

    def __init__(self, target: str, args: Iterable[str]) -> None:
        super().__init__([target, *args], os.path.dirname(os.path.realpath(target)))
        self._path = _absolute(target)
        try:
            # Read now: a pipe can be read only once, and what fails should fail before a start.
            self._content = Path(self._path).read_bytes()
        except OSError as error:
            msg = f"can't open {target!r}: {error.strerror or error}{_near_names(self._path)}"
            raise ProgramError(msg) from error

    def _execute(self) -> None:
        compiled = self._path.endswith(".pyc")
        loader = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", self._path)
        namespace = vars(sys.modules["__main__"])
        namespace |= {"__file__": self._path, "__cached__": None, "__loader__": loader}
        exec(self._code(loader), namespace)  # noqa: S102 - what the user asked for

    def _code(self, loader: SourceFileLoader | SourcelessFileLoader) -> CodeType:
        if isinstance(loader, SourcelessFileLoader):
            return cast("CodeType", loader.get_code("__main__"))
        return compile(self._content, self._path, "exec", dont_inherit=True)

    def _forget(self) -> None:
        # Exit handlers of a plain script do not see these either.
        namespace = vars(sys.modules["__main__"])
        for name in ("__file__", "__cached__"):
            namespace.pop(name, None)


class _Container(Program):
    """A folder or zip file with a `__main__.py`: `python folder`."""

    def __init__(self, target: str, args: Iterable[str]) -> None:
        super().__init__([target, *args], _absolute(target))
        importer = pkgutil.get_importer(self.folder)
        if importer is None or importer.find_spec("__main__") is None:
            msg = (
                f"can't run {target!r}: there is no __main__.py in it. "
                "Name a script, or give a module with -m"
            )
            raise ProgramError(msg)

    def _set_path(self) -> None:
        super()._set_path()
        if sys.flags.safe_path:
            sys.path.insert(0, self.folder)

    def _execute(self) -> None:
        _run_as_python("__main__", alter_argv=False)


class _Module(Program):
    """A module or package found on `sys.path`: `python -m module`."""

    def __init__(self, name: str, args: Iterable[str]) -> None:
        super().__init__(["-m", *args], str(Path.cwd()))
        self._name = name

    def _execute(self) -> None:
        _run_as_python(self._name, alter_argv=True)


def _run_as_python(name: str, *, alter_argv: bool) -> None:
    """Run a module by the function that the interpreter itself calls for it.

    Its public sisters make a module of their own, or leave `__main__` without its spec, which
    spawned processes need; and tracebacks would tell them apart.
    """
    try:
        runpy._run_module_as_main(name, alter_argv)  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
    except SystemExit as end:
        if isinstance(end.__context__, runpy._Error):  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
            msg = f"can't run the module {name!r}: {end.__context__}"
            raise ProgramError(msg) from None
        raise


def _absolute(path: str) -> str:
    """The absolute form of a path as Python gives it to `__file__`: joined, not normalized."""
    if os.name == "nt":
        return os.path.abspath(path)
    if path in {"", "."}:
        return str(Path.cwd())
    return os.path.join(str(Path.cwd()), path)


def _near_names(path: str) -> str:
    wanted = Path(path)
    try:
        names = [each.name for each in wanted.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(wanted.name, names)
    return f" (near it: {', '.join(near)})" if near else ""


def _fresh_main() -> ModuleType:
    """A `__main__` as a starting interpreter has it, with names in the same order."""
    main = ModuleType("__main__")
    namespace = vars(main)
    # Whether there are annotations from the start depends on the version of Python.
    if "__annotations__" in vars(sys.modules["__main__"]):
        namespace |= {"__annotations__": {}}
    namespace["__builtins__"] = builtins
    return main


def _remember_interrupt() -> None:
    """Let Python end the process by the signal, as it does after Ctrl-C.

    What it goes by is how the last piece of source that was run has ended; a report that makes a
    named tuple or a dataclass runs one.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102


def _print_without_us(error: BaseException, then: Callable[[], None]) -> None:
    """Have Python print this error with a traceback that begins in the program.

    Our frames are cut off when the error has passed them all: in `sys.excepthook`, where we
    stand in once for the program's hook and hand over to it.
    """
    hook = sys.excepthook
    traceback = _cut(error.__traceback__)

    def print_once(
        kind: type[BaseException], value: BaseException, full: TracebackType | None
    ) -> None:
        sys.excepthook = hook
        if value is error:
            value.__traceback__ = sys.last_traceback = full = traceback
        _call_hook(hook, kind, value, full)
        then()

    sys.excepthook = print_once


def _call_hook(
    hook: Callable[..., object],
    kind: type[BaseException],
    value: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Call a hook as Python does, which also says so if the hook fails."""
    try:
        hook(kind, value, traceback)
    except SystemExit:
        raise
    except BaseException as failure:  # noqa: BLE001 - Python catches all here too
        sys.stderr.write("Error in sys.excepthook:\n")
        failure.__traceback__ = _cut(failure.__traceback__)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, value, traceback)


def _cut(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this file that it begins with."""
    while traceback and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    return traceback
