"""Multiple choice: how options are shown, and which one an answer chooses.

The first of these rules that finds an option decides:

1. the answer says "answer is X", "answer: X", "option X" or "choice X": the last such letter;
2. it begins with a letter that ends there, as "B", "(B)", "B." and "**B** because": that letter;
3. the text of one option alone occurs in it as whole words, case aside. A text inside a longer one that occurs, "red"
   in "dark red", does not count.

Otherwise nothing is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase as LETTERS

from indexmem.errors import UserError

_NAMED = r"\b(?i:answer(?:\s+is)?|option|choice)\s*:?\s*[(\[*]*([A-{last}])(?![\w'])"
_LEADING = r"\s*[(\[*]*([A-{last}])(?:[)\]*.:,;]|\s*$|\s*\n)"


def option_lines(options: Sequence[str]) -> str:
    """'A. red' and so on, a line each."""
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options))


def chosen(answer: str, options: Sequence[str]) -> str | None:
    """Letter of the option that the answer chooses; None when it chooses none."""
    last = LETTERS[len(options) - 1]
    if named := re.findall(_NAMED.format(last=last), answer):
        return str(named[-1])
    if leading := re.match(_LEADING.format(last=last), answer):
        return leading[1]
    spans = {letter: _spans(text, answer) for letter, text in zip(LETTERS, options)}
    found = [letter for letter in spans if any(not _inside(span, spans, letter) for span in spans[letter])]
    return found[0] if len(found) == 1 else None


def letters_of(answers: Sequence[str | int], options: Sequence[str], where: str) -> tuple[str, ...]:
    """Letters of the options that `answers` name by letter, text or index from 0. Raises UserError for one that names
    none or two."""
    found = []
    for answer in answers:
        if not isinstance(answer, str):
            answer = LETTERS[answer] if 0 <= answer < len(options) else str(answer)
        by_letter = [LETTERS[i] for i in range(len(options)) if answer.strip().upper() == LETTERS[i]]
        by_text = [letter for letter, text in zip(LETTERS, options) if _same(text, answer)]
        named = {*by_letter, *by_text}
        if len(named) > 1:
            raise UserError(
                f"{where}: the answer '{answer}' is the letter of one option and the text of another. Write the "
                "letters A, B, ... and options' texts that are no such letters."
            )
        if not named:
            letters = ", ".join(LETTERS[: len(options)])
            raise UserError(
                f"{where}: the answer '{answer:.80}' is no option. Write one of {letters} or its text, or its place "
                "from 0."
            )
        found.append(named.pop())
    return tuple(dict.fromkeys(found))


def check_options(options: Sequence[str], where: str) -> None:
    """Raises UserError unless there are 2 to 26 different texts."""
    texts = [text.strip().casefold() for text in options]
    if not 2 <= len(texts) <= len(LETTERS):
        raise UserError(f"{where}: 'options' must list 2 to {len(LETTERS)} texts, got {len(texts)}.")
    if "" in texts or len(set(texts)) < len(texts):
        raise UserError(f"{where}: each of 'options' must be a text of its own; one is empty or comes twice.")


def _same(text: str, answer: str) -> bool:
    return text.strip().casefold() == answer.strip().casefold()


def _spans(text: str, answer: str) -> list[tuple[int, int]]:
    """Where an option's text stands in the answer as whole words."""
    words = r"\s+".join(map(re.escape, text.split()))
    return [found.span() for found in re.finditer(rf"(?<!\w){words}(?!\w)", answer, re.IGNORECASE)]


def _inside(span: tuple[int, int], spans: dict[str, list[tuple[int, int]]], letter: str) -> bool:
    """Whether a longer option's text covers the span."""
    return any(
        low <= span[0] and span[1] <= high and (low, high) != span
        for other, places in spans.items()
        if other != letter
        for low, high in places
    )
