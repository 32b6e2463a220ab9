"""What is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from indexmem.config.section import Section

BUILT_IN = ("essays", "essays-train", "essays-heldout", "king-james", "code", "records", "facts")  # texts/documents.py


class TextConfig(Section):
    """One text, for example `king-james`, `~/corpus`, `{name: pages.parquet, column: content}` or
    `{hub: org/name, revision: COMMIT}`.
    """

    name: str | None = Field(None, description="a built-in text, a file or a folder")
    hub: str | None = Field(None, description="id of a data set on the Hugging Face hub")
    subset: str | None = Field(None, description="configuration of the hub's data set")
    split: str = Field("train", description="split of the hub's data set")
    revision: str | None = Field(None, description="commit or tag of the hub's data set")
    column: str | None = Field(None, description="column or field that holds the text; default: text, else context")
    weight: float | None = Field(
        None,
        gt=0,
        description="share of the training tokens, relative to the other texts' weights",
    )

    @classmethod
    def named(cls, *names: str) -> tuple[TextConfig, ...]:
        """Texts without further settings."""
        return tuple(cls(name=name) for name in names)

    @classmethod
    def mixture(cls, weights: Mapping[str, float]) -> tuple[TextConfig, ...]:
        """Texts of these names, each with its weight."""
        return tuple(cls(name=name, weight=weight) for name, weight in weights.items())

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_source(self) -> TextConfig:
        if (self.name is None) == (self.hub is None):
            raise ValueError("a text has a name or a hub id: {name: pages.parquet}, {hub: org/name, revision: COMMIT}")
        if self.hub is not None and self.revision is None:
            raise ValueError("name the commit, so that runs go on with the same data: {hub: ..., revision: COMMIT}")
        if self.name is not None and (self.subset or self.revision or self.split != "train"):
            raise ValueError("subset, split and revision are of data sets on the hub, not of files")
        return self

    @model_serializer(mode="wrap")
    def _to_name(self, dump: SerializerFunctionWrapHandler) -> Any:
        """A name alone stays one, and a text without weight what it was before there were weights: run ids and
        published parameters know both. A weighted text is as short as it was written.
        """
        settings = dump(self)
        if self.weight is not None:
            defaults = {name: field.default for name, field in type(self).model_fields.items()}
            return {name: value for name, value in settings.items() if value != defaults[name]}
        settings.pop("weight", None)  # a dump of what is set alone has none
        return self.name if self.name is not None and self.column is None else settings

    def __str__(self) -> str:
        return self.name or f"{self.hub} (hub)"


def _weights_of_all_or_none(texts: tuple[TextConfig, ...]) -> tuple[TextConfig, ...]:
    without = [str(text) for text in texts if text.weight is None]
    if 0 < len(without) < len(texts):
        raise ValueError(
            f"some texts have a weight and these have none: {', '.join(without)}. "
            "Give each one a weight, {name: NAME, weight: 0.2}, or none of them"
        )
    return texts


Texts = Annotated[tuple[TextConfig, ...], AfterValidator(_weights_of_all_or_none)]

# What is trained on by default: prose alone has no numbers, codes or names to keep (docs/training.md).
MIXTURE = TextConfig.mixture({"essays-train": 0.15, "king-james": 0.15, "code": 0.2, "records": 0.2, "facts": 0.3})
