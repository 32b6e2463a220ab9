"""What a spec says of a method: parameters, each checked, and `share` and `floor`, which many methods take.

Every method that scores heads apart can share a budget among heads: `{name: snapkv, params: {share: model}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from indexmem.config.modules import FLOOR, Across
from indexmem.config.schema import Section
from indexmem.errors import UserError
from indexmem.eviction.granularity import SetsOfBlocks
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.simple import FullCache
from indexmem.eviction.selection import PER_HEAD, PerHead, Shared


def check_params(params: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise UserError for a parameter that the method does not have, or a value that is not of its type."""
    for name, value in params.items():
        if name not in types:
            raise UserError(f"unknown parameter '{name}'. Allowed: {', '.join(types) or 'none'}.")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise UserError(f"parameter '{name}': {error.errors()[0]['msg']}, got {value!r}") from None


def check_number(name: str, value: object, least: int, example: int, unit: str = "tokens") -> None:
    """Raise UserError unless a parameter is a whole number, `least` or more."""
    if not isinstance(value, int) or value < least:
        raise UserError(f"{name}={value!r} must be a number of {unit}, {least} or more. Example: {name}: {example}")


class MethodParams(Section):
    """Base of a method's parameters."""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Validate a method's parameters. Raises UserError naming each wrong one and what it must be."""
        try:
            return cls.model_validate(dict(params))
        except ValidationError as error:
            raise UserError("; ".join(map(_explain, error.errors()))) from None


class SharingConfig(MethodParams):
    """Which heads share a budget (docs/method.md, 'Budgets that heads share')."""

    share: Across
    floor: Annotated[float, Field(ge=0, le=1)] = Field(FLOOR, description="share of an even budget that a head keeps")


def take_sharing(params: Mapping[str, Any]) -> tuple[SharingConfig | None, dict[str, Any]]:
    """What a method's parameters say of sharing, and the others. Raises UserError for values that are not allowed."""
    of_sharing = {name: value for name, value in params.items() if name in SharingConfig.model_fields}
    others = {name: value for name, value in params.items() if name not in of_sharing}
    if not of_sharing:
        return None, others
    if of_sharing.get("share", "head") == "head" and "floor" in of_sharing:
        raise UserError("floor is a share of what heads share: give share: model or share: layer with it")
    return SharingConfig.of(of_sharing), others


def share(method: EvictionMethod, config: SharingConfig | None) -> EvictionMethod:
    """The method with this sharing, if any is asked for. Raises UserError where heads have nothing to share out."""
    if config is None:
        return method
    apart = config.share == "head"
    if method.decides or (isinstance(method, FullCache) and not apart):
        if apart and not method.selection.shares:
            return method  # whose heads keep what it says, each of its own budget
        raise UserError(f"share={config.share}: the method decides by itself what each head keeps. Leave `share` out")
    if not apart and (not method.per_head or method.cross_layer):
        raise UserError(
            f"share={config.share}: the method gives all KV heads of a layer the same scores, so there is nothing "
            "to share out. Leave `share` out, or use a method that scores heads apart, such as 'snapkv'"
        )
    method.selection = PER_HEAD if apart else Shared(config.share, config.floor, alike=method.layers_alike)
    return method


def in_sets(method: EvictionMethod, granularity: Across, block: int) -> EvictionMethod:
    """The method with one set of tokens for each head, layer or the model, in whole blocks. Raises UserError for one
    that decides by itself what each head keeps.
    """
    if (granularity, block) == ("head", 1) or isinstance(method, FullCache):
        return method
    if method.decides:
        raise UserError(
            f"eviction.granularity={granularity} eviction.block={block}: the method decides by itself what each head "
            "keeps, token by token. Leave both out, or use a method that only scores, such as 'snapkv'"
        )
    assert isinstance(method.selection, PerHead | Shared), "else the method decides"
    method.selection = SetsOfBlocks.of(method.selection, granularity, block)
    return method


def _explain(item: Any) -> str:
    where = ".".join(map(str, item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    return f"parameter '{where}': {message}, got {item['input']!r}" if where else message
