"""Figures as PNG and SVG files, drawn by a headless Chromium that is installed on the machine. No network is used."""

from __future__ import annotations

import base64
import html
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from indexmem.errors import UserError
from indexmem.report.pack import packed

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT, SCALE = 900, 480, 2  # pixels; twice as many in a PNG
AT_ONCE = 16  # figures in one page
SECONDS = 180
VIRTUAL_MILLISECONDS = 120_000  # of the page's clock: it ends when nothing is left to do
DRAW = """
const unpack = async (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
(async () => {
  for (const source of [...document.querySelectorAll("script[type='application/gzip']")]) {
    const figure = await unpack(source.textContent);
    const size = { width: %(width)d, height: figure.layout.height ?? %(height)d };
    for (const format of ["png", "svg"]) {
      const address = await Plotly.toImage(figure, { ...size, format, scale: format === "png" ? %(scale)d : 1 });
      source.insertAdjacentHTML("afterend", `<a data-format="${format}" data-name="${source.id}"></a>`);
      source.nextElementSibling.textContent = address;
    }
  }
})();
"""
IMAGE = re.compile(r'<a data-format="(\w+)" data-name="([^"]+)">data:image/[^,]*?(;base64)?,([^<]*)</a>')


def browser() -> str:
    """Path of the browser. Raises UserError where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise UserError(f"Images need a browser, one of {', '.join(BROWSERS)}. Example: apt-get install chromium.")
    return found


def write_images(figures: Mapping[str, go.Figure], folder: Path) -> None:
    """Write <name>.png and <name>.svg of each figure. Raises UserError where no browser is, or it draws nothing."""
    command = browser()
    folder.mkdir(parents=True, exist_ok=True)
    names = list(figures)
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        images = _drawn(command, {name: standing_alone(figures[name]) for name in some})
        if missing := [name for name in some if f"{name}.png" not in images or f"{name}.svg" not in images]:
            raise UserError(f"{command} drew no image of {', '.join(missing)}. Try it with --headless by hand.")
        for name, content in images.items():
            (folder / name).write_bytes(content)


def standing_alone(figure: go.Figure) -> go.Figure:
    """With a legend if lines have no names beside them: the page has one for all its figures, a file has none."""
    drawn = [trace for trace in figure.data if isinstance(trace, go.Scatter) and trace.mode]
    lines = [trace for trace in drawn if trace.mode == "lines+markers" and trace.name]
    if len(lines) < 2 or any(trace.mode == "text" for trace in drawn):
        return figure
    alone = go.Figure(figure)
    for trace in alone.data:
        trace.showlegend = trace.name in {line.name for line in lines}
    return alone.update_layout(showlegend=True)


def _drawn(command: str, figures: Mapping[str, go.Figure]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        page = Path(room) / "figures.html"
        page.write_text(_page(figures), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={room}/profile"]
        call = [command, *flags, f"--virtual-time-budget={VIRTUAL_MILLISECONDS}", "--dump-dom", page.as_uri()]
        done = subprocess.run(call, capture_output=True, text=True, timeout=SECONDS, check=False)
    return {f"{name}.{kind}": _bytes(text, bool(coded)) for kind, name, coded, text in IMAGE.findall(done.stdout)}


def _page(figures: Mapping[str, go.Figure]) -> str:
    white = {"paper_bgcolor": "white", "font_color": "#333"}
    sources: Sequence[str] = [
        f'<script type="application/gzip" id="{html.escape(name)}">{packed(_on_white(figure, white))}</script>'
        for name, figure in figures.items()
    ]
    draw = DRAW % {"width": WIDTH, "height": HEIGHT, "scale": SCALE}
    parts = ["<!doctype html><meta charset=utf-8>", *sources, f"<script>{get_plotlyjs()}</script>"]
    return "\n".join([*parts, f"<script>{draw}</script>"])


def _on_white(figure: go.Figure, look: Mapping[str, str]) -> str:
    return str(go.Figure(figure).update_layout(**look).to_json())


def _bytes(text: str, coded: bool) -> bytes:
    return base64.b64decode(text) if coded else unquote(html.unescape(text)).encode()
