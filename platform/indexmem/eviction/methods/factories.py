"""How methods are built from the parameters of a spec: one factory for each way in which a constructor takes them.

Which parameters a spec may give, and of which types, is what the constructor's signature says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, get_type_hints

from kvpress import ScorerPress

from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.kvpress_scores import KvpressMethod
from indexmem.eviction.methods.params import check_params

Build = Callable[[Mapping[str, Any], MethodContext], EvictionMethod]


@dataclass(frozen=True)
class MethodEntry:
    """A registered method. `build` raises UserError for parameters that it does not have or that are wrong."""

    scores: str  # what it scores tokens by, in a line
    kind: type[EvictionMethod]
    build: Build
    of_model: bool = False  # built of weights or head scores for one geometry

    @property
    def ranks_growing_caches(self) -> bool:
        """Whether it can also rank a cache while an answer is decoded."""
        return self.kind.decode_scorer is not EvictionMethod.decode_scorer


def from_params(scores: str, kind: type[Any]) -> MethodEntry:
    """A method that its parameters alone describe."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, _parameters(kind))
        return kind(**params)

    return MethodEntry(scores, kind, build)


def from_model(scores: str, kind: type[Any]) -> MethodEntry:
    """A method that is built for a model: its constructor takes the MethodContext first."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, _parameters(kind, given=1))
        return kind(context, **params)

    return MethodEntry(scores, kind, build, of_model=True)


def from_checkpoint(scores: str, kind: type[Any]) -> MethodEntry:
    """A method with modules that a spec trains: its constructor takes their folder and the MethodContext first."""

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        check_params(params, {"checkpoint": Any} | _parameters(kind, given=2))
        own = {name: value for name, value in params.items() if name != "checkpoint"}
        return kind(trained_folder(params, context, "checkpoint"), context, **own)

    return MethodEntry(scores, kind, build, of_model=True)


def from_press(scores: str, press: type[ScorerPress], kind: type[KvpressMethod] = KvpressMethod) -> MethodEntry:
    """A scorer of kvpress: its press' own parameters, but for the budget, and those of the method besides the press."""
    types = get_type_hints(press)
    of_press = {field.name: types[field.name] for field in fields(press) if field.name != "compression_ratio"}

    def build(params: Mapping[str, Any], context: MethodContext) -> EvictionMethod:
        of_method = _parameters(kind, given=1)
        check_params(params, of_press | of_method)
        own = {name: params[name] for name in of_method if name in params}
        return kind(press(**{name: value for name, value in params.items() if name not in own}), **own)

    return MethodEntry(scores, kind, build)


def trained_folder(params: Mapping[str, Any], context: MethodContext, what: str) -> str:
    """Folder of what a spec trains. Raises UserError that says how to get one."""
    folder = params.get("checkpoint") or context.checkpoint
    if folder is None:
        raise UserError(f"needs a trained {what}: distil one first, or set indexer.checkpoint=FOLDER")
    return str(folder)


def _parameters(kind: type[Any], given: int = 0) -> dict[str, Any]:
    """Names and types of a constructor's parameters, without the first ones, which the factory gives."""
    types = get_type_hints(kind.__init__)
    names = [name for name, of in signature(kind).parameters.items() if of.kind is not of.VAR_POSITIONAL]
    return {name: types.get(name, Any) for name in names[given:]}
