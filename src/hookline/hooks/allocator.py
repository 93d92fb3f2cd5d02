"""What a device's allocator tells: how much is allocated, and how much was at the most."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch

from hookline.errors import HookValueError


class Reading(NamedTuple):
    """The figures of an allocator, in bytes.

    Attributes:
        allocated: what is allocated now.
        peak: the most that was, since the peak was last forgotten.
    """

    allocated: int
    peak: int


@runtime_checkable
class Allocator(Protocol):
    """Where the figures come from.

    Attributes:
        peaks: whether each call's peak is wanted, so that earlier ones may be forgotten.
    """

    peaks: bool

    def read(self) -> Reading | None:
        """The figures now; None where no device is in use."""
        ...

    def forget_peak(self) -> None:
        """From now on the peak is that of what comes."""
        ...


class CudaAllocator:
    """The allocator of the current CUDA device; nothing waits for the device.

    Args:
        peaks: whether the peak is forgotten at the begin of each call, so that it is the call's.

    Raises:
        HookValueError: peaks are wanted, and there is no CUDA device.
    """

    def __init__(self, *, peaks: bool) -> None:
        if peaks and not torch.cuda.is_available():
            msg = "peaks=True needs a CUDA device, and there is none; leave it out"
            raise HookValueError(msg)
        self.peaks = peaks

    def read(self) -> Reading | None:
        """The figures now."""
        if not torch.cuda.is_initialized():
            return None
        figures = torch.cuda.memory_stats_as_nested_dict().get("allocated_bytes")
        if figures is None:
            return Reading(0, 0)
        return Reading(figures["all"]["current"], figures["all"]["peak"])

    def forget_peak(self) -> None:
        """Start the peak anew, for all who read it."""
        torch.cuda.reset_peak_memory_stats()
