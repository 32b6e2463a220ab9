"""The next token of each row of a decode batch, likeliest or drawn, and what ends an answer.

A row's draws come from a generator of its own, seeded by what is asked and not by who else is in the batch, so the
same row gives the same text in any batch, as far as floating point allows: other shapes of matmuls change logits in the
last bits, which moves a draw where two tokens' shares of the unit interval meet.
A choice happens on the device, step counter included, so that a captured step replays it.
Shapes: R rows, V vocabulary, S steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from indexmem.config.decoding import DecodingConfig


@dataclass(frozen=True)
class RowChoice:
    """What one row asks of the choice of its tokens."""

    steps: int  # tokens at most
    seed: int  # of its draws
    forbidden: tuple[int, ...] = ()  # tokens that may not come before `min_new_tokens`
    min_new_tokens: int = 0


class TokenChoice:
    """Called once a step with the logits of all rows."""

    def __init__(self, rows: Sequence[RowChoice], config: DecodingConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self._step_1 = torch.zeros(1, dtype=torch.long, device=device)
        self._uniform_RS = None if config.greedy else torch.stack([_uniforms(row, rows) for row in rows]).to(device)
        self._least_R1 = torch.tensor([[row.min_new_tokens] for row in rows], device=device)
        self._forbidden = [row.forbidden for row in rows]
        self._forbids = any(row.min_new_tokens and row.forbidden for row in rows)
        self._forbidden_RV = torch.empty(0)  # made when the vocabulary's size is known

    def __call__(self, logits_RV: Tensor) -> Tensor:
        """The rows' next tokens, [R]."""
        if self._forbids:
            logits_RV = logits_RV.masked_fill(self._too_early(logits_RV), -torch.inf)
        if self._uniform_RS is None:
            token_R = logits_RV.argmax(dim=-1)
        else:
            rows = self._uniform_RS.shape[0]
            token_R = draw(logits_RV, self._uniform_RS.gather(1, self._step_1.expand(rows, 1)), self._config)
        self._step_1.add_(1)
        return token_R

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self._least_R1 = self._least_R1[rows]
        self._forbidden = [self._forbidden[row] for row in rows.tolist()]
        if self._forbids:
            self._forbidden_RV = self._forbidden_RV[rows]
        if self._uniform_RS is not None:
            self._uniform_RS = self._uniform_RS[rows]

    def _too_early(self, logits_RV: Tensor) -> Tensor:
        if self._forbidden_RV.shape != logits_RV.shape:
            mask_RV = np.zeros(logits_RV.shape, bool)
            for row, tokens in enumerate(self._forbidden):
                mask_RV[row, list(tokens)] = True
            self._forbidden_RV = torch.from_numpy(mask_RV).to(self._device)
        return self._forbidden_RV & (self._step_1 < self._least_R1)


def draw(logits_RV: Tensor, uniform_R1: Tensor, config: DecodingConfig) -> Tensor:
    """Tokens [R] where each row's uniform number falls among its tokens' probabilities, the likeliest first.

    Temperature, then the `top_k` likeliest, then of those the fewest that reach `top_p` of their mass, as transformers
    orders them.
    """
    probability_RV = (logits_RV.float() / config.temperature).softmax(dim=-1)
    count = min(config.top_k, logits_RV.shape[-1]) or logits_RV.shape[-1]
    if count < logits_RV.shape[-1]:
        likely_RK, token_RK = probability_RV.topk(count)
        likely_RK = likely_RK / likely_RK.sum(dim=-1, keepdim=True)
    else:
        likely_RK, token_RK = probability_RV.sort(dim=-1, descending=True, stable=True)
    if config.top_p < 1:
        before_RK = likely_RK.cumsum(dim=-1) - likely_RK
        likely_RK = likely_RK.masked_fill(before_RK >= config.top_p, 0.0)
    mass_RK = likely_RK.cumsum(dim=-1)
    rank_R1 = (mass_RK <= uniform_R1 * mass_RK[:, -1:]).sum(dim=-1, keepdim=True)
    last_R1 = (likely_RK > 0).sum(dim=-1, keepdim=True) - 1  # rounding must not lead past what may be drawn
    return token_RK.gather(1, rank_R1.minimum(last_R1)).squeeze(1)


def _uniforms(row: RowChoice, rows: Sequence[RowChoice]) -> Tensor:
    """[S] numbers in [0, 1), the same for the row however long the others are."""
    drawn = np.random.Generator(np.random.Philox(row.seed)).random(row.steps, dtype=np.float32)
    longest = max(other.steps for other in rows)
    return torch.from_numpy(np.pad(drawn, (0, longest - row.steps)))


class Endings:
    """What ends one row's answer: one of the model's ending tokens, or a text."""

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
