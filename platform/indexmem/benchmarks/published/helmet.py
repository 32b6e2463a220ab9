"""HELMET's recall sets (Yen et al. 2024, arXiv 2410.02694; github.com/princeton-nlp/HELMET at commit 4526dfb, MIT).

Files are those of its data.tar.gz: keys and values in JSON (after Liu et al., "Lost in the middle", MIT) and three of
RULER's tasks (Apache-2.0), as published, two shots of the first included. Models continue the prompt without a chat
template. HELMET asks 100 rows, which it draws; here they are the first ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from indexmem.benchmarks.longbench.metrics import plain_words
from indexmem.benchmarks.published.suite import PromptBenchmark, PublishedSet, check_sets
from indexmem.benchmarks.rows import BenchmarkRow, FieldTypes, PublishedRows
from indexmem.benchmarks.scorers import string_match_all

ORIGIN = "HELMET's data.tar.gz, unpacked"
SHOTS = 2
KEYS: Mapping[int, int] = MappingProxyType({8192: 105, 16384: 220, 32768: 440, 65536: 900, 131072: 1800})  # of JSON


def plain_substring(answer: str, right: Sequence[str]) -> float:
    """1.0 when a right answer occurs in the answer; case, punctuation and articles play no part."""
    said = " ".join(plain_words(answer))
    return float(any(" ".join(plain_words(each)) in said for each in right))


def with_shots(row: BenchmarkRow) -> Mapping[str, Any]:
    """The first examples of key and value, as text."""
    shots = [f"Key: {key}\nCorresponding value: {value}\n\n" for key, value in row["demos"][:SHOTS]]
    return {**row, "demos": "".join(shots)}


def ruler_answers(row: BenchmarkRow) -> Mapping[str, Any]:
    """Newer files call them `answer`, older ones `outputs`."""
    return {**row, "answer": row["answer"] if "answer" in row else row["outputs"]}


def _needles(one: str, these: str, new_tokens: int) -> PublishedSet:
    return PublishedSet(
        f"{one} hidden within the following text. Make sure to memorize it. I will quiz you about the "
        f"{{type_needle_v}} afterwards.\n{{context}}\nWhat {these} special magic {{type_needle_v}} for {{query}} "
        f"mentioned in the provided text?\nThe special magic {{type_needle_v}} for {{query}} mentioned in the provided "
        f"text {these.split()[0]}",
        new_tokens,
        string_match_all,
        ruler_answers,
    )


_ONE = ("A special magic {type_needle_v} is", "is the")
JSON_FIELDS: FieldTypes = {"context": str, "question": str, "answer": (str, list), "demos": list}
RULER_FIELDS: FieldTypes = {"context": str, "query": str, "type_needle_v": str}

# name -> file by length, fields, what is published
RECALL: Mapping[str, tuple[str, FieldTypes, PublishedSet]] = MappingProxyType(
    {
        "json_kv": (
            "json_kv/test_k{keys}_dep6",
            JSON_FIELDS,
            PublishedSet(
                "{context}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n"
                "{demos}Key: {question}\nCorresponding value:",
                100,
                plain_substring,
                with_shots,
            ),
        ),
        "niah_mk_2": ("ruler/niah_multikey_2/validation_{length}", RULER_FIELDS, _needles(*_ONE, 50)),
        "niah_mk_3": ("ruler/niah_multikey_3/validation_{length}", RULER_FIELDS, _needles(*_ONE, 100)),
        "niah_mv": (
            "ruler/niah_multivalue/validation_{length}",
            RULER_FIELDS,
            _needles("Some special magic {type_needle_v} are", "are all the", 50),
        ),
    }
)


def helmet_recall(
    *,
    path: str,
    length: Literal[8192, 16384, 32768, 65536, 131072] = 8192,
    sets: tuple[str, ...] = tuple(RECALL),
) -> Sequence[PromptBenchmark]:
    """The sets named, at HELMET's `length`, which Llama-2's tokenizer counted; `path`: the folder of its data."""
    check_sets("HELMET's recall", sets, RECALL, {})
    return tuple(
        PromptBenchmark(
            name=f"helmet_{name}",
            rows=PublishedRows(path, fields, file.format(length=length, keys=KEYS[length]), ORIGIN, on_hub=False),
            spec=spec,
            max_new_tokens=spec.max_new_tokens,
            chat=False,
            too_long="refuse",
            published=100,
        )
        for name, (file, fields, spec) in ((name, RECALL[name]) for name in sets)
    )
