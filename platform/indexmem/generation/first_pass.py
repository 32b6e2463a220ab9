"""The forward pass that fills an IndexMemCache: rows attend each to itself, are scored layer by layer and compressed.

Rows are padded on the left, and none of them sees another row's padding: what a row keeps is what it keeps alone.
Until all layers are scored K and V of the whole contexts are held, since budgets may be shared by all layers.
Shapes: R rows, L columns, N layers with full attention, H KV heads, Q query heads, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.config.budget import Budget
from indexmem.errors import UserError
from indexmem.eviction.context import ContextCache, RowCache, Window
from indexmem.eviction.footprint import Footprint, check_kept, target_of
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.ranking import has_nan, nan_error
from indexmem.eviction.selection import whole_tokens
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import SLIDING, Geometry
from indexmem.models.sequence_attention import attend_in_window


class FirstPass:
    """Attends (a KVView), watches the layers, and says what each row keeps."""

    def __init__(
        self,
        method: EvictionMethod,
        geometry: Geometry,
        kinds: Sequence[str],
        budget: Budget,
        sinks: int,
        valid_RL: Tensor,
        element_size: int,
    ) -> None:
        """`kinds`: how each layer of the model attends; `valid_RL`: False is padding.

        Raises UserError for padding that is not on the left, and for a context that the method cannot rank.
        """
        self._method, self._geometry, self._kinds, self._sinks = method, geometry, kinds, sinks
        self._columns = valid_RL.shape[1]
        lengths_R = _lengths(valid_RL)
        self._contexts = [ContextCache(tokens=length) for length in lengths_R]
        self._targets = [_target(method, geometry, budget, length, element_size) for length in lengths_R]
        self._scores: list[list[Tensor]] = [[] for _ in lengths_R]  # by row, then layer; none where nothing is to leave
        self._rows_of: dict[int, list[int]] = {}  # length -> rows
        for row, length in enumerate(lengths_R):
            self._rows_of.setdefault(length, []).append(row)

    def store(self, layer: int, key_RHnd: Tensor, value_RHnd: Tensor, cache_kwargs: object) -> None:
        """Nothing yet: `visit` and `see_window` keep what is to be kept."""

    def attend(self, layer: int, query_RQLd: Tensor, key_RHLd: Tensor, value_RHLd: Tensor, scaling: float) -> Tensor:
        """Causal attention of each row to itself, within the layer's window if it has one: [R, L, Q, d]."""
        window = self._geometry.window if self._kinds[layer] == SLIDING else None
        if len(self._rows_of) == 1 and self._columns in self._rows_of:
            return _attend(query_RQLd, key_RHLd, value_RHLd, window, scaling)
        output_RLQd = torch.zeros_like(query_RQLd).transpose(1, 2)
        for first, index_r in self._groups(query_RQLd.device):
            query, key, value = (x[index_r, :, first:] for x in (query_RQLd, key_RHLd, value_RHLd))
            output_RLQd[index_r, first:] = _attend(query, key, value, window, scaling)
        return output_RLQd

    def visit(self, tap: LayerTap) -> None:
        """Keep a layer's K and V, and score its tokens."""
        for first, index_r in self._groups(tap.key_BHLd.device):
            rows = index_r.tolist()
            group = tap.span(first, self._columns)
            if len(rows) < len(self._contexts):
                group = group.rows(index_r, self._columns - first)
            for number, row in enumerate(rows):
                context = self._contexts[row]
                context.keys_HLd.append(group.key_BHLd[number])
                context.values_HLd.append(group.value_BHLd[number])
                context.modules.append(tap.module)
                table = number if len(group.cos_BLr) > 1 else 0
                context.cos_Lr, context.sin_Lr = group.cos_BLr[table], group.sin_BLr[table]
            for row, scores_HL in zip(rows, self._score(group, rows)):
                self._scores[row].append(scores_HL)

    def see_window(self, layer: int, key_RHLd: Tensor, value_RHLd: Tensor) -> None:
        """Keep what a sliding-window layer holds at the end."""
        assert self._geometry.window is not None
        for context, key_HLd, value_HLd in zip(self._contexts, key_RHLd, value_RHLd):
            first = self._columns - context.tokens
            window = Window.of(layer, self._geometry.window, key_HLd[:, first:], value_HLd[:, first:])
            context.windows.append(window)

    def compressed(self) -> list[RowCache]:
        """What each row keeps. Raises ValueError for scores that cannot be ranked or a budget that was missed."""
        return [self._compress(row) for row in range(len(self._contexts))]

    def _groups(self, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """(first column, rows) of the rows of each length."""
        for length, rows in self._rows_of.items():
            yield self._columns - length, torch.tensor(rows, device=device)

    def _score(self, group: LayerTap, rows: Sequence[int]) -> Iterator[Tensor]:
        """Scores of rows of one length, [H, L] each; nothing where nothing is to leave.

        Row by row, since what some methods draw depends on the shape; but layers that share an indexer find its scores
        again by their length, and want the rows of one length together.
        """
        if self._keeps_all(rows[0]):
            return
        if self._method.layers_alike > 1:
            yield from self._method.score(group)
            return
        tokens = group.key_BHLd.shape[2]
        for number in torch.arange(len(rows), device=group.key_BHLd.device).split(1):
            yield self._method.score(group if len(rows) == 1 else group.rows(number, tokens))[0]

    def _keeps_all(self, row: int) -> bool:
        tokens = self._contexts[row].tokens
        return whole_tokens(self._targets[row], tokens) >= tokens

    def _compress(self, row: int) -> RowCache:
        method, context, target = self._method, self._contexts[row], self._targets[row]
        rankings = None if self._keeps_all(row) else self._rank(self._scores[row])
        kept = method.compress(context, rankings, target)
        check_kept(kept, target, method.selection.slack, method.selection.step)
        return kept

    def _rank(self, scores_HL: Sequence[Tensor]) -> list[Tensor]:
        if self._method.cross_layer:
            scores_HL = self._method.combine(scores_HL)
        scores_NHL = torch.stack(list(scores_HL))
        if has_nan(scores_NHL):
            raise nan_error()
        return list(self._method.selection.rank(scores_NHL, self._sinks))


def _lengths(valid_RL: Tensor) -> list[int]:
    """Tokens of each row, which end at the last column."""
    columns = valid_RL.shape[1]
    length_R = valid_RL.sum(1)
    on_the_left_RL = torch.arange(columns, device=valid_RL.device) >= columns - length_R[:, None]
    if not torch.equal(on_the_left_RL, valid_RL):
        raise UserError(
            "IndexMemCache reads rows that are padded on the left. Tokenize with padding_side='left', so that each row "
            "of attention_mask is zeros and then ones."
        )
    lengths = length_R.tolist()
    if 0 in lengths:
        raise UserError(f"Row {lengths.index(0)} of the batch is padding alone. Give it a token at least.")
    return lengths


def _target(method: EvictionMethod, geometry: Geometry, budget: Budget, tokens: int, element_size: int) -> float:
    """Tokens per KV head that a row may keep, before rounding."""
    granted = Footprint.of(method, geometry, tokens, element_size).granted(budget, tokens, equal_bytes=False)
    target = target_of(method, budget, tokens, granted)
    if tokens < method.min_context and whole_tokens(target, tokens) < tokens:
        raise UserError(
            f"The method ranks contexts of {method.min_context} tokens or more, and one of this batch has {tokens}. "
            "Ask it without a cache of ours, or evict nothing (compression_ratio=0)."
        )
    return target


def _attend(query_BQLd: Tensor, key_BHLd: Tensor, value_BHLd: Tensor, window: int | None, scaling: float) -> Tensor:
    """[B, L, Q, d]"""
    if window is not None and window < query_BQLd.shape[2]:
        return attend_in_window(query_BQLd, key_BHLd, value_BHLd, window, scaling)
    return F.scaled_dot_product_attention(
        query_BQLd, key_BHLd, value_BHLd, is_causal=True, scale=scaling, enable_gqa=True
    ).transpose(1, 2)
