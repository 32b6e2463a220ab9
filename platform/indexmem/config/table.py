"""The spec of a table: runs of one spec side by side, which differ in the settings that rows and columns name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from indexmem.config.load import load_as
from indexmem.config.naming import RunName
from indexmem.config.schema import BudgetSetting
from indexmem.config.section import Section
from indexmem.files import expanded


class TableAxis(Section):
    """Part of a table: what it is called, and the overrides that its runs have."""

    title: str
    overrides: tuple[str, ...] = ()


class TableRows(TableAxis):
    """Rows below each other: one for each method."""

    methods: Annotated[dict[str, str], Field(min_length=1, description="name in the table -> label in the grid")]


class TableSpec(Section):
    """A table of scores: one run of `spec` for each pair of `rows` and `columns`, and in these a column a budget."""

    name: RunName
    title: str = ""
    spec: str = Field(description="a spec file; relative to the table's own")
    rows: Annotated[tuple[TableRows, ...], Field(min_length=1)]
    columns: Annotated[tuple[TableAxis, ...], Field(min_length=1)]
    budgets: Annotated[tuple[BudgetSetting, ...], Field(min_length=1, description="0: the full cache")]


def load_table(path: str | Path, overrides: Sequence[str] = ()) -> tuple[TableSpec, list[str]]:
    """Read a table's spec, with the overrides that are the table's own, and those that are of its runs: dotted names.

    Raises UserError like `config.load.load`.
    """
    own = [text for text in overrides if "." not in text.partition("=")[0]]
    spec = load_as(TableSpec, path, own)
    folder = expanded(path).absolute().parent
    of_runs = [text for text in overrides if text not in own]
    return spec.model_copy(update={"spec": str(folder / spec.spec)}), of_runs
