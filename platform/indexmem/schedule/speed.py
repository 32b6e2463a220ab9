"""How long answers took, compared between nights. Machines are shared and differ, so this warns and never alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from indexmem.results.schema import OK
from indexmem.schedule.verdict import Slowdown


class Speed(NamedTuple):
    """Median times of a method's rows on one kind of device, in seconds."""

    decode: float  # of the batch that a row was decoded in
    token: float  # decoding time of a row over its new tokens
    score: float


MEASURES = ("decoding a batch", "decoding a token", "scoring a context")  # as in Speed
Speeds = Mapping[tuple[str, str], Speed]  # (method, device)


def speeds_of(rows: pa.Table) -> Speeds:
    """Medians over finished rows. Rows without times, such as those of other tools, are left out."""
    finished = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.greater(rows["new_tokens"], 0)))
    times: dict[tuple[str, str], list[Speed]] = {}
    names = ("method", "device", "decode_seconds", "new_tokens", "score_seconds")
    for method, device, decode, tokens, score in zip(*(finished[name].to_pylist() for name in names)):
        if decode is not None and score is not None:
            times.setdefault((method, device or ""), []).append(Speed(decode, decode / tokens, score))
    return {key: Speed(*map(median, zip(*found))) for key, found in times.items()}


def slowdowns(suite: str, tonight: Speeds, earlier: Sequence[Speeds], factor: float) -> list[Slowdown]:
    """Times that are more than `factor` of their median over earlier nights with the same device."""
    found = []
    for (method, device), speed in sorted(tonight.items()):
        known = [night[method, device] for night in earlier if (method, device) in night]
        for measure, now, before in zip(MEASURES, speed, map(median, zip(*known))):
            if before > 0 and now > factor * before:
                found.append(Slowdown(suite=suite, method=method, measure=measure, before=before, now=now))
    return found
