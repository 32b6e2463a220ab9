"""`share` and `floor`, which every method takes that scores heads apart: `{name: snapkv, params: {share: model}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from indexmem.config.modules import FLOOR, Across
from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.params import Params
from indexmem.eviction.methods.simple import FullCache
from indexmem.eviction.methods.wrapping import decides
from indexmem.eviction.selection import PER_HEAD, Shared


class SharingConfig(Params):
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
    if decides(method) or (isinstance(method, FullCache) and not apart):
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
