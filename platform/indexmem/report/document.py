"""What all pages in the style of the report share: templates that escape, assets, and a policy without requests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from indexmem.report.figures.base import LEVEL
from indexmem.report.pack import packed
from indexmem.report.text import bytes_text, counted, p_words, seconds_text, signed, visible

PACKAGE = "indexmem.report"


def template_environment(*packages: str) -> Environment:
    """Templates of these packages, then the report's own, with the filters of all pages."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, PACKAGE)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"bytes": bytes_text, "seconds": seconds_text, "signed": signed, "p": p_words}
    made.filters |= {"visible": visible, "counted": counted, "points": lambda share: f"{100 * share:.1f}"}
    return made


def asset(name: str, package: str = PACKAGE) -> str:
    """A style or script beside the templates of a package."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def policy(scripts: Sequence[str]) -> str:
    """Content security policy: no request at all, and only the scripts given (hashes of their exact text)."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def charted(scripts: Sequence[str], data: Mapping[str, str]) -> dict[str, Any]:
    """What a page with charts gives its template: its script, its policy, and `data` with the chart library, which is
    packed as all data is and takes two fifths of its size.
    """
    library, script = get_plotlyjs(), Markup('"use strict";\n' + "".join(map(asset, scripts)))
    return {"scripts": [script], "policy": policy([library, script]), "data": {**data, "plotly": packed(library)}}


def figure_data(figure: go.Figure) -> dict[str, Any]:
    """A figure for a page, which has captions of its own and one legend for all charts."""
    content: dict[str, Any] = json.loads(figure.to_json())
    layout = content["layout"]
    layout.pop("template", None)
    layout.pop("title", None)
    layout["margin"]["t"] = 34 if "coloraxis" in layout else 12
    layout["annotations"] = [note for note in layout.get("annotations", ()) if note.get("name") != LEVEL]
    return content
