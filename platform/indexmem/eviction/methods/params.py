"""Parameters of methods that are more than numbers: validated like a spec's own sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError

from indexmem.config.schema import Section
from indexmem.errors import UserError


class Params(Section):
    """Base of a method's parameters."""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Validate a method's parameters. Raises UserError naming each wrong one and what it must be."""
        try:
            return cls.model_validate(dict(params))
        except ValidationError as error:
            raise UserError("; ".join(map(_explain, error.errors()))) from None


def _explain(item: Any) -> str:
    where = ".".join(map(str, item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    return f"parameter '{where}': {message}, got {item['input']!r}" if where else message
