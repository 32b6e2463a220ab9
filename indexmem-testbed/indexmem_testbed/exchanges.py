"""Questions that a task's text answers, read off the text itself: many for each context, worded as in RULER.

A benchmark asks one question of a context; training on several is as good as training on several contexts. Answers
come in the order of the text, since a model can learn no other.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from indexmem.benchmarks.ruler import common_words, frequent_words, niah, qa, variables

KEYS_AT_ONCE = (2, 3, 4)
MANY_NEEDLES = (  # more keys than a benchmark hides, so that a context answers many questions
    niah.NeedleTask(name="needles_noise", haystack="noise", keys=12),
    niah.NeedleTask(name="needles_essay", keys=12),
    niah.NeedleTask(name="needles_uuid", keys=6, value="uuid"),
    niah.NeedleTask(name="needles_values", keys=4, values=4),
)

_NEEDLE = re.compile(r"One of the special magic (\w+)s for ([\w-]+) is: ([\w-]+)\.")
_ASSIGNED = re.compile(r"VAR (\w+) = (?:VAR )?(\w+)")
_BORN = re.compile(r"(\w+ \w+) was born in the town of (\w+)\.")
_DIRECTS = re.compile(r"(\w+ \w+) directs the firm (\w+)\.")
_SEAT = re.compile(r"The firm (\w+) has its head office in the town of (\w+)\.")
_ENTRY = re.compile(r"\d+\. ([a-z-]+)")
_CODE = re.compile(r"\b[a-z]{6}\b")


@dataclass(frozen=True)
class Exchange:
    """A question and what is to be answered, with the blank before it unless the prefix ends in one."""

    question: str
    answer_prefix: str
    answer: str

    @classmethod
    def of(cls, question: str, answer_prefix: str, answer: str) -> Exchange:
        return cls(question, answer_prefix, answer if answer_prefix.endswith(" ") else f" {answer}")


Reader = Callable[[str, str, random.Random], list[Exchange]]


def read(task: str, context: str, question: str, rng: random.Random) -> list[Exchange]:
    """What can be asked about the context of a sample of `task`; the sample's own `question` first."""
    exchanges = READERS[task](context, question, rng)
    return sorted(exchanges, key=lambda exchange: exchange.question != question)


def needles(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """Each hidden key alone, in random order; in between several at once."""
    values: dict[str, list[str]] = {}
    found = _NEEDLE.findall(context)
    for _, key, value in found:
        values.setdefault(key, []).append(value)
    kind = found[0][0]
    keys = rng.sample(list(values), len(values))
    asked = [[key] for key in keys]
    if len(keys) >= min(KEYS_AT_ONCE):
        groups = [rng.sample(keys, min(len(keys), rng.choice(KEYS_AT_ONCE))) for _ in range(-(-len(keys) // 3))]
        own = sorted((key for key in keys if f" {key} " in question.replace(",", " ")), key=question.index)
        asked = rng.sample([*asked, *groups], len(asked) + len(groups)) + ([own] if len(own) > 1 else [])
    return [_needle_exchange(kind, group, [value for key in group for value in values[key]]) for group in asked]


def _needle_exchange(kind: str, keys: list[str], values: list[str]) -> Exchange:
    wording = niah.ONE_ANSWER if len(values) == 1 else niah.MANY_ANSWERS
    query = _listing(keys)
    _, question, prefix = (part.format(kind=kind, query=query) for part in wording)
    return Exchange.of(question, prefix, f"{_listing(values)}.")


def chains(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """The names of each chain of assignments, those of the solved example too."""
    names: dict[str, list[str]] = {}  # of each number
    numbers: dict[str, str] = {}  # of each name
    for name, source in _ASSIGNED.findall(context):
        number = numbers[name] = numbers.get(source, source)
        names.setdefault(number, []).append(name)
    return [
        Exchange.of(
            variables.QUESTION.format(query=number),
            variables.ANSWER_PREFIX.format(count=len(names[number]), query=number),
            " ".join(names[number]),
        )
        for number in reversed(names)  # the example comes first in the text
    ]


def common(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """The ten most common words of the list after the solved example, as the example lists them."""
    words = _ENTRY.findall(context.rpartition(common_words.INTRO)[2])
    counts = Counter(words)
    top = {word for word, _ in counts.most_common(common_words.COMMON)}
    listed = " ".join(f"{number}. {word}" for number, word in enumerate((w for w in counts if w in top), start=1))
    return [Exchange.of(common_words.QUESTION, common_words.ANSWER_PREFIX, listed)]


def frequent(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """The three most frequent coded words, the most frequent first."""
    counts = Counter(_CODE.findall(context.removeprefix(frequent_words.INTRO)))
    top = [word for word, _ in counts.most_common(frequent_words.TOP)]
    return [Exchange.of(frequent_words.QUESTION, frequent_words.ANSWER_PREFIX, " ".join(top))]


def births(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """Where people were born, in random order."""
    found = _BORN.findall(context)
    return [_about(f"In which town was {person} born?", town) for person, town in rng.sample(found, len(found))]


def offices(context: str, question: str, rng: random.Random) -> list[Exchange]:
    """Where the firms are that people direct, for those of which the text says both, in random order."""
    towns = dict(_SEAT.findall(context))
    found = [(person, towns[firm]) for person, firm in _DIRECTS.findall(context) if firm in towns]
    return [
        _about(f"In which town does the firm that {person} directs have its head office?", town)
        for person, town in rng.sample(found, len(found))
    ]


def _about(question: str, town: str) -> Exchange:
    return Exchange.of(f"{qa.INSTRUCTION}Question: {question}", "Answer:", town)


def _listing(items: list[str]) -> str:
    """ "a", or "a, b, and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f", and {items[-1]}"


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        **{task.name: needles for task in (*niah.NIAH_TASKS, *MANY_NEEDLES)},
        "vt": chains,
        "cwe": common,
        "fwe": frequent,
        "qa_1": births,
        "qa_2": offices,
    }
)
