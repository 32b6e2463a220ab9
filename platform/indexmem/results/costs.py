"""What each (method, budget) cost: tokens kept, cache bytes, seconds. Measured values only, averaged over samples."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import Budget
from indexmem.results.samples import Column
from indexmem.results.schema import FULL_LABEL, OK, alone_seconds, extra_bytes, held_bytes


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
    decode_seconds: float | None  # of answers that were each decoded alone; None where cells shared batches
    new_tokens: float
    truncated: float | None  # share of answers that hit their limit; null in old rows
    decode_kept_mean: float | None  # tokens a head held while decoding
    decode_kept_max: int | None
    fidelity_kl: float | None  # from the full cache, nats a token
    fidelity_top1: float | None  # share of tokens on which it agrees with the full cache

    @property
    def measured(self) -> bool:
        """Whether bytes and scoring time were measured, which old rows may lack."""
        return None not in (self.kv_bytes, self.extra_bytes, self.full_kv_bytes, self.score_seconds)

    @property
    def all_bytes(self) -> float:
        """All bytes that decoding needs."""
        return self.kv_bytes + self.extra_bytes

    @property
    def cache_share(self) -> float:
        """All bytes that decoding needs, as a share of the full cache's."""
        return self.all_bytes / self.full_kv_bytes if self.full_kv_bytes else float("nan")


UNEQUAL = 1.05  # times the bytes of another one is no longer the same
EXTREMES = {"kept_min": "min", "kept_max": "max", "decode_kept_max": "max"}
MEASURED = tuple(field.name for field in fields(Cost) if field.name not in ("method", "budget"))


def shares_held(rows: pa.Table) -> dict[Column, float]:
    """(method, budget) -> all bytes that decoding needs, as a share of the full cache's; {} where rows lack them."""
    if not {"kv_bytes", "indexer_bytes", "memory_bytes", "full_kv_bytes"} <= set(rows.column_names):
        return {}
    sums = rows.append_column("held", held_bytes(rows)).group_by(["method", "budget"])
    found = sums.aggregate([("held", "sum"), ("full_kv_bytes", "sum")]).to_pylist()
    return {
        (item["method"], Budget.parse(item["budget"])): item["held_sum"] / item["full_kv_bytes_sum"]
        for item in found
        if item["held_sum"] and item["full_kv_bytes_sum"]
    }


def costs(rows: pa.Table) -> tuple[Cost, ...]:
    """Costs in the order full cache, then budget, then method."""
    answered = rows.filter(pc.equal(rows["status"], OK))
    table = answered.drop_columns(["decode_seconds", "truncated"])
    table = table.append_column("decode_seconds", alone_seconds(answered))
    table = table.append_column("truncated", pc.cast(answered["truncated"], pa.float64()))
    table = table.append_column("extra_bytes", extra_bytes(answered))
    aggregates = [(name, EXTREMES.get(name, "mean")) for name in MEASURED]
    found = [
        Cost(item["method"], Budget.parse(item["budget"]), *(item[f"{name}_{how}"] for name, how in aggregates))
        for item in table.group_by(["method", "budget"]).aggregate(aggregates).to_pylist()
    ]
    return tuple(sorted(found, key=lambda cost: (cost.method != FULL_LABEL, cost.budget, cost.method)))
