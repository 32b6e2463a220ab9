"""Compression while decoding: every tau generated tokens a row's cache goes back to B_max tokens, layer by layer.

The first compression follows the question. Sinks and the most recent tokens always stay, the row's method ranks the
rest, and what leaves is written to the row's latent memory. So the cache of a row never holds more than B_max + tau
tokens while answering, and B_max + question while reading the question: per head, or in the mean over the heads that
share a budget by the row's method.
Shapes: R rows, H KV heads, T cached tokens, K kept tokens, d head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from indexmem.config.schema import EvictionConfig
from indexmem.engine.cache import RaggedCache
from indexmem.eviction.context import RowCache
from indexmem.eviction.kept import Kept, everything, lengths_of, oldest_first
from indexmem.eviction.memory.base import Evicted, LatentMemory
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.decode_scorer import CachedTokens, DecodeScorer
from indexmem.eviction.selection import GrownLayer, Selection
from indexmem.models.attention import LayerTap, attention_layers, output_weight, rotary_of, tapping
from indexmem.models.projection import unrotate

LARGEST = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max  # of scores that compete


@dataclass(frozen=True)
class Compression:
    """How a row is compressed while it decodes: by which method, to how many tokens."""

    method: EvictionMethod
    budget: int  # B_max, in tokens per KV head and layer
    config: EvictionConfig  # how often, and what always stays

    def __post_init__(self) -> None:
        assert self.budget > self.config.always_kept, "the budget holds what always stays"


def room_for(question: int, new: int, config: EvictionConfig | None) -> int:
    """Columns behind the compressed contexts of a batch; with a decode budget no more than fill up in an interval."""
    if config is None or config.decode_budget is None:
        return question + new
    return question + min(new, config.decode_every)


@dataclass(frozen=True)
class HeldPositions:
    """Where in the text a row's cached tokens of a layer come from: positions, ascending. A head that holds fewer than
    T, as many as the one that holds most, repeats its first one before it."""

    position_HT: Tensor
    lengths_H: Sequence[int]

    @classmethod
    def of(cls, row: RowCache, layer: int) -> Self:
        """What is kept of a context."""
        return cls(row.oldest_first(layer), row.lengths(layer))

    @property
    def is_even(self) -> bool:
        """Whether all heads hold as many."""
        return len(set(self.lengths_H)) == 1

    @cached_property
    def valid_HT(self) -> Tensor:
        """False where a head repeats."""
        longest, device = self.position_HT.shape[1], self.position_HT.device
        if self.is_even:
            return torch.ones_like(self.position_HT, dtype=torch.bool)
        length_H1 = torch.tensor(self.lengths_H, device=device)[:, None]
        return torch.arange(longest, device=device) >= longest - length_H1

    def up_to(self, following: int, tokens: int) -> HeldPositions:
        """With all tokens from position `following` on in every head: `tokens` columns in all."""
        new = tokens - self.position_HT.shape[1]
        new_n = following + torch.arange(new, device=self.position_HT.device)
        position_HT = torch.cat((self.position_HT, new_n.expand(len(self.position_HT), -1)), dim=1)
        return HeldPositions(position_HT, [length + new for length in self.lengths_H])

    def only(self, columns_HK: Tensor, lengths_H: Sequence[int]) -> HeldPositions:
        """The tokens in these columns."""
        return HeldPositions(self.position_HT.gather(1, columns_HK), lengths_H)


@dataclass
class _Group:
    """The rows that one method ranks."""

    scorer: DecodeScorer
    selection: Selection
    row_r: Tensor  # batch indices, ascending


_Member = tuple[_Group, int]  # a row's group, and its number among the group's rows
_Choice = tuple[Kept, Sequence[int]]  # which of a layer's cached tokens stay, as columns, and how many of each head


class Recompression:
    """Keeps a batch's cache within its budget. All rows generate in step, so all are compressed at the same time."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: RaggedCache,
        contexts: Sequence[tuple[RowCache, int]],
        compressions: Sequence[Compression],
    ) -> None:
        """`contexts`: each row's compressed context, and how many tokens it had. Rows may differ in budget alone."""
        self.cache, self._model, self.config = cache, model, compressions[0].config
        assert all(compression.config == self.config for compression in compressions), "one policy for a batch"
        self._budget_R = [compression.budget for compression in compressions]
        # Of each row's tokens at the last repacking, by row and layer; what came since has consecutive positions.
        self._held = [[HeldPositions.of(row, layer) for layer in range(len(row.kept_HK))] for row, _ in contexts]
        self._next_position = [tokens for _, tokens in contexts]
        members: dict[int, list[int]] = {}
        for row, compression in enumerate(compressions):
            members.setdefault(id(compression.method), []).append(row)
        self._groups = []
        for rows in members.values():
            method = compressions[rows[0]].method
            scorer = method.decode_scorer([contexts[row][0] for row in rows])
            assert scorer is not None, "plan() refuses methods that cannot score while decoding"
            self._groups.append(_Group(scorer, method.selection, torch.tensor(rows, device=model.device)))
        self._scaling: dict[int, float] = {}  # layer -> the backbone's logit scale

    def watching(self) -> AbstractContextManager[dict[str, Any]]:
        """Within, forward passes with the yielded keywords are seen by the scorers."""
        return tapping(self._model, self._observe)

    def compress(self, remaining: int) -> None:
        """Bring every row and layer back to the budget; at most `remaining` more tokens will follow."""
        for group in self._groups:
            group.scorer.begin_compression()
        # Repacking moves columns, so it waits until something must leave or the buffers would run over.
        lengths_NR = self.cache.lengths().unflatten(1, (len(self._budget_R), -1)).amax(2)
        over_budget = bool((lengths_NR > lengths_NR.new_tensor(self._budget_R)).any())
        if over_budget or self.cache.free_columns < min(remaining, self.config.decode_every):
            members = {
                row: (group, number) for group in self._groups for number, row in enumerate(group.row_r.tolist())
            }
            chosen = {row: self._choose_shared(row, x) for row, x in members.items() if x[0].selection.shares}
            self.cache.repack(partial(self._keep, members, chosen))
            newest_R = torch.stack([layers[0].position_HT[0, -1] for layers in self._held])
            self._next_position = [newest + 1 for newest in newest_R.tolist()]  # a GPU is waited for once
        for group in self._groups:
            group.scorer.end_compression()

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        numbers = rows.tolist()
        self._held = [self._held[row] for row in numbers]
        self._budget_R = [self._budget_R[row] for row in numbers]
        self._next_position = [self._next_position[row] for row in numbers]
        for group in self._groups:
            where = (group.row_r == rows[:, None]).nonzero()
            group.scorer.select(where[:, 1])
            group.row_r = where[:, 0]
        self._groups = [group for group in self._groups if len(group.row_r)]

    def _observe(self, tap: LayerTap) -> None:
        self._scaling[tap.layer] = tap.scaling
        valid_Rn = self.cache.newest_valid_Rn
        for group in self._groups:
            group.scorer.observe(tap, group.row_r, valid_Rn)

    def _choose_shared(self, row: int, member: _Member) -> list[_Choice]:
        """What each layer keeps of a row whose heads share a budget. All scores are held for it, and nothing else."""
        scored = []
        for layer, held_by_layer in enumerate(self._held[row]):
            key_HTd = self.cache.keys_of(row, layer)
            held = held_by_layer.up_to(self._next_position[row], key_HTd.shape[1])
            scored.append(GrownLayer(self._score(member, layer, key_HTd, held), held.position_HT, held.lengths_H))
        kept = member[0].selection.choose_grown(scored, self._budget_R[row], self.config.always_kept)
        lengths = lengths_of([x.positions_HK for x in kept], [x.counts_H for x in kept if x.counts_H is not None])
        return list(zip(kept, lengths, strict=True))

    def _choose(self, row: int, member: _Member, layer: int, key_HTd: Tensor, held: HeldPositions) -> _Choice:
        """What a layer keeps whose heads have budgets of their own."""
        heads, tokens, _ = key_HTd.shape
        budget = self._budget_R[row]
        if tokens <= budget:  # nothing leaves, so nothing is scored
            kept = everything(heads, tokens, key_HTd.device)
        else:
            grown = GrownLayer(self._score(member, layer, key_HTd, held), held.position_HT, held.lengths_H)
            (kept,) = member[0].selection.choose_grown([grown], budget, self.config.always_kept)
        return kept, [kept.positions_HK.shape[1]] * heads

    def _keep(
        self,
        members: Mapping[int, _Member],
        chosen: Mapping[int, Sequence[_Choice]],
        row: int,
        layer: int,
        key_HTd: Tensor,
        value_HTd: Tensor,
    ) -> tuple[Tensor, Sequence[int]]:
        """Which of a row's tokens stay, and how many of each head; what leaves is written to the row's memory."""
        held = self._held[row][layer].up_to(self._next_position[row], key_HTd.shape[1])
        group, number = members[row]
        choice = chosen[row][layer] if row in chosen else self._choose(row, members[row], layer, key_HTd, held)
        (index_HK, counts_H), lengths_H = choice
        if sum(lengths_H) < sum(held.lengths_H):
            leaves_HT = held.valid_HT.scatter(1, index_HK, False)
            evicted = partial(self._evicted, layer, key_HTd, value_HTd, held.position_HT, leaves_HT)
            self.cache.memories.write(layer, row, evicted)
        stays_HK = oldest_first(index_HK, counts_H)
        group.scorer.keep(number, layer, stays_HK, lengths_H)
        self._held[row][layer] = held.only(stays_HK, lengths_H)
        return index_HK, lengths_H

    def _score(self, member: _Member, layer: int, key_HTd: Tensor, held: HeldPositions) -> Tensor:
        """Scores [H, T], +inf for what always stays."""
        group, number = member
        valid_HT = None if held.is_even else held.valid_HT
        cached = CachedTokens(number, layer, key_HTd, held.position_HT, self._scaling[layer], valid_HT)
        scores_HT = group.scorer.score(cached).float()
        if group.selection.shares:  # what a scorer protects competes: other heads need not hold as much of it
            scores_HT = scores_HT.clamp(*LARGEST)
        return protect(scores_HT, held.position_HT, self.config.sinks, self.config.decode_window)

    def _evicted(
        self,
        layer: int,
        key_HTd: Tensor,
        value_HTd: Tensor,
        position_HT: Tensor,
        leaves_HT: Tensor,
        memory: LatentMemory,
    ) -> Evicted:
        if memory.shape.rotary == "pre":
            # Heads hold different tokens: each is a batch row with rotary tables of its own.
            cos_HTr, sin_HTr = rotary_of(self._model)(key_HTd, position_HT)
            key_HTd = unrotate(key_HTd[:, None], cos_HTr, sin_HTr)[:, 0]
        weight = output_weight(attention_layers(self._model)[layer]) if memory.shape.value == "model" else None
        return Evicted(key_HTd[None], value_HTd[None], leaves_HT[None], weight)


def protect(scores_HT: Tensor, position_HT: Tensor, sinks: int, window: int) -> Tensor:
    """Scores with +inf for the first `sinks` tokens and for the most recent `window` tokens up to the newest one."""
    recent_HT = position_HT > position_HT[:, -1:] - window
    return scores_HT.float().masked_fill((position_HT < sinks) | recent_HT, float("inf"))
