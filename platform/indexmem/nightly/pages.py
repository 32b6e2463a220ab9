"""A verdict as Markdown, for MLflow, terminals and mails, and as one HTML file; the last nights as a table."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexmem.files import write_whole
from indexmem.nightly.night import Night, Nights
from indexmem.nightly.verdict import Change, MethodScore, NightVerdict, Slowdown
from indexmem.progress.status import duration

ENOUGH_NIGHTS = 3  # two that are equal by chance look like a method that always answers alike
UNKNOWN_SPREAD = (
    f"Before there are {ENOUGH_NIGHTS} earlier nights, that does not hold for modules that every night trains anew: "
    "how far chance alone moves them is unknown."
)
MAX_ROWS = 50  # of a table; the rest is in verdict.json
CHANGE_COLUMNS = ("suite", "method", "where", "before", "tonight", "change (95% interval)", "samples", "p")
SLOW_COLUMNS = ("suite", "method", "median time of", "before", "tonight", "factor")
NIGHT_COLUMNS = ("night", "status", "rows", "failed", "worse", "better", "time", "commit", "page")


@dataclass(frozen=True)
class Block:
    """A part of the page: a title, a sentence, a table. What is empty is left out."""

    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    names: int = 0  # leading columns that hold names, not numbers


def write_pages(night: Night, verdict: NightVerdict) -> None:
    """Write the night's two pages."""
    write_whole(night.note, markdown(verdict))
    write_whole(night.page, html(verdict))


def markdown(verdict: NightVerdict) -> str:
    """The verdict as Markdown."""
    parts = [f"## {verdict.nightly} {verdict.date}", f"**{verdict.headline}**", explanation(verdict)]
    for block in blocks(verdict):
        table = [block.columns, ["---"] * len(block.columns), *block.rows] if block.rows else []
        lines = ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in table]
        parts += filter(None, [f"### {block.title}", block.text, "\n".join(lines)])
    parts += ["\n".join(f"- {note}" for note in verdict.notes)] if verdict.notes else []
    return "\n\n".join([*parts, f"Code: {verdict.commit or 'unknown'}"]) + "\n"


def html(verdict: NightVerdict) -> str:
    """The verdict as a page without scripts, which may request nothing. All text is escaped."""
    environment = Environment(
        loader=PackageLoader("indexmem.nightly"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("indexmem.nightly").joinpath("templates", "nightly.css").read_text(encoding="utf-8")
    return environment.get_template("nightly.html.j2").render(
        verdict=verdict, explanation=explanation(verdict), blocks=blocks(verdict), style=Markup(style)
    )


def blocks(verdict: NightVerdict) -> list[Block]:
    """What moved, what became slower, and each suite."""
    found = []
    for title, changes in (("Worse", verdict.regressions), ("Better", verdict.improvements)):
        more = f"and {len(changes) - MAX_ROWS} more, in verdict.json" if len(changes) > MAX_ROWS else ""
        if changes:
            found.append(Block(title, more, CHANGE_COLUMNS, tuple(map(_change_row, changes[:MAX_ROWS])), names=3))
    if verdict.slowdowns:
        text = "A warning only: machines are shared. Medians over rows on the same kind of device."
        found.append(Block("Slower", text, SLOW_COLUMNS, tuple(map(_slow_row, verdict.slowdowns[:MAX_ROWS])), names=3))
    for suite in verdict.suites:
        steps = ", ".join(f"{step.name} {step.ending} ({duration(step.seconds)})" for step in suite.steps)
        text = f"{suite.rows} rows, {suite.failed} failed; {steps}."
        rows = tuple((s.method, _percent(s.before), _percent(s.now), _points(s)) for s in suite.scores)
        found.append(Block(suite.name, text, ("method", "before", "tonight", "change in points"), rows, names=1))
    return found


def explanation(verdict: NightVerdict) -> str:
    """What was compared with what, and what counts."""
    if not verdict.reference:
        return "Later nights will be compared with this one."
    nights = ", ".join(map(str, verdict.reference))
    said = (
        f"Compared on the same samples with {nights}. A regression loses at least "
        f"{100 * verdict.minimum_effect:g} points, is lower than on each of these nights, and is significant over the "
        f"whole table, by the luck of samples and by the spread of the earlier nights: when nothing changed, at most "
        f"{100 * verdict.level:g}% of nights show one."
    )
    return said if len(verdict.reference) >= ENOUGH_NIGHTS else f"{said} {UNKNOWN_SPREAD}"


def nights_table(nights: Nights, last: int) -> str:
    """The last nights, newest first; a night without a verdict is unfinished."""
    lines: list[tuple[str, ...]] = [NIGHT_COLUMNS]
    for night in nights.all()[:last]:
        verdict, spent = night.verdict(), duration(night.record().seconds)
        if verdict is None:
            lines.append((str(night.date), "unfinished", "", "", "", "", spent, "", str(night.folder)))
            continue
        rows, failed = sum(suite.rows for suite in verdict.suites), sum(suite.failed for suite in verdict.suites)
        counts = map(str, (rows, failed, len(verdict.regressions), len(verdict.improvements)))
        lines.append((str(night.date), verdict.status, *counts, spent, verdict.commit[:12], str(night.page)))
    if len(lines) == 1:
        return f"no nights yet under {nights.folder}"
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _change_row(change: Change) -> tuple[str, ...]:
    interval = f"{100 * change.effect:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
    p_value = "< 0.0001" if change.p_value < 1e-4 else f"{change.p_value:.4f}"
    places = (change.suite, change.method, change.where, _percent(change.before), _percent(change.now))
    return (*places, interval, str(change.samples), p_value)


def _slow_row(slow: Slowdown) -> tuple[str, ...]:
    times = (_seconds(slow.before), _seconds(slow.now), f"{slow.now / slow.before:.1f}x")
    return (slow.suite, slow.method, slow.measure, *times)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _points(score: MethodScore) -> str:
    return "-" if score.before is None else f"{100 * (score.now - score.before):+.1f}"


def _seconds(value: float) -> str:
    """0.0123 -> '12.3 ms', 6.1 -> '6.1 s'."""
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
