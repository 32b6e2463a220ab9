"""kvpress' scorers around Compactor (arXiv 2507.08143): random sketches that are seeded, and the blend of two scores.

Shapes: B batch, H KV heads, L context tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from kvpress import CURPress, LeverageScorePress, NonCausalAttnPress, ScorerPress
from torch import Tensor
from torch.nn import functional as F

from indexmem.eviction.kept import Kept
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.kvpress_scores import KvpressMethod
from indexmem.eviction.methods.params import check_number
from indexmem.eviction.ranking import comparable, newest_above_all, rank
from indexmem.eviction.selection import PerHead
from indexmem.models.attention import LayerTap


class Seeded(KvpressMethod):
    """A kvpress scorer that draws random numbers, seeded so that a cell always keeps the same tokens."""

    def __init__(self, press: ScorerPress, seed: int = 0) -> None:
        super().__init__(press)
        self.seed = seed

    def score(self, tap: LayerTap) -> Tensor:
        with seeded(self.seed, tap):
            return super().score(tap)


class CUR(Seeded):
    """Leverage of keys and values; without the random projection it reads no more than them."""

    in_fp32 = True

    def __init__(self, press: CURPress, seed: int = 0) -> None:
        super().__init__(press, seed)
        self.last_queries = None if press.use_random_leverage else 0


class Compactor(EvictionMethod):
    """Outlying keys (approximate leverage scores) and attention without causality, blended.

        score = blending * leverage + attention,   blending = the evicted share of the context unless it is given

    The first `sink_size_start` and last `sink_size_end` tokens come before all others, the newest of the last ones
    first. The blend depends on the budget, so both scores are kept until it is known.
    """

    def __init__(
        self,
        sink_size_start: int = 8,
        sink_size_end: int = 4,
        chunk_size: int = 256,
        sketch_dimension: int = 48,
        blending: float | None = None,
        seed: int = 0,
    ) -> None:
        """Raises UserError for negative numbers of tokens."""
        check_number("sink_size_start", sink_size_start, least=0, example=8)
        check_number("sink_size_end", sink_size_end, least=0, example=4)
        self.first, self.last = sink_size_start, sink_size_end
        self.selection = Blended(blending=blending)
        self.leverage = Seeded(LeverageScorePress(sketch_dimension=sketch_dimension), seed)
        self.attention = KvpressMethod(NonCausalAttnPress(chunk_size=chunk_size))
        self.min_context = sink_size_start + sink_size_end + 2

    def score(self, tap: LayerTap) -> Tensor:
        """Leverage and attention, [B, 2, H, L]."""
        length = tap.key_BHLd.shape[2]
        middle = tap.span(self.first, length - self.last)
        leverage_BHL = F.pad(self.leverage.score(middle).float(), (self.first, self.last))
        attention_BHL = F.pad(self.attention.score(middle).float(), (self.first, self.last), value=float("inf"))
        age_L = torch.arange(self.last, device=attention_BHL.device).flip(0)
        attention_BHL[..., length - self.last :] = newest_above_all(age_L)
        return torch.stack((leverage_BHL, attention_BHL), dim=1)


@dataclass(frozen=True)
class Blended(PerHead):
    """The best tokens of each head by two scores, the first weighed by the evicted share unless `blending` is given."""

    blending: float | None = None

    def rank(self, scores_2HL: Tensor, sinks: int) -> Tensor:
        leverage_HL, attention_HL = scores_2HL.unbind(dim=-3)
        ready = (comparable(leverage_HL, 0, assume_no_nan=True), comparable(attention_HL, sinks, assume_no_nan=True))
        return torch.stack(ready, dim=-3)

    def choose(self, rankings: Sequence[Tensor], tokens: int, target: float) -> list[Kept]:
        blending = 1 - target / tokens if self.blending is None else self.blending
        blended_HL = [blending * leverage_HL + attention_HL for leverage_HL, attention_HL in rankings]
        return super().choose([rank(scores_HL, sinks=0) for scores_HL in blended_HL], tokens, target)


@contextmanager
def seeded(seed: int, tap: LayerTap) -> Iterator[None]:
    """Random numbers drawn within depend on seed, layer and length. Afterwards the generators are as they were."""
    device, length = tap.key_BHLd.device, tap.key_BHLd.shape[2]
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    # By hand: `torch.manual_seed` seeds all kinds of devices, which takes longer than a score.
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed((seed * 1_000_003 + tap.layer) * 1_000_003 + length)
    try:
        yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)
