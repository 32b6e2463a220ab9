"""Whose fault an exception is: a method's own costs its rows; the machine's asks for less at once, or another one."""

from __future__ import annotations

import torch

CPU_ALLOCATOR = "DefaultCPUAllocator"  # in main memory torch raises a plain RuntimeError


def out_of_memory(error: BaseException) -> bool:
    """Whether less at once may work."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or CPU_ALLOCATOR in str(error)


def device_lost(error: BaseException) -> bool:
    """Whether nothing works on the device after this."""
    return isinstance(error, torch.AcceleratorError)


def of_machine(error: BaseException) -> bool:
    """Whether it would have happened to any method."""
    return out_of_memory(error) or device_lost(error)
