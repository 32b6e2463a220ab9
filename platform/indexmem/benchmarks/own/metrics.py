"""Metrics of your own data, each of an answer and all texts that the row lists as right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from indexmem.benchmarks.longbench.metrics import code_similarity, qa_f1, qa_f1_zh, rouge_l, rouge_l_zh
from indexmem.benchmarks.maths.boxed import as_integer, last_boxed
from indexmem.benchmarks.scorers import string_match_all, string_match_part
from indexmem.errors import UserError
from indexmem.plugins.load import Found, find, unknown_name

Scorer = Callable[[str, Sequence[str]], float]


def exact(prediction: str, answer: str) -> float:
    """1.0 for the same text, case and outer white space aside."""
    return float(prediction.strip().lower() == answer.strip().lower())


def boxed_integer(prediction: str, answer: str) -> float:
    r"""1.0 when the last \boxed{...} is the same whole number."""
    right = as_integer(answer)
    return float(right is not None and as_integer(last_boxed(prediction)) == right)


def contains(prediction: str, answer: str) -> float:
    """1.0 when the answer text occurs, case aside."""
    return string_match_part(prediction, [answer])


SINGLE: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {
        "contains": contains,
        "exact": exact,
        "f1": qa_f1,
        "f1_zh": qa_f1_zh,
        "rouge_l": rouge_l,
        "rouge_l_zh": rouge_l_zh,
        "code_similarity": code_similarity,
        "boxed_integer": boxed_integer,
    }
)
COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"any": max, "all": lambda scores: sum(scores) / len(scores)}
)
# Names that say by themselves how several answers count.
WHOLE: Mapping[str, Scorer] = MappingProxyType({"contains_all": string_match_all, "contains_any": string_match_part})
METRICS = (*WHOLE, *SINGLE)
LIKELIHOOD = "likelihood"  # of rows with options: the model's own, and no text is compared


def whole(metric: str) -> Scorer | None:
    """What scores an answer by all right ones at once: ours, or somebody's own function; None for one of SINGLE.

    Raises UserError for a metric that does not exist.
    """
    if metric in SINGLE or metric == LIKELIHOOD:
        return None
    if metric in WHOLE:
        return WHOLE[metric]
    own = find("scorers", metric)
    if own is None:
        raise unknown_name("scorers", "metric", metric, (*METRICS, LIKELIHOOD))
    if not callable(own.value):
        raise UserError(f"'{metric}' is no function. Expected one of (answer, right answers) that returns 0 to 1.")
    scorer: Scorer = own.value
    return scorer


def own_scorers(metrics: Iterable[str]) -> dict[str, Found]:
    """Those of `metrics` that are not ours."""
    found = {metric: find("scorers", metric) for metric in sorted(set(metrics) - {*METRICS, LIKELIHOOD})}
    return {metric: own for metric, own in found.items() if own is not None}


def score(metric: str, match: str, prediction: str, answers: Sequence[str]) -> float:
    """By a metric of METRICS or somebody's own; `match` says whether `any` of the answers is enough or `all` are asked
    for.
    """
    by_all = whole(metric)
    if by_all is not None:
        return by_all(prediction, answers)
    return COMBINE[match]([SINGLE[metric](prediction, answer) for answer in answers])
