"""Names of runs: what they may be, and those that name their model and length by themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def with_filled_name(raw: Mapping[str, Any], model: str, length: int) -> dict[str, Any]:
    """A raw spec whose `name` has the last part of `model.id` in the place of '{model}' and `grid.length` in that of
    '{length}', so that runs of one file do not write over each other's reports. `model` and `length` are the defaults.
    """
    name = raw.get("name")
    if not isinstance(name, str) or "{" not in name:
        return dict(raw)
    model = str(_setting(raw, "model", "id", model))
    filled = name.replace("{model}", re.sub(r"[^A-Za-z0-9_.-]+", "-", PurePath(model).name))
    return {**raw, "name": filled.replace("{length}", str(_setting(raw, "grid", "length", length)))}


def _setting(raw: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    values = raw.get(section)
    return values.get(key, default) if isinstance(values, Mapping) else default
