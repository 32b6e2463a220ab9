"""LongBench's 21 sets: what each is scored by, how long its answers may be, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from indexmem.benchmarks.longbench.metrics import (
    Metric,
    classification,
    code_similarity,
    count,
    qa_f1,
    qa_f1_zh,
    retrieval,
    retrieval_zh,
    rouge_l,
    rouge_l_zh,
)


@dataclass(frozen=True)
class SetSpec:
    """One set, as published."""

    category: str
    metric: Metric
    max_new_tokens: int
    language: str = "en"
    chat: bool = True  # the official protocol gives few-shot and code prompts to the model without its chat template
    first_line: bool = False  # only the answer's first line is scored
    stop: tuple[str, ...] = ()  # in the official protocol; an answer then has one token at least
    items: int = 200


SINGLE_DOC, MULTI_DOC, SUMMARY = "single-document QA", "multi-document QA", "summarization"
FEW_SHOT, SYNTHETIC, CODE = "few-shot learning", "synthetic tasks", "code completion"

SETS: Mapping[str, SetSpec] = MappingProxyType(
    {
        "narrativeqa": SetSpec(SINGLE_DOC, qa_f1, 128),
        "qasper": SetSpec(SINGLE_DOC, qa_f1, 128),
        "multifieldqa_en": SetSpec(SINGLE_DOC, qa_f1, 64, items=150),
        "multifieldqa_zh": SetSpec(SINGLE_DOC, qa_f1_zh, 64, "zh"),
        "hotpotqa": SetSpec(MULTI_DOC, qa_f1, 32),
        "2wikimqa": SetSpec(MULTI_DOC, qa_f1, 32),
        "musique": SetSpec(MULTI_DOC, qa_f1, 32),
        "dureader": SetSpec(MULTI_DOC, rouge_l_zh, 128, "zh"),
        "gov_report": SetSpec(SUMMARY, rouge_l, 512),
        "qmsum": SetSpec(SUMMARY, rouge_l, 512),
        "multi_news": SetSpec(SUMMARY, rouge_l, 512),
        "vcsum": SetSpec(SUMMARY, rouge_l_zh, 512, "zh"),
        "trec": SetSpec(FEW_SHOT, classification, 64, chat=False, first_line=True),
        "triviaqa": SetSpec(FEW_SHOT, qa_f1, 32, chat=False, first_line=True),
        "samsum": SetSpec(FEW_SHOT, rouge_l, 128, chat=False, first_line=True, stop=("\n",)),
        "lsht": SetSpec(FEW_SHOT, classification, 64, "zh", chat=False, first_line=True),
        "passage_count": SetSpec(SYNTHETIC, count, 32),
        "passage_retrieval_en": SetSpec(SYNTHETIC, retrieval, 32),
        "passage_retrieval_zh": SetSpec(SYNTHETIC, retrieval_zh, 32, "zh"),
        "lcc": SetSpec(CODE, code_similarity, 64, chat=False, items=500),
        "repobench-p": SetSpec(CODE, code_similarity, 64, chat=False, items=500),
    }
)

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
