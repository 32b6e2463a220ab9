"""The training kernels against blocks of torch, against sdpa and against what the device could do at best.

    python tests/bench/kernel_times.py --out kernels.json                         # a GPU, some minutes
    python tests/bench/kernel_times.py --out kernels.json --device cpu --smoke    # tries the bench itself, in seconds

Rows: the indexer's maximum (H_i = 8, d_i = 16, one score row) for each length and dtype, with the error of its values
and the share of winners that are the exact ones; the teacher's passes on Llama-3.1-8B's heads (32 of queries, 8 of
keys, 128 dims, bf16), over a text read once and over one that is read again in chunks. On a CPU without Triton's
interpreter (TRITON_INTERPRET=1) kernels fail, and their rows say so. The file is written after each row; a row that
fails is recorded, and the bench goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from device_clock import copied_bytes_per_second, seconds
from device_limits import SUSTAINED_H200, Limits, indexer_floor, lse_floor, reread_floor, teacher_floor
from torch.nn import functional as F

from indexmem.config.modules import TargetConfig
from indexmem.distill.targets import pooled_target, reconstruction_target
from indexmem.eviction.indexer import Features, Indexer, IndexerShape
from indexmem.eviction.streaming import causal_max
from indexmem.models.rereading import Readings, Reread
from indexmem.models.sequence_attention import attend_with_lse
from indexmem.provenance import provenance

INDEXER_HEADS, INDEXER_DIM = 8, 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LENGTHS = [4096, 8192, 16384, 32768, 65536, 131072]
SMOKE = {"lengths": [64], "chunk": 24, "repeats": 1}
KERNELS = ["indexer_max", "teacher", "reread_max"]
COMPARED = 32768  # tokens up to which results are compared, too


def attempt(row: dict[str, Any], name: str, work: Callable[[], Any]) -> Any:
    """The work's result, put into the row under this name; None where it fails, and why."""
    try:
        result = work()
    except Exception as error:  # out of memory, a kernel that does not compile: other figures are still worth having
        row.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"[:300]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None
    row[name] = result
    return result


def indexer_row(limits: Limits, device: torch.device, tokens: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    from indexmem.kernels.indexer_max import indexer_max  # needs Triton: a row without it says so

    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(1, tokens, *shape, device=device)  # noqa: E731
    q, k = (F.rms_norm(draw(*shape), (INDEXER_DIM,)) for shape in ((1, INDEXER_HEADS, INDEXER_DIM), (INDEXER_DIM,)))
    exact = Features(q, k, draw(1, INDEXER_HEADS), torch.zeros(1, 1, tokens, device=device))
    features = replace(exact, q_BSGHi=q.to(dtype), k_BTi=k.to(dtype))
    lengths_B = torch.tensor([tokens], device=device)
    indexer = Indexer(IndexerShape("layer", INDEXER_HEADS, INDEXER_DIM, "relu", 1), 1, 1)

    def by_kernel(given: Features) -> tuple[torch.Tensor, torch.Tensor]:
        return indexer_max(given.q_BSGHi, given.k_BTi, given.alpha_BSGH, lengths_B, "relu")

    def by_torch() -> tuple[torch.Tensor, torch.Tensor]:
        return causal_max(lambda start, stop: indexer.score_rows(exact, start, stop), lengths_B, 1)

    def agreement() -> dict[str, float]:
        (best, winner), (expected, exact_winner) = by_kernel(features), by_torch()
        value = indexer._winning_scores(exact, winner)
        return {
            "largest_error": (best - expected).abs().max().item(),
            "largest_loss": (expected - value).max().item(),
            "same_winners": (winner == exact_winner).float().mean().item(),
        }

    row: dict[str, Any] = {"kernel": "indexer_max", "tokens": tokens, "dtype": str(dtype).removeprefix("torch.")}
    row["floors"] = indexer_floor(limits, tokens, INDEXER_HEADS, INDEXER_DIM, dtype.itemsize)
    attempt(row, "seconds", lambda: seconds(lambda: by_kernel(features), device, repeats))
    if dtype == torch.float32:  # the same work for every dtype: blocks of torch are fp32
        attempt(row, "torch_seconds", lambda: seconds(by_torch, device, repeats))
    if tokens <= COMPARED:
        attempt(row, "agreement", agreement)
    return row


def teacher_rows(limits: Limits, device: torch.device, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    from indexmem.kernels.row_lse import row_lse
    from indexmem.kernels.teacher_max import teacher_max

    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, tokens, heads, HEAD_DIM, device=device, dtype=torch.bfloat16).transpose(1, 2)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    lengths_B, scale = torch.tensor([tokens], device=device), HEAD_DIM**-0.5
    block = max(8, min(128, tokens))  # as without kernels
    expected: dict[str, torch.Tensor] = {}

    def by_torch() -> None:
        expected["target"] = pooled_target(
            query, key, lengths_B, rows=KV_HEADS, scale=scale, config=TargetConfig(source="logprobs"), block=block
        )

    base = {"tokens": tokens, "dtype": "bfloat16"}
    row: dict[str, Any] = {"kernel": "row_lse", **base}
    row["floors"] = lse_floor(limits, tokens, HEADS, KV_HEADS, HEAD_DIM)
    attempt(row, "seconds", lambda: seconds(lambda: row_lse(query, key, lengths_B, scale), device, repeats))
    sdpa = lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)  # noqa: E731
    attempt(row, "sdpa_seconds", lambda: seconds(sdpa, device, repeats))
    shared = lambda: attend_with_lse(query, key, value, scale)  # noqa: E731
    attempt(row, "sdpa_with_lse_seconds", lambda: seconds(shared, device, repeats))
    if (known := attempt(row, "has_lse", lambda: shared() is not None)) and tokens <= COMPARED:
        gap = lambda: (row_lse(query, key, lengths_B, scale) - shared()[1]).abs().max().item()  # noqa: E731
        attempt(row, "lse_gap", gap)
    yield row

    row = {"kernel": "teacher_max", **base, "floors": teacher_floor(limits, tokens, HEADS, KV_HEADS, HEAD_DIM)}
    lse = attempt({}, "lse", lambda: shared()[1] if known else row_lse(query, key, lengths_B, scale))
    pooled = lambda: teacher_max(query, key, lengths_B, rows=KV_HEADS, scale=scale, mean=False, lse_BQL=lse)  # noqa: E731
    attempt(row, "seconds", lambda: seconds(pooled, device, repeats))
    attempt(row, "torch_seconds", lambda: seconds(by_torch, device, repeats))
    if expected:
        gap = lambda: (pooled() - expected["target"]).abs().max().item()  # noqa: E731
        attempt(row, "largest_error", gap)
    yield row


def reread_row(limits: Limits, device: torch.device, tokens: int, chunk: int, repeats: int) -> dict[str, Any]:
    """One document in chunks, without a request; floors at the rates that a goal for an H200 counts with."""
    from indexmem.kernels.reread_max import reread_max  # needs Triton

    torch.manual_seed(0)
    readings = Readings.of(torch.tensor([tokens], device=device), 0, chunk)
    read = readings.positions_1N.shape[1]
    states = (torch.randn(1, read, n, HEAD_DIM, device=device, dtype=torch.bfloat16) for n in (HEADS, KV_HEADS))
    query, key = (x.transpose(1, 2) for x in states)
    query_RQWd, key_RHWd = (readings.split_second(x, dim=2) for x in (query, key))
    key_BHLd, tables = readings.split_first(key, dim=2), torch.empty(2, 0, device=device)
    lse_RQW = torch.randn(query_RQWd.shape[:3], device=device) + 10
    again = Reread(readings.chunks, query_RQWd, key_RHWd, key_RHWd, lse_RQW, *tables, readings.spans_R4)
    scale, expected = HEAD_DIM**-0.5, dict[str, torch.Tensor]()

    def by_torch() -> None:
        block = max(8, 2**17 // min(chunk, tokens))  # as without kernels
        expected["target"] = reconstruction_target(again, key_BHLd, rows=KV_HEADS, scale=scale, block=block)

    row: dict[str, Any] = {"kernel": "reread_max", "tokens": tokens, "chunk": chunk, "dtype": "bfloat16"}
    pairs = [(part.tokens, part.stop - part.start) for part in readings.chunks]
    row["floors"] = reread_floor(replace(limits, **SUSTAINED_H200), pairs, HEADS, KV_HEADS, HEAD_DIM)
    pooled = lambda: reread_max(again, key_BHLd, rows=KV_HEADS, scale=scale, mean=False)  # noqa: E731
    attempt(row, "seconds", lambda: seconds(pooled, device, repeats))
    attempt(row, "torch_seconds", lambda: seconds(by_torch, device, repeats))
    if expected:
        attempt(row, "largest_error", lambda: (pooled() - expected["target"]).abs().max().item())
    return row


def rows(limits: Limits, device: torch.device, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows, short lengths first; what keeps a whole row from being made is a row, too."""
    for tokens in arguments.lengths:
        for dtype in arguments.dtypes if "indexer_max" in arguments.kernels else ():
            failed: dict[str, Any] = {"kernel": "indexer_max", "tokens": tokens, "dtype": dtype}
            make = lambda: indexer_row(limits, device, tokens, getattr(torch, dtype), arguments.repeats)  # noqa: B023, E731
            yield attempt(failed, "row", make) or failed
        if "teacher" in arguments.kernels:
            failed = {"kernel": "teacher", "tokens": tokens, "dtype": "bfloat16"}
            made = iter(teacher_rows(limits, device, tokens, arguments.repeats))
            while (row := attempt(failed, "row", lambda: next(made, None))) is not None:  # noqa: B023
                yield row
            if "errors" in failed:
                yield failed
        if "reread_max" in arguments.kernels:
            failed = {"kernel": "reread_max", "tokens": tokens, "dtype": "bfloat16"}
            make = lambda: reread_row(limits, device, tokens, arguments.chunk, arguments.repeats)  # noqa: B023, E731
            yield attempt(failed, "row", make) or failed


def line(row: dict[str, Any]) -> str:
    """One row of the printed table; times in ms."""
    floor = max(row.get("floors", {"": float("nan")}).values())
    took, slow = row.get("seconds", float("nan")), row.get("torch_seconds", float("nan"))
    times = "".join(f"{1e3 * value:12.3f}" for value in (took, floor, slow, row.get("sdpa_seconds", float("nan"))))
    ratios = f"{took / floor:9.2f}{slow / took:9.1f}"
    notes = row.get("agreement") or {key: row[key] for key in ("largest_error", "lse_gap", "errors") if key in row}
    return f"{row['kernel']:<12}{row['tokens']:>8} {row['dtype']:<9}{times}{ratios}  {notes or ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--chunk", type=int, default=2048, help="tokens read again at a time")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="one tiny length, once")
    arguments = parser.parse_args()
    vars(arguments).update(SMOKE if arguments.smoke else {})
    device = torch.device(arguments.device)
    limits = Limits.of(device, copied_bytes_per_second(device))
    commit = provenance()["git_commit"]
    result: dict[str, Any] = {"limits": vars(limits), "commit": commit, "torch": torch.__version__, "rows": []}
    print(limits)
    print(f"{'':<30}{'kernel ms':>12}{'floor':>12}{'torch':>12}{'sdpa':>12}{'/floor':>9}{'speedup':>9}")
    with torch.inference_mode():
        for row in rows(limits, device, arguments):
            result["rows"].append(row)
            print(line(row), flush=True)
            arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
