"""What is trained on."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from indexmem.config.section import Section


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

    @classmethod
    def named(cls, *names: str) -> tuple[TextConfig, ...]:
        """Texts without further settings."""
        return tuple(cls(name=name) for name in names)

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
        """A name alone stays one: run ids and published parameters know it as text."""
        return self.name if self.name is not None and self.column is None else dump(self)

    def __str__(self) -> str:
        return self.name or f"{self.hub} (hub)"
