"""The filler that needles are hidden in, as units (sentences or lines) that are added until the budget is full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from indexmem.benchmarks.ruler.fit import tokens_of_each
from indexmem.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOISE_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

MAX_WORDS = 60  # of a sentence; text without full stops must not become one unit that never fits

MAX_CHARACTERS = 100  # of a word, in the mean: text with longer ones counts as one without spaces, and is cut there

UNSPACED = 1  # version of what is made of texts without spaces

# Full-width stops, exclamation and question marks end a sentence without a space; a closing quote belongs to it.
_MARK, _CLOSING = r"[\u3002\uff01\uff1f\uff61]", r"[\u300d\u300f\u201d\u2019\uff09]"
FULL_WIDTH_END = rf"{_MARK}{_CLOSING}?"
_SENTENCE_END = re.compile(
    r"""(?:(?<=[.!?])|(?<=[.!?]["')\]\u201d\u2019]))\s+(?![a-z])"""
    rf"|(?<={_MARK})(?!{_MARK}|{_CLOSING})|(?<={_MARK}{_CLOSING})"
)


@dataclass(frozen=True)
class Haystack:
    """Units of filler, cycled when the text runs out, and the tokens of each one taken alone."""

    units: Sequence[str]
    tokens: Sequence[int]
    separator: str

    @classmethod
    def of(cls, units: Sequence[str], separator: str, tokenizer: PreTrainedTokenizerBase) -> Haystack:
        """Tokenise each unit with its separator, in one pass."""
        tokens = tokens_of_each([separator + unit for unit in units], tokenizer)
        return cls(units=units, tokens=tokens, separator=separator)

    def starting_at(self, offset: int) -> Haystack:
        """This text, begun at unit `offset` and wrapped around."""
        return Haystack(
            units=[*self.units[offset:], *self.units[:offset]],
            tokens=[*self.tokens[offset:], *self.tokens[:offset]],
            separator=self.separator,
        )

    def with_needles(self, count: int, needles: Sequence[tuple[float, str]]) -> str:
        """The first `count` units with needles between them; a needle's depth in [0, 1] is a share of the units."""
        pieces = list(islice(cycle(self.units), count))
        for depth, needle in sorted(needles, reverse=True):  # from the back, so earlier places stay valid
            pieces.insert(int(count * depth), needle)
        return self.separator.join(pieces)


def sentences(text: str) -> list[str]:
    """Sentences of `text` with white space normalised, none over MAX_WORDS words. Raises UserError on blank text.

    Splitting errs towards short units ("Mr. Smith" is cut): a haystack needs seams, not grammar. Chinese and Japanese
    sentences end in full-width marks; a stretch without spaces is cut after MAX_CHARACTERS.
    """
    found = [unit for piece in _pieces(text) for unit in (_by_characters(piece) if _unspaced(piece) else [piece])]
    if not found:
        raise UserError("The haystack text is empty. Set grid.haystack to a built-in text, a file or a folder of text.")
    return found


def is_spaced(text: str) -> bool:
    """Whether only spaces, stops and numbers of words decide where `text` is cut: the samples of such texts are older
    than the rules for others, and keep their identity.
    """
    return re.search(FULL_WIDTH_END, text) is None and not any(map(_unspaced, _pieces(text)))


def _pieces(text: str) -> list[str]:
    """Sentences, or MAX_WORDS words of one."""
    found = []
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        words = sentence.split()
        found += [" ".join(words[start : start + MAX_WORDS]) for start in range(0, len(words), MAX_WORDS)]
    return found


def _unspaced(piece: str) -> bool:
    return len(piece) > MAX_CHARACTERS * (1 + piece.count(" "))


def _by_characters(piece: str) -> list[str]:
    return [piece[start : start + MAX_CHARACTERS].strip() for start in range(0, len(piece), MAX_CHARACTERS)]
