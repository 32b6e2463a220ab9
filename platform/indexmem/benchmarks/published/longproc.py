"""LongProc (Ye et al. 2025, arXiv 2501.05414; github.com/princeton-pli/LongProc at commit 78e873a, Apache-2.0).

Long answers that follow a procedure. Rows, prompts and web pages are read from a copy of its repository; limits are
HELMET's, scores follow its evaluators.
"""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from indexmem.benchmarks.longbench.metrics import plain_words
from indexmem.benchmarks.published.suite import PromptBenchmark, PublishedSet, check_sets
from indexmem.benchmarks.rows import BenchmarkRow, FieldTypes, PublishedRows
from indexmem.files import expanded
from indexmem.texts.rows import readable

ORIGIN = "github.com/princeton-pli/LongProc, folder data"
LIMITS: Mapping[str, int] = MappingProxyType({"0.5k": 1024, "2k": 3072, "8k": 10_240})

_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2019")
_BELIEF_NOISE = re.compile(
    r"\b(a|an|the|on|in|at|the|step|thinks|think|believes|believe|is|are|of|location|know|knows|belief)\b"
)


def same_route(answer: str, right: Sequence[str]) -> float:
    """1.0 when the route between its tags is the right one."""
    return float(_route(answer) == right[0].strip())


def route_so_far(answer: str, right: Sequence[str]) -> float:
    """Share of the right route's lines up to the first that differs, which is counted; 1.0 for the right route."""
    route = _route(answer)
    if route is None or same_route(answer, right):
        return float(route is not None)
    lines, wanted = route.split("\n"), right[0].strip().split("\n")
    compared = min(len(lines), len(wanted))
    wrong = next((place for place in range(compared) if lines[place] != wanted[place]), compared - 1)
    return (wrong + 1) / len(wanted)


def same_beliefs(answer: str, right: Sequence[str]) -> float:
    """1.0 when the lines that begin with a dash say the same, filler words aside."""
    return float(_beliefs(answer) == _beliefs(right[0]))


def beliefs_so_far(answer: str, right: Sequence[str]) -> float:
    """Share of the right lines before the first that differs."""
    said, wanted = _beliefs(answer), _beliefs(right[0])
    compared = min(len(said), len(wanted))
    return next((place for place in range(compared) if said[place] != wanted[place]), compared) / len(wanted)


def table_f1(answer: str, right: Sequence[str]) -> float:
    """F1 of the rows of a table, in any order; case, punctuation, articles and blanks play no part."""
    fenced = re.search(r"```tsv([\s\S]*)```", answer)
    said = _table(fenced[1] if fenced else answer.split("```tsv", 1)[-1])
    wanted = _table(right[0])
    if not said or len(said[0]) != len(wanted[0]):
        return 0.0
    precision, recall = _share(said, wanted), _share(wanted, said)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _route(answer: str) -> str | None:
    start, end = answer.find("<Route>"), answer.find("</Route>")
    return None if min(start, end) < 0 else answer[start + len("<Route>") : end].strip()


def _beliefs(text: str) -> list[str]:
    listed = "\n".join(line for line in text.splitlines() if line.strip().startswith("-")).strip()
    plain = (line.lower().translate(_PUNCTUATION) for line in listed.split("\n") if line.startswith("-"))
    return list(filter(None, (" ".join(_BELIEF_NOISE.sub(" ", line).split()) for line in plain)))


def _table(text: str) -> list[tuple[str, ...]]:
    """Rows below the header; the last one only if it is whole."""
    try:
        header, *rows = csv.reader(text.strip().split("\n"), delimiter="\t")
    except csv.Error:
        return []
    if len(set(header)) < len(header):
        return []
    if rows and len(rows[-1]) != len(header):
        rows.pop()
    whole = (row if len(row) == len(header) else ["N/A"] * len(header) for row in rows)
    return [tuple("".join(plain_words(cell)) for cell in row) for row in whole]


def _share(rows: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> float:
    return sum(row in others for row in rows) / len(rows)


def with_cities(row: BenchmarkRow) -> Mapping[str, Any]:
    """The cities by the names that the prompt uses."""
    source, destination = row["question_repr"]
    return {"city_context": row["context_nl"], "src_city": source, "dst_city": destination, "answer": row["answer_nl"]}


PROCEDURES: Mapping[str, tuple[FieldTypes, PublishedSet]] = MappingProxyType(
    {
        "path_traversal": (
            {"context_nl": str, "question_repr": list, "answer_nl": str},
            PublishedSet("", 0, same_route, with_cities, document="city_context", others={"partial": route_so_far}),
        ),
        "tom_tracking": (
            {"story": str, "question": str, "solution": str},
            PublishedSet("", 0, same_beliefs, right="solution", document="story", others={"partial": beliefs_so_far}),
        ),
        "html_to_tsv": (
            dict.fromkeys(
                ("html_path", "task_topic", "task_description", "filtering_instruction", "tsv_header", "gt"), str
            ),
            PublishedSet("", 0, table_f1, right="gt", document="html_str"),
        ),
    }
)
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "pseudo_to_code": "scored by running the C++ programs that a model writes",
        "countdown": "prompted and scored by a search that only its code makes",
        "travel_planning": "prompted and scored by a search that only its code makes",
    }
)


@dataclass(frozen=True, kw_only=True)
class LongProc(PromptBenchmark):
    """A set of one size, whose prompt lies beside its rows."""

    folder: str

    @cached_property
    def prompt(self) -> str:
        """Of the set's prompts.yaml. Raises UserError where there is none."""
        path = Path(self.folder) / "prompts.yaml"
        with readable(path), path.open(encoding="utf-8") as file:
            return str(yaml.safe_load(file)["USER_PROMPT"])

    def fields_of(self, row: BenchmarkRow) -> Mapping[str, Any]:
        """With the web page that a row names. Raises UserError where there is none."""
        fields = super().fields_of(row)
        if "html_path" not in row:
            return fields
        page = Path(self.folder) / row["html_path"]
        with readable(page):
            return {**fields, "html_str": page.read_text(encoding="utf-8")}


def longproc(
    *, path: str, sets: tuple[str, ...] = tuple(PROCEDURES), size: Literal["0.5k", "2k", "8k"] = "0.5k"
) -> Sequence[PromptBenchmark]:
    """The sets named, with right answers of up to `size` tokens; `path`: the folder `data` of its repository."""
    check_sets("LongProc", sets, PROCEDURES, LEFT_OUT)
    folders = {name: expanded(path) / name for name in sets}
    return tuple(
        LongProc(
            name=f"longproc_{name}",
            rows=PublishedRows(str(folders[name]), PROCEDURES[name][0], f"{name}_{size}", ORIGIN, on_hub=False),
            folder=str(folders[name]),
            spec=replace(PROCEDURES[name][1], max_new_tokens=LIMITS[size]),
            max_new_tokens=LIMITS[size],
            too_long="refuse",
        )
        for name in sets
    )
