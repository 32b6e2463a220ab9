"""InfiniteBench (Zhang et al. 2024, arXiv 2402.13718; github.com/OpenBMB/InfiniteBench at commit 88b3daa, MIT).

Prompts are those of its YaRN-Mistral runs, which open models continue without a chat template. Limits and scores follow
`eval_utils.py` and `compute_scores.py`. Where these raise, on an empty answer for example, the score is 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from indexmem.benchmarks.longbench.metrics import qa_f1
from indexmem.benchmarks.published.suite import PromptBenchmark, PublishedSet, check_sets, texts_of
from indexmem.benchmarks.rows import BenchmarkRow, FieldTypes, PublishedRows
from indexmem.benchmarks.scbench.sets import characters_f1, first_number, letter

HUB = "xinrongzhang2022/InfiniteBench"
FIELDS: FieldTypes = {"context": str, "input": str, "answer": (str, int, float, list)}
LETTERS = "ABCD"

_SENTENCE_MARKS = re.compile(r"""[\n:"'.,?!{}]""")
_DEBUG_NOISE = re.compile(r"""(?:[\n`'"*\- ]|[Oo]ption)+""")


def names_value(answer: str, right: Sequence[str]) -> float:
    """1.0 when the right value is one of the answer's words."""
    return float(right[0] in _SENTENCE_MARKS.sub(" ", answer).split())


def names_character(answer: str, right: Sequence[str]) -> float:
    """1.0 when the first right name is one of the answer's words, in capitals; so a name of two words never is."""
    return names_value(answer.upper(), right)


def first_digits(answer: str, right: Sequence[str]) -> float:
    """1.0 when the answer's first digits are the right ones, to the last."""
    found = re.search(r"[0-9]+", answer)
    return float(found is not None and found[0] == right[0])


def last_integer(answer: str, right: Sequence[str]) -> float:
    """1.0 when the answer's last word is the right whole number."""
    words = re.sub(r"""[\n.`'":]""", " ", answer).split()
    return float(bool(words) and re.fullmatch(r"[+-]?\d+", words[-1]) is not None and int(words[-1]) == int(right[0]))


def right_beginning(answer: str, right: Sequence[str]) -> float:
    """Share of the list's numbers before the first wrong one. Signs are not read, so a negative number is wrong."""
    found = [int(digits) for digits in re.findall(r"[0-9]+", answer)]
    same = (said == int(number) for said, number in zip(found, right))
    wrong = next((place for place, equal in enumerate(same) if not equal), min(len(found), len(right)))
    return wrong / len(right)


def debug_choice(answer: str, right: Sequence[str]) -> float:
    """1.0 when the answer begins with the right letter and a point or colon, or names letter or function behind a mark
    such as "is:"."""
    answer = answer.strip()
    if answer[:2] in (f"{right[1]}.", f"{right[1]}:"):
        return 1.0
    plain = _DEBUG_NOISE.sub(" ", answer)
    behind = next((plain.partition(mark)[2][1:] for mark in ("answer is:", "is:", "answer:") if mark in plain), "")
    return float(any(behind.startswith(each) for each in right))


def best_f1(answer: str, right: Sequence[str]) -> float:
    """The best F1 of the words."""
    return max(qa_f1(answer, each) for each in right)


def with_numbers(row: BenchmarkRow) -> Mapping[str, Any]:
    """All numbers of the answer, a list that may stand in a list or in a text."""
    return {**row, "answer": re.findall(r"-?\d+", str(row["answer"]))}


def with_options(row: BenchmarkRow) -> Mapping[str, Any]:
    """Four options by letter; right are the text and the letter of one."""
    right = texts_of(row["answer"])
    if len(right) == 1:
        right = (*right, LETTERS[row["options"].index(right[0])])
    return {**row, **dict(zip(LETTERS, row["options"])), "answer": right}


def with_call(row: BenchmarkRow) -> Mapping[str, Any]:
    """The function that is called, and the call."""
    call = re.findall(r"func_[0-9]+\(-?[0-9]+\)", row["input"])[0]
    return {**row, "func_call": call, "func": call.partition("(")[0]}


def with_prefix(row: BenchmarkRow) -> Mapping[str, Any]:
    """Which number is looked for, before the list."""
    return {**row, "target": re.findall(r"The .+ of", row["input"])[0].lower()[:-3]}


_INFO = "There is an important info hidden inside a lot of irrelevant text."
_OPTIONS = "\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\n"

SETS: Mapping[str, PublishedSet] = MappingProxyType(
    {
        "passkey": PublishedSet(
            f"{_INFO} Find it and memorize it. I will quiz you about the important information.\n\n{{context}}\n\n"
            "{input}\n\nThe pass key is",
            6,
            first_digits,
            items=590,
        ),
        "number_string": PublishedSet(
            f"{_INFO} Find it. I will quiz you about the important information there.\n\n{{context}}\n\n{{input}}\n\n"
            "The sequence of digits is",
            12,
            first_digits,
            items=590,
        ),
        "kv_retrieval": PublishedSet(
            "Extract the value corresponding to the specified key in the JSON object below.\n\n{context}\n\n{input}",
            50,
            names_value,
            items=500,
        ),
        "longbook_choice_eng": PublishedSet(
            f"Read the book and answer the question.\n\n{{context}}\n\nQuestion: {{input}}{_OPTIONS}"
            "The letter of the correct answer is",
            40,
            letter,
            with_options,
            items=229,
        ),
        "longbook_qa_eng": PublishedSet(
            "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\nQuestion: {input}\n"
            "Answer:",
            40,
            best_f1,
            items=351,
        ),
        "longbook_qa_chn": PublishedSet(
            "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{input}\n答案：", 40, characters_f1, items=175
        ),
        "longdialogue_qa_eng": PublishedSet(
            "Below is a dialogue script where one random occurrence of a character name is replaced with "
            '"$$MASK$$", and '
            "you should try to guess who that character is.\n\n{context}\n\n"
            "The name that has been replaced with $$MASK$$ is likely",
            40,
            names_character,
            items=200,
        ),
        "math_find": PublishedSet(
            "What is {target} in the following list?\n\n{context}\n\n{input}", 3, first_number, with_prefix, items=350
        ),
        "math_calc": PublishedSet(
            "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, 8]\n\n"
            "Expression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: {context}\nValues:",
            30_000,
            right_beginning,
            with_numbers,
            items=50,
        ),
        "code_run": PublishedSet(
            "There is a function called {func} in the following Python code.\n\n{context}\n\n"
            "Please compute the exact value of {func_call}. The value of {func_call} is",
            5,
            last_integer,
            with_call,
            items=400,
        ),
        "code_debug": PublishedSet(
            "Following is a Python code where exactly one of the functions/methods has a deliberate error that makes "
            f"it crash.\n\n{{context}}\n\nOptions:{_OPTIONS}The correct option is:",
            5,
            debug_choice,
            with_options,
            items=394,
        ),
    }
)
LEFT_OUT: Mapping[str, str] = MappingProxyType({"longbook_sum_eng": "scored by rougeLsum of the package rouge_score"})


def infinitebench(*, path: str = HUB, sets: tuple[str, ...] = tuple(SETS)) -> Sequence[PromptBenchmark]:
    """The sets named; `path`: a hub id, or a folder with <set>.jsonl files."""
    check_sets("InfiniteBench", sets, SETS, LEFT_OUT)
    return tuple(
        PromptBenchmark(
            name=f"infinitebench_{name}",
            rows=PublishedRows(path, FIELDS, name, HUB, split=name),
            spec=SETS[name],
            max_new_tokens=SETS[name].max_new_tokens,
            chat=False,
            published=SETS[name].items,
        )
        for name in sets
    )
