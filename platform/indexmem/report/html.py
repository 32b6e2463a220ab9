"""The report: one HTML file that needs nothing else, so it can be mailed, archived, or opened from an artifact store.

Text from models and data is escaped by the template or put in place as text by the scripts. On top of that, the page
forbids itself every network request and every script but its own two (content security policy by hash).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from indexmem.config.budget import PHRASES, Kind
from indexmem.config.schema import Experiment
from indexmem.report.costs import costs
from indexmem.report.figures import AXES, loss_curve, score_by_bytes, score_curve
from indexmem.report.palette import styles
from indexmem.report.provenance import failures, provenance
from indexmem.report.summary import FULL, MEAN, summarise
from indexmem.report.verdict import verdict
from indexmem.report.viewer import viewer_data

COLUMNS: Mapping[Kind, str] = MappingProxyType(
    {"ratio": "by evicted share", "tokens": "by tokens kept per head", "bytes": "by bytes in all"}
)
SCRIPTS = ("charts.js", "viewer.js")


def write_report(
    experiment: Experiment,
    rows: pa.Table,
    retention: pa.Table,
    out: Path,
    history: Sequence[Mapping[str, Any]] = (),
    *,
    command: str = "python jobs/report.py spec.yaml",
) -> Path:
    """Write the report of one experiment's rows to `out`, replacing it in one step, and return `out`.

    rows: ROW_SCHEMA; retention: RETENTION_SCHEMA, may be empty; history: the distillation's {'step', 'loss', 'lr'}.
    Raises UserError when there are no rows, or rows of several experiments.
    """
    page = render(experiment, rows, retention, history, command)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
    return out


def render(
    experiment: Experiment,
    rows: pa.Table,
    retention: pa.Table,
    history: Sequence[Mapping[str, Any]],
    command: str,
) -> str:
    """The page as a string; see `write_report`."""
    summary = summarise(rows)
    spent = costs(rows)
    kinds = tuple(summary.by_kind) or ("ratio",)
    curves = {}
    for kind in kinds:
        curves[f"{kind}-mean"] = score_curve(summary, MEAN, kind)
        for number, name in enumerate(summary.benchmarks):
            curves[f"{kind}-benchmark-{number}"] = score_curve(summary, name, kind)
    curves["costs"] = score_by_bytes(summary, spent)
    if history:
        curves["loss"] = loss_curve(history)
    scripts = [Markup(get_plotlyjs()), *(Markup(_asset(name)) for name in SCRIPTS)]
    environment = Environment(
        loader=PackageLoader("indexmem.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": bytes_text, "seconds": seconds_text}
    return environment.get_template("report.html.j2").render(
        experiment=experiment,
        summary=summary,
        verdict=verdict(summary),
        costs=spent,
        look=styles(summary.methods),
        panels={kind: AXES[kind] for kind in kinds},
        phrases=PHRASES,
        columns=" or ".join(COLUMNS[kind] for kind in kinds),
        figures={name: _figure(figure) for name, figure in curves.items()},
        viewer=viewer_data(rows, retention, summary.methods),
        failures=failures(rows),
        provenance=provenance(experiment, rows),
        command=command,
        policy=_policy(scripts),
        scripts=scripts,
        style=Markup(_asset("report.css")),
        FULL=FULL,
        MEAN=MEAN,
    )


def bytes_text(count: float) -> str:
    """1234567 -> '1.2 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """0.0123 -> '12 ms', 6.1 -> '6.1 s'."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _figure(figure: go.Figure) -> dict[str, Any]:
    """A figure for the page, which has its own headings and one legend for all charts."""
    bare = go.Figure(figure).update_layout(title=None, showlegend=False, margin_t=12)
    bare.layout.annotations = ()
    content: dict[str, Any] = json.loads(bare.to_json())
    return content


def _asset(name: str) -> str:
    return files("indexmem.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Content security policy: no request at all, and only the scripts given (hashes of their exact text)."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
