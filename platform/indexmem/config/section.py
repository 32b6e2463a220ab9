"""What every section of a spec is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings that never change once they are read; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    gone: ClassVar[Mapping[str, str]] = MappingProxyType({})  # settings of before -> what to write instead
