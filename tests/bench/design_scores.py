"""How much of the eviction error memories remove on held-out text, beside keeping as many more tokens as they cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indexmem.eviction.indexer import IndexerStack
from indexmem.eviction.memory.attention import AttentionPart, merge, partial_attention
from indexmem.eviction.memory.base import Evicted, LatentMemory
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.learned import IndexerScores
from indexmem.eviction.ranking import keep, rank
from indexmem.eviction.selection import tokens_left
from indexmem.models.attention import LayerTap, output_weight, tapping
from indexmem.models.backbone import Backbone

RATIOS = (0.5, 0.75, 0.9)
SINKS = 4
DRAWS = 500  # of the bootstrap

Errors = dict[tuple[str, float], NDArray[np.float64]]  # (design, ratio) -> [layers, 2]: error left, error without it


def more_tokens(count: int) -> str:
    """Name of the baseline that keeps `count` more tokens per head."""
    return f"{count} more tokens, no memory"


@torch.inference_mode()
def measure(
    backbone: Backbone,
    indexers: IndexerStack,
    memories: Mapping[str, MemoryStack],
    extra: Sequence[int],
    ids: list[int],
    context: int,
) -> Errors:
    """Squared errors on one sequence, of which all tokens after `context` are queries."""
    scorer, layers = IndexerScores(indexers), backbone.geometry.layers
    errors: Errors = defaultdict(lambda: np.zeros((layers, 2)))

    def visit(tap: LayerTap) -> None:
        seen = tap.prefix(context)
        query = tap.query_BQLd[:, :, context:]
        new = query.shape[2]
        ranking = rank(scorer.score(seen)[0], SINKS)
        causal = torch.ones(new, new, dtype=torch.bool, device=query.device).tril()
        own = partial_attention(
            query, tap.key_BHLd[:, :, context:], tap.value_BHLd[:, :, context:], tap.scaling, causal
        )

        def over(positions_HK: Tensor) -> AttentionPart:
            index = positions_HK[None, ..., None].expand(1, -1, -1, tap.key_BHLd.shape[-1])
            return partial_attention(
                query, seen.key_BHLd.gather(2, index), seen.value_BHLd.gather(2, index), tap.scaling
            )

        for ratio in RATIOS:
            count = tokens_left(context, ratio)
            kept = keep(ranking, count)
            plain = merge(over(kept), own)
            full = merge(over(kept), own, over(ranking[:, count:].long()))[0]
            missing = _square(full - plain[0])
            for tokens in extra:
                better = merge(over(keep(ranking, min(context, count + tokens))), own)[0]
                errors[more_tokens(tokens), ratio][tap.layer] = _square(full - better), missing
            leaves = torch.ones_like(ranking, dtype=torch.bool).scatter_(1, kept, False)
            for name, stack in memories.items():
                memory: LatentMemory = stack[tap.layer]  # type: ignore[assignment]
                errors[name, ratio][tap.layer] = _remaining(memory, tap, context, leaves, full, plain)

    with tapping(backbone.model, visit) as kwargs:
        backbone.model.get_decoder()(torch.tensor([ids], device=backbone.device), use_cache=False, **kwargs)
    return errors


def summarise(sequences: Sequence[Errors]) -> list[dict[str, Any]]:
    """Share removed: mean over layers with a 95 % bootstrap interval over sequences, and pooled over layers."""
    rng = np.random.default_rng(0)
    draw_DN = rng.integers(len(sequences), size=(DRAWS, len(sequences)))
    rows = []
    for name, ratio in sequences[0]:
        errors_NL2 = np.stack([errors[name, ratio] for errors in sequences])
        by_layer = _removed(errors_NL2.sum(0))
        low, high = np.quantile(_removed(errors_NL2[draw_DN].sum(1)).mean(-1), (0.025, 0.975))
        rows.append(
            {
                "design": name,
                "ratio": ratio,
                "mean_over_layers": float(by_layer.mean()),
                "low": float(low),
                "high": float(high),
                "pooled": float(_removed(errors_NL2.sum((0, 1)))),
                "worst_layer": float(by_layer.min()),
                "sequences": len(sequences),
                "by_layer": [round(float(x), 4) for x in by_layer],
            }
        )
    return sorted(rows, key=lambda row: (row["ratio"], -row["mean_over_layers"]))


def _remaining(
    memory: LatentMemory, tap: LayerTap, context: int, leaves_HC: Tensor, full_BQnd: Tensor, plain: AttentionPart
) -> tuple[float, float]:
    """Squared error with the memory and without, both after the output projection if that is where it adds."""
    before = memory.shape.rotary == "pre"
    key, query = (tap.key_pre_BHLd, tap.query_pre_BQLd) if before else (tap.key_BHLd, tap.query_BQLd)
    weight = output_weight(tap.module) if memory.shape.value == "model" else None
    evicted = Evicted(key[:, :, :context], tap.value_BHLd[:, :, :context], leaves_HC[None], weight)
    read = memory.read(memory.write(None, evicted), query[:, :, context:], *plain)
    left, missing = full_BQnd - read.output_BQnd, full_BQnd - plain[0]
    if read.residual_BnD is None:
        return _square(left), _square(missing)
    projected: Callable[[Tensor], Tensor] = lambda x: x.transpose(1, 2).flatten(2) @ output_weight(tap.module).float().T  # noqa: E731
    return _square(projected(left) - read.residual_BnD), _square(projected(missing))


def _square(x: Tensor) -> float:
    return x.square().sum().item()


def _removed(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 - errors[..., 0] / errors[..., 1]
