"""LongBench's 21 sets: what each asks, is scored by, how long its answers may be, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

import yaml

from indexmem.benchmarks.longbench import metrics
from indexmem.benchmarks.longbench.metrics import Metric


@dataclass(frozen=True)
class Template:
    """The parts of a prompt, cut where the protocols cut it; `{input}` stands for the item's question.

    The published prompt is `head + {context} + rest + question + answer_prefix`.
    """

    head: str
    rest: str  # follows the context; kvpress compresses it with the context
    question: str
    answer_prefix: str = ""
    cue: str = ""  # how the inputs of a few-shot set end


@dataclass(frozen=True)
class SetSpec:
    """One set, as published."""

    category: str
    metric: Metric
    max_new_tokens: int
    prompt: Template
    language: str = "en"
    chat: bool = True  # the official protocol gives few-shot and code prompts to the model without its chat template
    first_line: bool = False  # only the answer's first line is scored
    stop: tuple[str, ...] = ()  # in the official protocol; an answer then has one token at least
    items: int = 200


def _read_sets() -> dict[str, SetSpec]:
    text = files("indexmem.benchmarks.longbench").joinpath("sets.yaml").read_text(encoding="utf-8")
    found = {}
    for name, fields in yaml.safe_load(text).items():
        made = {"metric": getattr(metrics, fields["metric"]), "prompt": Template(**fields["prompt"])}
        found[name] = SetSpec(**fields | made | {"stop": tuple(fields.get("stop", ()))})
    return found


SETS: Mapping[str, SetSpec] = MappingProxyType(_read_sets())

# LongBench-E: these sets again, with about as many items in each bucket of length.
SETS_E = (
    *("qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum"),
    *("passage_count", "passage_retrieval_en", "lcc", "repobench-p"),
)
ITEMS_E: Mapping[str, int] = MappingProxyType({"multifieldqa_en": 150, "qasper": 224, "multi_news": 294})
USUAL_ITEMS_E = 300


def bucket(length: int) -> str:
    """LongBench-E's bucket of an item's `length`, which counts words (of Chinese: characters), not tokens."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"
