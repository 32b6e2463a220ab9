"""Mistakes that a user can correct, and errors that are the machine's.

A method's own error costs its rows; the machine's asks for less at once, or for another machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import walk_tb
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)

CPU_ALLOCATOR = "DefaultCPUAllocator"  # in main memory torch raises a plain RuntimeError


class UserError(ValueError):
    """A mistake in what the user wrote or pointed at.

    The message says what is wrong, what was expected, and what to type. Commands print it without a traceback and
    exit with code 2, before Ray starts or a GPU is taken.
    """


def detached(error: Error) -> Error:
    """The error without its traceback, whose frames would keep tensors alive; a note says where it was raised."""
    frames = list(walk_tb(error.__traceback__))
    if frames and not hasattr(error, "__notes__"):  # the first place counts, however often it is raised again
        frame, line = frames[-1]
        error.add_note(f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{line}")
    return error.with_traceback(None)


def out_of_memory(error: BaseException) -> bool:
    """Whether less at once may work."""
    return isinstance(error, (MemoryError, *_of_torch("OutOfMemoryError"))) or CPU_ALLOCATOR in str(error)


def device_lost(error: BaseException) -> bool:
    """Whether nothing works on the device after this."""
    return isinstance(error, _of_torch("AcceleratorError"))


def of_machine(error: BaseException) -> bool:
    """Whether it would have happened to any method."""
    return out_of_memory(error) or device_lost(error)


def _of_torch(name: str) -> tuple[type[BaseException], ...]:
    """A class of torch's errors; without torch, which is never imported for this, there is no such error."""
    torch = sys.modules.get("torch")
    return () if torch is None else (getattr(torch, name),)
