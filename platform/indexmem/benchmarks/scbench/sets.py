"""What is published of SCBench's sets: how they are asked, how long an answer may be and how it is scored.

Wording, limits and scores follow `eval_utils.py` and `compute_scores.py` of github.com/microsoft/MInference, folder
scbench, at commit 0ff346d (MIT). Scores take an answer and the texts that are right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from indexmem.benchmarks.longbench.metrics import bag_f1, is_content
from indexmem.benchmarks.published.suite import AnswerScore
from indexmem.benchmarks.scorers import string_match_all, string_match_part

_LETTERS = "ABCD"
_CHOICE_MARKS = ("answer is:", "answer:", "answer is", "option is")


@dataclass(frozen=True)
class SCBenchSet:
    """One set. `context` holds {context} and, where the first question is part of it, {first}; `question` holds
    {input}, and {A} to {D} or {target} where the set has them."""

    max_new_tokens: int
    score: AnswerScore
    context: str = "{context}"
    question: str = "{input}"


def same_case(answer: str, right: Sequence[str]) -> float:
    """1.0 when the first of `right` occurs in the answer as it is written."""
    return float(right[0] in answer)


def characters_f1(answer: str, right: Sequence[str]) -> float:
    """The best F1 of single characters, as bags; case, punctuation and white space play no part."""
    return max((bag_f1(_characters(answer), _characters(reference)) for reference in right), default=0.0)


def first_number(answer: str, right: Sequence[str]) -> float:
    """1.0 when the first number of the answer is the right one; of a whole one, what follows the point is dropped."""
    found = re.search(r"\d+\.\d+|\d+", answer)
    if found is None:
        return 0.0
    whole = re.fullmatch(r"-?\d+", right[0]) is not None
    return float(int(float(found[0])) == int(right[0]) if whole else float(found[0]) == float(right[0]))


def letter(answer: str, right: Sequence[str]) -> float:
    """1.0 when the option that the answer chooses is right: its first letter, else what follows a mark such as "answer
    is", else the first letter that stands alone."""
    answer = answer.strip()
    if not answer:
        return 0.0
    if answer[0] in _LETTERS:
        return float(answer[0] in right)
    if answer in right:
        return 1.0
    answer = re.sub(r"[\n\"'.,?!{} ]+", " ", answer)
    for mark in _CHOICE_MARKS:
        _, found, after = answer.partition(mark)
        if found:
            return float(any(after[1:].startswith(option) for option in right))
    alone = next((word for word in answer.split() if word in _LETTERS), None)
    return float(alone in right)


def _characters(text: str) -> list[str]:
    return list(filter(is_content, "".join(text.lower().split())))


_BOOK = "Read the book and answer the question."

SHARED_SETS: Mapping[str, SCBenchSet] = MappingProxyType(
    {
        "kv": SCBenchSet(
            150,
            same_case,
            "Extract the value corresponding to the specified key in the JSON object below.\n\n{context}",
        ),
        "prefix_suffix": SCBenchSet(150, same_case),
        "vt": SCBenchSet(30, string_match_all),
        "qa_eng": SCBenchSet(
            40,
            string_match_part,
            f"{_BOOK} Be very concise in your answer.\n\n{{context}}",
            "Question: {input}\nAnswer:",
        ),
        "qa_chn": SCBenchSet(40, characters_f1, "阅读以下书籍然后回答问题。\n\n{context}", "问题：{input}\n答案："),
        "choice_eng": SCBenchSet(
            40,
            letter,
            f"{_BOOK}\n\n{{context}}",
            "Question: {input}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe the correct answer is",  # "The the": as published
        ),
        "many_shot": SCBenchSet(10, string_match_part),
        "mf": SCBenchSet(5, first_number, "{first}\n\n{context}", "What is {target}?\n\n{input}"),
    }
)

# Published sets that are not here, and why.
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "repoqa": "scored by a parser of seven programming languages",
        "repoqa_and_kv": "scored by a parser of seven programming languages",
        "summary": "scored by rougeLsum of the package rouge_score",
        "summary_with_needles": "scored by rougeLsum of the package rouge_score",
    }
)
