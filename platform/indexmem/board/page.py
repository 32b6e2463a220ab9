"""The board's page: one HTML file that opens offline. Foreign text is escaped, unseen characters are spelled out."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from indexmem.board.format import PROTOCOL
from indexmem.board.lines import Line
from indexmem.board.sections import ProtocolSection
from indexmem.board.sources import Source
from indexmem.config.budget import PHRASES
from indexmem.config.schema import MEAN
from indexmem.files import write_whole
from indexmem.report.document import asset, policy, template_environment
from indexmem.report.palette import FULL_COLOR, style
from indexmem.report.text import visible
from indexmem.results.schema import FULL_LABEL

HERE = "indexmem.board"
NAMES = {"length": "prompt length", "sinks": "sink tokens", "question": "compressed", "settings": "other settings"}
MOST_SHOWN = 160  # characters of a foreign text
COLUMNS = (  # title, key of the value that it sorts by
    ("Model", "model"), ("Method", "method"), ("Budget", "budget"), ("Benchmark", "benchmark"), ("Score", "score"),
    ("n", "n"), ("Held", "held"), ("Of full", "share"), ("Scoring", "scoring"), ("Decoding", "decoding"),
    ("From", "who"),
)  # fmt: skip


def write_board(found: Sequence[ProtocolSection], sources: Sequence[Source], folder: Path) -> Path:
    """Write index.html into `folder` and return its path."""
    out = folder / "index.html"
    write_whole(out, board_page(found, sources))
    return out


def board_page(found: Sequence[ProtocolSection], sources: Sequence[Source]) -> str:
    """The page as a string."""
    script = Markup(asset("board.js", HERE))
    pages = template_environment(HERE)
    pages.filters |= {"shown": shown, "ms": lambda ms: f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.2g} ms"}
    every = [line for section in found for line in section.lines]
    look = {line.method: style(line.method).color for line in every}
    return pages.get_template("board.html.j2").render(
        sections=[(number, section, protocol(section)) for number, section in enumerate(found)],
        sources=sources,
        choices={
            "model": sorted({line.model for line in every}),
            "method": sorted({line.method for line in every}),
            "budget": list(map(str, sorted({line.budget for line in every}))),
            "benchmark": sorted({line.benchmark for line in every} - {MEAN}),
            "who": sorted({name for line in every for name in line.origin["who"]}),
        },
        columns=COLUMNS,
        keys=keys,
        look=look | {FULL_LABEL: FULL_COLOR},
        phrases=PHRASES,
        facts=told_origin,
        made=dt.datetime.now(dt.UTC),
        policy=policy([script]),
        script=script,
        style=Markup(asset("report.css") + asset("board.css", HERE)),
        FULL_LABEL=FULL_LABEL,
        MEAN=MEAN,
    )


def shown(text: object) -> str:
    """A foreign text, short and without characters that move or hide others."""
    return visible(str(text), MOST_SHOWN)


def protocol(section: ProtocolSection) -> list[tuple[str, str]]:
    """(name, value) of what makes a section's protocol."""
    told = []
    for name in PROTOCOL:
        value = section.protocol[name]
        if name == "question" and value is not None:
            value = "before the question is seen" if value == "after" else "with the question (question-aware)"
        absent = "none" if name == "settings" and not section.unknown else "not recorded"
        absent = "as the samples are" if name in ("length", "seed") else absent
        told.append((NAMES.get(name, name), absent if value in (None, "") else shown(value)))
    return told


def keys(line: Line, section: ProtocolSection) -> dict[str, Any]:
    """What a line is sorted and filtered by. `overall`: it stands for its model where no benchmark is chosen."""
    has_mean = any(other.benchmark == MEAN and other.model == line.model for other in section.lines)
    costs = line.costs
    return {
        "model": line.model,
        "method": line.method,
        "budget": str(line.budget),
        "benchmark": line.benchmark,
        "overall": line.benchmark == MEAN or not has_mean,
        "score": line.score,
        "n": line.samples,
        "held": costs["held_bytes"],
        "share": share_of_full(line),
        "scoring": costs["score_ms"],
        "decoding": costs["decode_ms"],
        "who": "\n".join(line.origin["who"]),
    }


def share_of_full(line: Line) -> float | None:
    """Bytes held, of the full cache's."""
    held, full = line.costs["held_bytes"], line.costs["full_bytes"]
    return None if held is None or not full else held / full


def told_origin(line: Line) -> list[tuple[str, str]]:
    """Where a line comes from."""
    origin = line.origin
    told = [
        ("Commit", ", ".join(commit[:20] for commit in origin["commit"])),
        ("Versions", "; ".join(map(_versions, origin["versions"]))),
        ("Device", ", ".join(origin["device"])),
        ("Host", ", ".join(origin["host"])),
        ("Date", line.date[:10]),
        ("Prompts and scores", ", ".join(origin["prompts"])),
        ("Samples' build", ", ".join(origin["build"])),
    ]
    if line.costs["prefill_ms"] is not None:
        told.append(("Prefill", f"{line.costs['prefill_ms']:,.0f} ms"))
    return [(name, shown(value) or "not recorded") for name, value in told]


def _versions(text: str) -> str:
    return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
