"""What ends an answer: one of the model's ending tokens, or a text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class Endings:
    """The endings of one row."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int], stop: Sequence[str], min_new_tokens: int
    ) -> None:
        self._tokenizer, self._eos = tokenizer, frozenset(eos_ids)
        self._stop, self._least = tuple(stop), min_new_tokens
        # Every token but special ones gives a byte at least, so a text lies within as many tokens as it has bytes.
        self._reach = max((len(text.encode()) for text in stop), default=0)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Tokens that alone would end an answer: not to be chosen before it has its least length."""
        alone = [self._tokenizer.encode(text, add_special_tokens=False)[-1:] for text in self._stop]
        return (*sorted(self._eos), *(token for ids in alone for token in ids))

    def reached(self, token_ids: list[int]) -> bool:
        """Whether the newest token ends the answer. Texts count behind its least length only."""
        if len(token_ids) <= self._least:
            return False
        if token_ids[-1] in self._eos:
            return True
        if not self._stop:
            return False
        newest = token_ids[max(self._least, len(token_ids) - self._reach) :]
        text = self._tokenizer.decode(newest, skip_special_tokens=True)
        return any(ending in text for ending in self._stop)
