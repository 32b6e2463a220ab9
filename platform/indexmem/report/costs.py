"""What each (method, budget) cost: tokens kept, cache bytes, seconds. Measured values only, averaged over samples."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.results.schema import OK
from indexmem.results.summary import FULL


@dataclass(frozen=True)
class Cost:
    """Means over one (method, budget)'s successful rows. Tokens are per head, bytes and seconds per sample."""

    method: str
    budget: Budget
    kept_min: int
    kept_mean: float
    kept_max: int
    measured_ratio: float
    kv_bytes: float
    extra_bytes: float  # indexer keys and latent memory, which decoding needs as well
    full_kv_bytes: float
    prefill_seconds: float
    score_seconds: float
    decode_seconds: float  # the batch's time, divided by its rows
    new_tokens: float
    truncated: float | None  # share of answers that hit their limit; null in old rows
    decode_kept_mean: float | None  # tokens a head held while decoding
    decode_kept_max: int | None

    @property
    def all_bytes(self) -> float:
        """All bytes that decoding needs."""
        return self.kv_bytes + self.extra_bytes

    @property
    def own_seconds(self) -> float:
        """What the method itself takes: scoring and decoding, without the prefill that all cells share."""
        return self.score_seconds + self.decode_seconds

    @property
    def cache_share(self) -> float:
        """All bytes that decoding needs, as a share of the full cache's."""
        return self.all_bytes / self.full_kv_bytes if self.full_kv_bytes else float("nan")


def costs(rows: pa.Table) -> tuple[Cost, ...]:
    """Costs in the order full cache, then budget, then method."""
    answered = rows.filter(pc.equal(rows["status"], OK))
    decode = pc.divide(answered["decode_seconds"], pc.cast(answered["decode_batch"], pa.float64()))
    extra = pc.add(answered["indexer_bytes"], answered["memory_bytes"])
    cut = pc.cast(answered["truncated"], pa.float64())
    table = answered.append_column("decode_each", decode).append_column("extra_bytes", extra).append_column("cut", cut)
    means = ["kept_mean", "measured_ratio", "kv_bytes", "extra_bytes", "full_kv_bytes", "new_tokens", "cut"]
    means += ["prefill_seconds", "score_seconds", "decode_each", "decode_kept_mean"]
    grouped = table.group_by(["method", "budget"]).aggregate(
        [("kept_min", "min"), ("kept_max", "max"), ("decode_kept_max", "max"), *((name, "mean") for name in means)]
    )
    found = [
        Cost(
            method=item["method"],
            budget=Budget.parse(item["budget"]),
            kept_min=item["kept_min_min"],
            kept_mean=item["kept_mean_mean"],
            kept_max=item["kept_max_max"],
            measured_ratio=item["measured_ratio_mean"],
            kv_bytes=item["kv_bytes_mean"],
            extra_bytes=item["extra_bytes_mean"],
            full_kv_bytes=item["full_kv_bytes_mean"],
            prefill_seconds=item["prefill_seconds_mean"],
            score_seconds=item["score_seconds_mean"],
            decode_seconds=item["decode_each_mean"],
            new_tokens=item["new_tokens_mean"],
            truncated=item["cut_mean"],
            decode_kept_mean=item["decode_kept_mean_mean"],
            decode_kept_max=item["decode_kept_max_max"],
        )
        for item in grouped.to_pylist()
    ]
    return tuple(sorted(found, key=lambda cost: (cost.method != FULL, cost.budget, cost.method)))
