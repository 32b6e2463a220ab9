"""Instructions that a rule can check, in the manner of IFEval (Zhou et al. 2023, arXiv 2311.07911), all in own words.

Any of them can be obeyed together with any others: a prompt may hold all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

Follows = Callable[[str, str], bool]  # (answer, what was drawn) -> whether it does as told


@dataclass(frozen=True)
class Instruction:
    """`text` says what is asked, with what is drawn in place of {0}."""

    name: str
    text: str
    follows: Follows
    drawn: tuple[str, ...] = ("",)


def _words(answer: str) -> list[str]:
    return re.findall(r"\w[\w'-]*", answer.lower())


def _bullets(answer: str, number: str) -> bool:
    return len(re.findall(r"^\s*[-*•] +\S", answer, re.MULTILINE)) == int(number)


INSTRUCTIONS = (
    Instruction("no_comma", "Do not use any commas.", lambda answer, _: "," not in answer),
    Instruction("lowercase", "Write in lowercase letters only.", lambda answer, _: answer == answer.lower()),
    Instruction(
        "begin",
        'Begin with the word "{0}".',
        lambda answer, word: _words(answer)[:1] == [word],
        ("well", "so", "greetings", "listen"),
    ),
    Instruction(
        "end",
        'End with the words "{0}" and nothing after them.',
        lambda answer, words: _words(answer)[-len(words.split()) :] == words.split(),
        ("that was all", "thank you", "more tomorrow", "until then"),
    ),
    Instruction(
        "twice",
        'Use the word "{0}" two times or more.',
        lambda answer, word: _words(answer).count(word) >= 2,
        ("lantern", "river", "copper", "market"),
    ),
    Instruction(
        "avoid",
        'Never use the word "{0}".',
        lambda answer, word: word not in _words(answer),
        ("the", "and", "is", "of"),
    ),
    Instruction(
        "bullets",
        "Write exactly {0} points, each on a line of its own with a dash before it.",
        _bullets,
        ("2", "3", "4"),
    ),
    Instruction(
        "short",
        "Use at most {0} words.",
        lambda answer, most: 0 < len(_words(answer)) <= int(most),
        ("30", "40", "50"),
    ),
    Instruction(
        "number",
        "Mention the number {0}.",
        lambda answer, number: re.search(rf"(?<!\d){number}(?!\d)", answer) is not None,
        ("17", "42", "365", "1024"),
    ),
    Instruction(
        "bracket",
        "Put one word or more in square brackets.",
        lambda answer, _: re.search(r"\[[^\[\]]*\w[^\[\]]*\]", answer) is not None,
    ),
    Instruction(
        "emphasis",
        "Put one word or more between two asterisks on each side, like **this**.",
        lambda answer, _: re.search(r"\*\*[^*]*\w[^*]*\*\*", answer) is not None,
    ),
    Instruction("no_question", "Do not use question marks.", lambda answer, _: "?" not in answer),
)
BY_NAME = MappingProxyType({instruction.name: instruction for instruction in INSTRUCTIONS})
