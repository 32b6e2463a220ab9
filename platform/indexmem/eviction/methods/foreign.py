"""Methods of somebody's own package or file, and any scorer of kvpress by its class: the same entries as for ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, get_type_hints

from kvpress import ScorerPress

from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.factories import Build, MethodEntry, from_model, from_params, from_press
from indexmem.plugins.load import Found, find

EXPECTED = "a subclass of indexmem.eviction.methods.base.EvictionMethod, or a scorer of kvpress (ScorerPress)"


def foreign_entry(name: str) -> MethodEntry | None:
    """What a reference or an entry point names; None for another name. Raises UserError for what is no method."""
    found = find("methods", name)
    if found is None:
        return None
    entry = _entry(found, name)
    return replace(entry, build=_guarded(entry.build, found.code))


def _entry(found: Found, name: str) -> MethodEntry:
    kind = found.value
    if not isinstance(kind, type):
        raise UserError(f"'{name}' is no class. Expected {EXPECTED}.")
    if issubclass(kind, ScorerPress):
        press: type[ScorerPress] = kind
        if press.compress is not ScorerPress.compress:
            raise UserError(f"'{name}' does more than score, so its scores alone would be another method.")
        return from_press(found.said, press)
    if not issubclass(kind, EvictionMethod):
        raise UserError(f"'{name}' is no eviction method. Expected {EXPECTED}.")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"'{name}' does not say {', '.join(missing)}, which every method must.")
    return (from_model if _takes_context(kind) else from_params)(found.said, kind)


def _takes_context(kind: type[Any]) -> bool:
    """Whether the constructor's first parameter is the MethodContext."""
    first = next(iter(list(signature(kind).parameters)), None)
    return first is not None and get_type_hints(kind.__init__).get(first) is MethodContext


def _guarded(build: Build, code: str) -> Build:
    """`build`, which also says what computes; whatever else a constructor raises is a mistake that its author mends."""

    def built(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        try:
            method = build(params, context)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"cannot be made: {type(error).__name__}: {error}") from error
        method.code = code
        return method

    return built
