"""Where captured calls are kept, within bounds, and the mapping through which they are read."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from hookline.core.calls import Root
from hookline.core.patterns import did_you_mean, split_address
from hookline.errors import CaptureKeyError, CaptureLimitError, HookValueError
from hookline.hooks.captured import Captured
from hookline.hooks.captured_call import About, CapturedCall
from hookline.hooks.keep import bytes_of
from hookline.torch_base.selection import listed

Calls: TypeAlias = Literal["all", "first", "last"]
Overflow: TypeAlias = Literal["error", "oldest"]
_SHOWN: Final = 20
Place: TypeAlias = tuple[Root, str]
Entries: TypeAlias = dict[Place, Captured]


class Store:
    """The captured calls, by root and name.

    Args:
        calls: which calls of each module or function to hold.
        limit: the most bytes to hold, or None.
        overflow: whether going beyond is an error, or the oldest calls give way.

    Raises:
        HookValueError: an option has a value that there is not.
    """

    __slots__ = (
        "_cleared",
        "_held",
        "_lock",
        "_named",
        "_order",
        "_overflow",
        "calls",
        "dropped",
        "entries",
        "is_bounded",
        "limit",
    )

    def __init__(
        self, calls: Calls = "all", limit: int | None = None, overflow: Overflow = "error"
    ) -> None:
        _check_choice("calls", calls, ("all", "first", "last"))
        _check_choice("overflow", overflow, ("error", "oldest"))
        if limit is not None and (not isinstance(limit, int) or limit <= 0):
            msg = f"limit= is a number of bytes, such as 2**30, not {limit!r}"
            raise HookValueError(msg)
        if limit is None and overflow == "oldest":
            msg = 'overflow="oldest" needs limit=, the number of bytes to stay within'
            raise HookValueError(msg)
        self.entries: Final[Entries] = {}
        self.calls: Final = calls
        self.limit: Final = limit
        self.dropped = 0
        self.is_bounded: Final = calls != "all" or limit is not None
        self._overflow: Final = overflow
        self._order: Final[dict[CapturedCall, tuple[Captured, int]]] = {}
        self._held = self._cleared = 0
        self._lock: Final = threading.Lock()
        self._named: tuple[tuple[int, int], dict[str, Captured]] = (0, 0), {}

    def __reduce__(self) -> tuple[Any, ...]:
        # What is captured from here on goes into this one.
        return Store, (), (None, {"entries": dict(self.entries), "dropped": self.dropped})

    def entry(self, root: Root, about: About) -> Captured:
        """The place for the calls of one module or function."""
        held: deque[CapturedCall] = deque(maxlen=1 if self.calls == "last" else None)
        return self.entries.setdefault((root, about.name), Captured(about, root.name, held))

    def accepts(self, entry: Captured) -> bool:
        """Whether another call is to be held; where only the last is, the one before goes."""
        if self.calls == "first":
            return not entry.held
        if self.calls == "last" and self.limit is not None:
            with self._lock:
                for call in list(entry.held):
                    self._forget(call)
        return True

    def added(self, entry: Captured, call: CapturedCall) -> None:
        """Count a call that is held now, and stay within the limit.

        Raises:
            CaptureLimitError: it does not fit.
        """
        if self.limit is not None:
            with self._lock:
                self._order[call] = (entry, 0)
                self._grow(call, call.nbytes)

    def grew(self, call: CapturedCall, what: str) -> None:
        """Count what a call that is held got later.

        Raises:
            CaptureLimitError: it does not fit.
        """
        if self.limit is not None:
            with self._lock:
                if call in self._order:
                    self._grow(call, bytes_of(call.values[what]))

    def _grow(self, call: CapturedCall, by: int) -> None:
        limit = self.limit
        assert limit is not None
        entry, size = self._order[call]
        self._order[call] = (entry, size + by)
        self._held += by
        while self._held > limit and self._overflow == "oldest" and len(self._order) > 1:
            oldest = next(each for each in self._order if each is not call)
            self._order[oldest][0].dropped += 1
            self._forget(oldest)
            self.dropped += 1
        if self._held > limit:
            held = self._held
            self._forget(call)
            msg = (
                f"capturing {call.describe()} takes {held:,} bytes, more than limit={limit:,}; "
                'select fewer modules, use reduce=, dtype=, calls="last" or overflow="oldest", or '
                "raise the limit"
            )
            raise CaptureLimitError(msg)

    def _forget(self, call: CapturedCall) -> None:
        entry, size = self._order.pop(call)
        self._held -= size
        entry.held.remove(call)

    @property
    def nbytes(self) -> int:
        """The bytes held."""
        return sum(call.nbytes for entry in list(self.entries.values()) for call in entry)

    def clear(self) -> None:
        """Forget what was captured."""
        with self._lock:
            self.entries.clear()
            self._order.clear()
            self._held = self.dropped = 0
            self._cleared += 1
            self._named = (self._cleared, 0), {}

    def named(self) -> dict[str, Captured]:
        """What was captured by its name, which is made once for all that is read.

        Entries only grow in number until all are cleared: the two tell whether names are new.
        """
        known, named = self._named
        if known != (self._cleared, len(self.entries)):
            cleared, entries = self._cleared, list(self.entries.items())
            names = Counter(name for (_, name), _ in entries)
            named = {_qualified(e) if names[e.name] > 1 else e.name: e for _, e in entries}
            self._named = (cleared, len(entries)), named
        return named


def _check_choice(option: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        msg = f"{option}={given!r} is unknown; choose one of {', '.join(map(repr, choices))}"
        raise HookValueError(msg)


class Captures(Mapping[str, Captured]):
    """What was captured, by path (`"layers.0"`, `""` for the root) or address (`"layers.0:add"`).

    Names are in the order in which they were captured first, and paths are those in the model that
    was given, also where it is called inside a larger one. If several roots share a name, the
    root's name stands before it: `Generator.fc`. A shared module is found under each of its
    paths, unless it was captured under several.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        >>> with hookline.capture(model, "*") as acts:
        ...     _ = model(torch.ones(2, 3))
        >>> list(acts), acts["1"].output.shape, acts.nbytes
        (['0', '1'], torch.Size([2, 4]), 64)
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, name: str) -> Captured:
        """What was captured under a path or address.

        Raises:
            CaptureKeyError: nothing was; the message gives near names and the likely cause.
        """
        named = self._store.named()
        found = named.get(name)
        if found is None and isinstance(name, str):
            found = self._otherwise(name, named)
        if found is None:
            raise CaptureKeyError(self._missing(name))
        return found

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except CaptureKeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.named())

    def __len__(self) -> int:
        return len(self._store.entries)

    def entries(self) -> list[tuple[Root, Captured]]:
        """What was captured, with the roots that contain it."""
        return [(root, entry) for (root, _), entry in list(self._store.entries.items())]

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors that are held."""
        return self._store.nbytes

    @property
    def dropped(self) -> int:
        """How many calls were dropped to stay within the limit."""
        return self._store.dropped

    @property
    def passes(self) -> list[int]:
        """The numbers of the passes that were captured."""
        return sorted({number for entry in self.values() for number in entry.passes})

    def in_pass(self, number: int) -> Captures:
        """What was captured in one pass.

        Args:
            number: of the pass, counted for each root since hookline first saw it.
        """
        part = Store()
        for key, entry in list(self._store.entries.items()):
            found = entry.in_pass(number)
            if found:
                part.entries[key] = found
        return Captures(part)

    def clear(self) -> None:
        """Forget what was captured so far."""
        self._store.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was captured to a file in the format of safetensors.

        Args:
            path: the file; an existing one is replaced.

        Raises:
            CaptureError: something captured cannot be stored: a graph, a sparse tensor, …

        Example:
            >>> import tempfile, pathlib, torch, hookline
            >>> model = torch.nn.Sequential(torch.nn.ReLU())
            >>> with hookline.capture(model, "0") as acts:
            ...     _ = model(torch.ones(2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     file = pathlib.Path(folder, "acts.safetensors")
            ...     acts.save(file)
            ...     hookline.load_capture(file)["0"].output
            tensor([1., 1.])
        """
        from hookline.hooks.capture_file import save

        save(self, path)

    def _otherwise(self, name: str, named: dict[str, Captured]) -> Captured | None:
        """What a name means that is not one under which something was captured."""
        address = split_address(name)
        if address is not None and address[1].index is not None:
            entry = named.get(name[: name.rindex("[")])
            return None if entry is None else entry.where(index=address[1].index)
        root = named.get("")
        if root is not None and root.root == name:
            return root
        found = [entry for entry in self._store.entries.values() if name in entry.paths]
        if len(found) > 1:
            paths = ", ".join(repr(entry.name) for entry in found)
            msg = f"{name!r} is a shared module that was called as {paths}; choose one of these"
            raise CaptureKeyError(msg)
        return found[0] if found else None

    def _missing(self, name: str) -> str:
        if not isinstance(name, str):
            return f"captures are found by path or address, a str, not by {name!r}"
        return f"nothing was captured under {name!r}{self._why(name)}"

    def _why(self, name: str) -> str:
        """Why nothing was captured under a name, as the end of an error's text."""
        return near_or_all(name, "there are", list(self))

    def __repr__(self) -> str:
        entries = list(self.values())
        lines = [f"\n  {entry!r}" for entry in entries[:_SHOWN]]
        lines += [f"\n  and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
        shown = "".join(lines)
        return f"<{type(self).__name__}: {len(self)} names, {self.nbytes:,} bytes{shown}>"


def near_or_all(name: str, which: str, names: Sequence[str]) -> str:
    """The end of an error's text: names that may have been meant, else those that there are."""
    near = get_close_matches(name, [other for other in names if other != name])
    return did_you_mean(near) or f"; {which} {listed(names) or 'no names'}"


def _qualified(entry: Captured) -> str:
    return f"{entry.root}.{entry.name}" if entry.name else entry.root
