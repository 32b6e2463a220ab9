"""What a reader of a comparison must know besides its numbers, in sentences; none where there is nothing to warn of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.results import other_code
from indexmem.results.costs import UNEQUAL, shares_held
from indexmem.results.samples import Matched
from indexmem.results.schema import OK

ANSWERING = ("torch", "transformers", "kvpress")  # packages whose versions can change an answer


def caveats(rows: pa.Table, ranked: Mapping[Budget, Matched]) -> tuple[str, ...]:
    """Of rows (ROW_SCHEMA) of one model; `ranked`: the methods of each budget on their common samples."""
    return (
        *_protocol(rows),
        *_unranked(ranked),
        *_unequal_bytes(rows, ranked),
        *_nothing_evicted(rows),
        *_mixed_versions(rows),
        *other_code.other_code_sentences(rows),
    )


def _protocol(rows: pa.Table) -> Iterable[str]:
    if pc.any(rows["question_aware"]).as_py():
        yield (
            "Question-aware: each question was in the cache when it was compressed, by a prefill of its own. Scores of "
            "the question-agnostic protocol are not comparable."
        )


def _unranked(ranked: Mapping[Budget, Matched]) -> Iterable[str]:
    """Who lacks too many samples to be ranked by mean score."""
    for budget, common in ranked.items():
        lacking = [f"{method} (lacks {n} of {common.asked} samples)" for (method, _), n in common.lacking.items()]
        if lacking:
            yield f"Not ranked at {budget}: {', '.join(lacking)}."


def _unequal_bytes(rows: pa.Table, ranked: Mapping[Budget, Matched]) -> Iterable[str]:
    """Budgets at which some method holds more than others, such as indexer keys or a memory."""
    found, held = [], shares_held(rows)
    for budget, common in ranked.items():
        shares = {method: held[method, budget] for method, _ in common.columns if (method, budget) in held}
        if shares and max(shares.values()) > UNEQUAL * min(shares.values()):
            low, high, most = min(shares.values()), max(shares.values()), max(shares, key=lambda m: shares[m])
            found.append(f"{100 * low:.1f}% to {100 * high:.1f}% at {budget} (most: {most})")
    if found:
        yield f"Methods hold unequal bytes: of the full cache's {', '.join(found)}."


def _nothing_evicted(rows: pa.Table) -> Iterable[str]:
    """Where contexts fit the budget: such a score is the full cache's, whatever the method is called."""
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.is_valid(rows["measured_ratio"])))
    whole = pc.less_equal(finished["measured_ratio"], 0.0)
    counted = finished.append_column("whole", whole.cast(pa.int64())).group_by("budget")
    found = counted.aggregate([("whole", "sum"), ("whole", "count"), ("context_tokens", "max")]).to_pylist()
    for item in sorted(found, key=lambda item: Budget.parse(item["budget"])):
        budget, kept, count = item["budget"], item["whole_sum"], item["whole_count"]
        if Budget.parse(budget) == NOTHING_EVICTED or not kept:
            continue
        if kept == count:
            yield f"Nothing was evicted at {budget}: contexts have at most {item['context_tokens_max']} tokens."
        else:
            yield f"Nothing was evicted at {budget} in {kept} of {count} answers, whose contexts are too short."


def _mixed_versions(rows: pa.Table) -> Iterable[str]:
    """Cells are named without them, so that an update costs no row; but methods may then differ by an update."""
    known = [json.loads(text) for text in pc.unique(rows["versions"]).to_pylist() if text]
    for package in ANSWERING:
        versions = sorted({found[package] for found in known if package in found})
        if len(versions) > 1:
            yield f"Rows come from {package} {' and '.join(versions)}: a difference may be one between versions."
