"""Numbering calls from when a hook is on, over passes: the steps of a text generation, say."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from hookline.core.calls import Call

_REMEMBERED: Final = 64


class Numbers:
    """Gives each call of a module or function its number, and a repeated one that of the first."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._offsets: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, call: Call, key: Hashable) -> int:
        """The number of a call whose forward begins.

        Args:
            call: the call.
            key: whose call it is.
        """
        place = (key, call.root, call.pass_number)
        with self._lock:
            if call.recomputing:
                return call.index + self._offsets.get(place, 0)
            number = self._counts.get(key, 0)
            self._counts[key] = number + 1
            # Within a pass the index goes on; so what a checkpoint repeats gets its number again.
            self._offsets.setdefault(place, number - call.index)
            if len(self._offsets) > _REMEMBERED * len(self._counts):
                self._offsets.popitem(last=False)
            return number
