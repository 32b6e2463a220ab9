"""How the next token is chosen from the model's distribution."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from indexmem.config.section import Section

Thinking = bool | Literal["default"]


class DecodingConfig(Section):
    """Greedy by default; with a temperature, answers are drawn, `repeats` of them for each prompt."""

    temperature: Annotated[float, Field(ge=0)] = Field(0.0, description="0: greedy")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="least mass that the likeliest tokens keep")
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="tokens to draw from; 0: all")
    repeats: Annotated[int, Field(gt=0)] = Field(1, description="answers to each prompt: avg@k and pass@k")
    thinking: Thinking = Field(
        False,
        description="before the answer, which alone is scored, where the chat template has a switch for it; "
        "default: what the template does when nobody says",
    )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def identity(self) -> dict[str, Any]:
        """What it adds to a cell's identity: what is not at its default, and never how many answers there are."""
        said = self.model_dump(exclude={"repeats"}, exclude_defaults=True)
        return {"decoding": said} if said else {}

    @model_validator(mode="after")
    def _has_effect(self) -> DecodingConfig:
        if self.greedy and self != DecodingConfig.model_construct(thinking=self.thinking):
            raise ValueError("top_p, top_k and repeats have no effect on greedy answers; give a temperature above 0")
        return self
