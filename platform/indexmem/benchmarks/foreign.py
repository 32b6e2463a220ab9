"""Benchmarks of somebody's own package or file: factories as ours are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from indexmem.benchmarks.base import Benchmark
from indexmem.errors import UserError
from indexmem.plugins.load import Found, find

EXPECTED = "a function that returns a Benchmark or several (indexmem.benchmarks.base)"


def foreign_factory(name: str) -> Callable[..., Sequence[Benchmark]] | None:
    """What a reference or an entry point names; None for another name. Raises UserError for what is no factory."""
    found = find("benchmarks", name)
    if found is None:
        return None
    if not callable(found.value) or isinstance(found.value, type):
        raise UserError(f"'{name}' is no function. Expected {EXPECTED}.")
    return _checked(found, name)


def _checked(found: Found, name: str) -> Callable[..., Sequence[Benchmark]]:
    """The factory, whose benchmarks also say what computes them; whatever it raises is a mistake of its author."""

    @functools.wraps(found.value)
    def factory(*args: Any, **params: Any) -> Sequence[Benchmark]:
        try:
            made = found.value(*args, **params)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"Benchmark '{name}' cannot be made: {type(error).__name__}: {error}") from error
        several = [made] if isinstance(made, Benchmark) else made
        if not isinstance(several, list | tuple) or not all(isinstance(each, Benchmark) for each in several):
            raise UserError(f"'{name}' returned {type(made).__name__}. Expected {EXPECTED}.")
        return [replace(each, code=found.code) for each in several]

    return factory
