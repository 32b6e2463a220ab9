"""Benchmarks of somebody's own package or file: factories as ours are, or a class whose fields are the settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from inspect import signature
from typing import Any, get_type_hints

from indexmem.benchmarks.base import Benchmark
from indexmem.errors import UserError
from indexmem.plugins.load import Found, find

EXPECTED = "a Benchmark (indexmem.benchmarks.base): its class, or a function that returns one or several"


def foreign_factory(name: str) -> Callable[..., Sequence[Benchmark]] | None:
    """What a reference or an entry point names; None for another name. Raises UserError for what is no factory."""
    found = find("benchmarks", name)
    if found is None:
        return None
    if not callable(found.value):
        raise UserError(f"'{name}' is no function and no class. Expected {EXPECTED}.")
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

    if isinstance(found.value, type):
        _take_fields(factory, found.value)
    return factory


def _take_fields(factory: Any, kind: type[Any]) -> None:
    """Let a class' factory take what its constructor takes, but for what the registry sets."""
    taken, hints = signature(kind), get_type_hints(kind if is_dataclass(kind) else kind.__init__)
    named = [each for each in taken.parameters.values() if each.name != "code"]
    factory.__signature__ = taken.replace(
        parameters=[each.replace(annotation=hints.get(each.name, each.annotation)) for each in named]
    )
    factory.__annotations__ = hints
