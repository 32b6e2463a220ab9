"""How methods are built from the parameters of a spec: one factory for each way in which a method takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from kvpress import ScorerPress

from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.kvpress_scores import KvpressMethod
from indexmem.eviction.methods.params import check_params

Build = Callable[[Mapping[str, Any], MethodContext], EvictionMethod]


@dataclass(frozen=True)
class Entry:
    """A registered method. `build` raises UserError for parameters that it does not have or that are wrong."""

    scores: str  # what it scores tokens by, in a line
    kind: type[EvictionMethod]
    build: Build


def from_press(
    scores: str, press: type[ScorerPress], kind: type[KvpressMethod] = KvpressMethod, extra: tuple[str, ...] = ()
) -> Entry:
    """A scorer of kvpress with its press' own parameters, but for the budget, and `extra` ones of the method."""
    of_press = [field.name for field in fields(press) if field.name != "compression_ratio"]

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, (*of_press, *extra), get_type_hints(press) | get_type_hints(kind.__init__))
        own = {name: params[name] for name in extra if name in params}
        return kind(press(**{name: value for name, value in params.items() if name not in extra}), **own)

    return Entry(scores, kind, build)


def from_params(scores: str, kind: type[EvictionMethod], allowed: tuple[str, ...] = ()) -> Entry:
    """A method that its parameters alone describe."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, allowed, get_type_hints(kind.__init__))
        return kind(**params)

    return Entry(scores, kind, build)


def from_model(scores: str, kind: type[Any], *allowed: str) -> Entry:
    """A method that is built for a model: its constructor takes the MethodContext first."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, allowed, get_type_hints(kind.__init__))
        return kind(context, **params)

    return Entry(scores, kind, build)


def from_checkpoint(scores: str, kind: type[Any], *allowed: str) -> Entry:
    """A method with modules that a spec trains: its constructor takes their folder and the MethodContext."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, ("checkpoint", *allowed), get_type_hints(kind.__init__))
        folder = params.get("checkpoint") or context.checkpoint
        if folder is None:
            raise UserError("needs a trained checkpoint: distil one first, or set indexer.checkpoint=FOLDER")
        return kind(str(folder), context, **{name: params[name] for name in allowed if name in params})

    return Entry(scores, kind, build)
