"""LongBench's scores, pure functions into [0, 1], as its `metrics.py` computes them (MIT; see docs/benchmarks.md).

Each takes an answer, one reference and the names of all classes, which only `classification` reads. Oddities are kept
where published numbers depend on them, and named.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

Metric = Callable[[str, str, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBERS = re.compile(r"\d+")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHINESE_PUNCTUATION = frozenset(
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_CODE_COMMENTS = ("`", "#", "//")


def qa_f1(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the words, as bags; case, punctuation and articles play no part."""
    return bag_f1(plain_words(answer), plain_words(reference))


def qa_f1_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of jieba's words, each without case, punctuation and white space."""
    return bag_f1(_chinese_words(answer), _chinese_words(reference))


def rouge_l(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L (F) of the package `rouge`, whose numbers differ from those of `rouge_score`; 0 where it raises."""
    return rouge_of(answer, reference, "rouge-l", "f")


def rouge_l_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L of jieba's words."""
    return rouge_l(" ".join(_segmented(answer)), " ".join(_segmented(reference)))


def classification(answer: str, reference: str, classes: Sequence[str]) -> float:
    """1/n when the right class is among the n that the answer names; parts of the right class's name do not count.

    As published: the list of named classes shrinks while it is walked through, so that the class after each removed
    one is not looked at and stays. A few answers get 1/2 where `classification_strict` gives 1.
    """
    named = [name for name in classes if name in answer]
    place = 0
    while place < len(named):
        if _is_part_of(named[place], reference):
            del named[place]
        place += 1
    return 1 / len(named) if reference in named else 0.0


def classification_strict(answer: str, reference: str, classes: Sequence[str]) -> float:
    """`classification` with every part of the right class's name left out."""
    named = [name for name in classes if name in answer and not _is_part_of(name, reference)]
    return 1 / len(named) if reference in named else 0.0


def count(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Share of the numbers in the answer that are the right one."""
    numbers = _NUMBERS.findall(answer)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`count` for the number in "Paragraph 7", so "Paragraph 7 (of 30)" gets 1/2."""
    return count(answer, _number_after("Paragraph ", reference))


def retrieval_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`count` for the number in "段落7"."""
    return count(answer, _number_after("段落", reference))


def code_similarity(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Ratio, in whole percent, of the first line that has no comment or code fence.

    That of `fuzzywuzzy` as LongBench's requirements install it: difflib's. With python-Levenshtein beside it,
    fuzzywuzzy takes another ratio, which is sometimes higher.
    """
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in _CODE_COMMENTS)), "")
    if line == reference:
        return 1.0
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


def rouge_of(answer: str, reference: str, kind: str, statistic: str) -> float:
    """One number of the package `rouge`: `kind` is "rouge-1" or "rouge-l", `statistic` "p", "r" or "f"; 0 if it raises.

    It raises for texts without words and, on very long ones, where its recursion gets too deep.
    """
    from rouge import Rouge

    try:
        scores = Rouge(metrics=[kind], stats=[statistic]).get_scores(answer, reference)
    except Exception:  # whatever it is: that is the published rule
        return 0.0
    return float(scores[0][kind][statistic])


def bag_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of units, such as words."""
    common = (Counter(answer) & Counter(reference)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(answer), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def plain_words(text: str) -> list[str]:
    """Without case, punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split()


def _chinese_words(text: str) -> list[str]:
    kept = ("".join(filter(is_content, word.lower())) for word in _segmented(text))
    return [joined for word in kept if (joined := "".join(word.split()))]


def is_content(letter: str) -> bool:
    """Whether it is no punctuation, Western or Chinese."""
    return letter not in string.punctuation and letter not in _CHINESE_PUNCTUATION


def _segmented(text: str) -> list[str]:
    import jieba  # loads a dictionary, and only Chinese sets need it

    return list(jieba.cut(text, cut_all=False))


def _is_part_of(name: str, whole: str) -> bool:
    return name in whole and name != whole


def _number_after(mark: str, reference: str) -> str:
    found = re.search(re.escape(mark) + r"(\d+)", reference)
    assert found, f"a reference of a retrieval set reads '{mark}N', got {reference!r}"
    return found[1]
