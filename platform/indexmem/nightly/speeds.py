"""What became slower, in prefills: each time is divided by that of the same sample's prefill, on the same machine a
moment before. A loaded or slower machine slows both, so that night by night their ratio stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexmem.config.nightly import CompareConfig
from indexmem.nightly.significance import ENOUGH_NIGHTS, Wander
from indexmem.nightly.verdict import Slowdown

TIME_COLUMNS = ("method", "device", "prefill_seconds", "score_seconds", "decode_seconds")
NOTICEABLE = 0.05  # of a prefill: what a method loses below that, nobody feels
LEAST_SECONDS = 0.005  # shorter times count as this: what else a machine does blurs them
ALL = "all methods"  # whose answers are decoded together
WHAT = {"score_seconds": "scoring a context", "decode_seconds": "decoding a batch"}
MEDIAN = "approximate_median"

Times = Mapping[tuple[str, str, str], float]  # (method, what, device) -> median, in prefills


def times_of(finished: pa.Table) -> Times:
    """Medians over finished rows. Rows without times, such as those of other tools, are left out."""
    rows = finished.filter(pc.greater(finished["prefill_seconds"], 0))
    shares = rows.select(["method", "device"])
    for column in WHAT:
        seconds, prefill = (pc.max_element_wise(rows[name], LEAST_SECONDS) for name in (column, "prefill_seconds"))
        shares = shares.append_column(column, pc.divide(seconds, prefill))
    scoring = shares.group_by(["method", "device"], use_threads=False).aggregate([("score_seconds", MEDIAN)])
    decoding = shares.group_by(["device"], use_threads=False).aggregate([("decode_seconds", MEDIAN)])
    decoding = decoding.append_column("method", pa.array([ALL] * len(decoding)))
    return {
        (row["method"], what, row["device"] or ""): row[f"{column}_{MEDIAN}"]
        for table, (column, what) in zip((scoring, decoding), WHAT.items())
        for row in table.to_pylist()
        if row[f"{column}_{MEDIAN}"] is not None
    }


def slowdowns(suite: str, tonight: Times, earlier: Sequence[Times], config: CompareConfig) -> list[Slowdown]:
    """Times that are noticeably longer than on every earlier night with the same device, and beyond their spread."""
    found = []
    for key, now in sorted(tonight.items()):
        nights = [night[key] for night in earlier if key in night]
        if len(nights) < ENOUGH_NIGHTS or now < config.slower * max(nights) or now < max(nights) + NOTICEABLE:
            continue
        if Wander.of(-np.log([[now, *nights]])).tail() <= config.level:
            found.append(Slowdown(suite=suite, method=key[0], measure=key[1], before=mean(nights), now=now))
    return found
