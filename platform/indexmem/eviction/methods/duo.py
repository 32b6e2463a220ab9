"""DuoAttention: heads that retrieve keep the whole context, the others its beginning and end.

Shapes: N layers, B batch, H KV heads, g query heads per KV head, X heads that share a budget, L context tokens, T test
positions, d head_dim.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from indexmem.errors import UserError
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.params import check_number
from indexmem.eviction.ranking import comparable
from indexmem.eviction.selection import Shared
from indexmem.files import expanded
from indexmem.models.attention import LayerTap
from indexmem.models.projection import rotate

TEST_POSITIONS = 500
SCORES, SETTINGS = "full_attention_heads.tsv", "config.json"  # file names of published patterns


class DuoAttention(EvictionMethod):
    """DuoAttention (arXiv 2410.10819) with an exact budget.

    Every head keeps its first `sink_size` and last `recent_size` tokens. What the budget leaves goes to the heads by
    descending score, over all layers: each gets the whole context until the rest is smaller, and the next head spends
    that on a longer recent window. A budget below the windows shortens all of them alike, recent tokens first.
    kvpress (and the paper) instead set the share of streaming heads, so that the size depends on the context's length.

    `pattern` is a file of head scores, one row per layer and one column per KV head, or a folder as the authors publish
    them, whose window sizes then hold. Without it, heads are scored on the context itself: a retrieval head attends
    far back when all tokens look the same, `retrieval_scores`.
    """

    def __init__(
        self,
        context: MethodContext,
        pattern: str | None = None,
        sink_size: int | None = None,
        recent_size: int | None = None,
    ) -> None:
        """Raises UserError for a pattern that is missing, unreadable or of another model, and for window sizes < 1."""
        self.pattern_NH: Tensor | None = None
        settings: dict[str, int] = {}
        if pattern is not None:
            self.pattern_NH, settings = _read_pattern(expanded(pattern), context)
            self.checkpoint = hashlib.sha256(self.pattern_NH.numpy().tobytes()).hexdigest()[:16]
        self.sink_size = settings.get("sink_size", 128) if sink_size is None else sink_size
        self.recent_size = settings.get("recent_size", 256) if recent_size is None else recent_size
        for name in ("sink_size", "recent_size"):
            check_number(name, getattr(self, name), least=1, example=128)
        self.selection = HeadsInTurn("model", sink_size=self.sink_size, recent_size=self.recent_size)

    def score(self, tap: LayerTap) -> Tensor:
        """One number for all tokens of a head."""
        batch, heads, length = tap.key_BHLd.shape[:3]
        if self.pattern_NH is None:
            scores_BH = retrieval_scores(tap)
        else:
            scores_BH = self.pattern_NH[tap.layer].to(tap.key_BHLd.device).expand(batch, heads)
        return scores_BH[..., None].expand(batch, heads, length)


@dataclass(frozen=True)
class HeadsInTurn(Shared):
    """Heads by descending score: windows for all of them first, then the whole context for as many as it lasts."""

    sink_size: int = 0
    recent_size: int = 0

    def rank(self, scores_HL: Tensor, sinks: int) -> Tensor:
        """Of each head its score and how many first tokens it keeps in any case, [H, 2]."""
        first = torch.full_like(scores_HL[..., 0], max(self.sink_size, sinks))
        return comparable(torch.stack((scores_HL[..., 0], first), dim=-1), sinks=0, assume_no_nan=True)

    def mark(self, ranking: Tensor, tokens: int, target: float) -> Tensor:
        heads, device = len(ranking), ranking.device
        score_X, first = ranking[:, 0], int(ranking[0, 1])
        pairs = self.pairs(heads, tokens, target)
        window = min(first + self.recent_size, tokens, pairs // heads)
        left = torch.full((heads,), tokens - window, device=device)  # what a head that keeps its window could still get
        order = score_X.argsort(descending=True, stable=True)
        granted = (pairs - heads * window - (left.cumsum(0) - left)).clamp(min=0).minimum(left)
        counts_X = torch.empty_like(left).scatter_(0, order, window + granted)
        position_L = torch.arange(tokens, device=device)
        first_X = counts_X.clamp(max=first)
        return (position_L < first_X[:, None]) | (position_L >= tokens - (counts_X - first_X)[:, None])


def retrieval_scores(tap: LayerTap) -> Tensor:
    """How far back a head looks among equal tokens, in (0, 1): fp32 [B, H].

        score = mean_g mean_t sum_{u <= t} softmax_u(q . k scaling),   q = R(T - 1) mean_s q_s, k_u = R(u) mean_s k_s

    the area under the cumulated attention of the last of T positions that all hold the mean query and the mean key of
    the context (before RoPE): kvpress' `on_the_fly_scoring`, on the context itself instead of on books.
    """
    position_1T = torch.arange(TEST_POSITIONS, device=tap.key_BHLd.device)[None]
    cos_Tr, sin_Tr = (table[0].float() for table in tap.rotary(tap.hidden_BLD, position_1T))
    query_BQ1d = tap.query_pre_BQLd.mean(dim=2, keepdim=True)
    key_BHTd = tap.key_pre_BHLd.mean(dim=2, keepdim=True).expand(-1, -1, TEST_POSITIONS, -1)
    query_BHgd = rotate(query_BQ1d, cos_Tr[-1:], sin_Tr[-1:]).squeeze(2).unflatten(1, (key_BHTd.shape[1], -1))
    logits_BHgT = query_BHgd @ rotate(key_BHTd, cos_Tr, sin_Tr).transpose(-1, -2) * tap.scaling
    return logits_BHgT.softmax(dim=-1).cumsum(dim=-1).mean(dim=(-1, -2))


def _read_pattern(path: Path, context: MethodContext) -> tuple[Tensor, dict[str, int]]:
    """Head scores [N, H] in [0, 1], and the folder's window sizes if it has any."""
    table = path / SCORES if path.is_dir() else path
    if not table.is_file():
        raise UserError(
            f"pattern {path} is neither a file of head scores nor a folder with {SCORES}. "
            "The authors publish such folders; without `pattern`, heads are scored on the context."
        )
    rows = [line.split() for line in table.read_text(encoding="utf-8").splitlines() if line.strip()]
    shape = (context.geometry.layers, context.geometry.kv_heads)
    if (len(rows), {len(row) for row in rows}) != (shape[0], {shape[1]}):
        columns = "/".join(str(count) for count in sorted({len(row) for row in rows}))
        raise UserError(
            f"pattern {table} has {len(rows)} rows of {columns} numbers; this model has {shape[0]} layers with "
            f"{shape[1]} KV heads. Use a pattern of this model, or leave `pattern` out."
        )
    try:
        scores_NH = torch.tensor([[float(cell) for cell in row] for row in rows]).clamp(0, 1)
    except ValueError as error:
        raise UserError(f"pattern {table} must hold numbers alone: {error}") from None
    settings = path / SETTINGS
    return scores_NH, json.loads(settings.read_text(encoding="utf-8")) if path.is_dir() and settings.is_file() else {}
