"""A verdict as Markdown, for MLflow, terminals and mails, and as one HTML file; the last nights as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexmem.files import write_whole
from indexmem.nightly.night import Night, Nights
from indexmem.nightly.verdict import Change, MethodScore, NightVerdict
from indexmem.progress.status import duration

ENOUGH_NIGHTS = 3  # two that are equal by chance look like a method that always answers alike
UNKNOWN_SPREAD = (
    f"Before there are {ENOUGH_NIGHTS} earlier nights, that does not hold for modules that every night trains anew: "
    "how far chance alone moves them is unknown."
)
COLUMNS_OF_NIGHTS = ("night", "status", "rows", "failed", "worse", "better", "time", "commit", "page")
SHOWN = 50  # changes in a table; the rest is in verdict.json


def write_pages(night: Night, verdict: NightVerdict) -> None:
    """Write the night's two pages."""
    write_whole(night.note, markdown(verdict))
    write_whole(night.page, html(verdict))


def markdown(verdict: NightVerdict) -> str:
    """The verdict as Markdown."""
    blocks = [f"## {verdict.nightly} {verdict.date}", f"**{verdict.headline}**", explanation(verdict)]
    for title, changes in (("Worse", verdict.regressions), ("Better", verdict.improvements)):
        if changes:
            head = ("suite", "method", "where", "before", "tonight", "change (95% interval)", "samples", "p")
            blocks += [f"### {title}", _table(head, map(_change_row, changes[:SHOWN])), *_more(changes)]
    if verdict.slowdowns:
        slow = [
            (s.suite, s.method, s.measure, seconds(s.before), seconds(s.now), f"{s.now / s.before:.1f}x")
            for s in verdict.slowdowns[:SHOWN]
        ]
        columns = ("suite", "method", "median time of", "before", "tonight", "factor")
        blocks += ["### Slower (a warning only)", _table(columns, slow)]
    for suite in verdict.suites:
        steps = ", ".join(f"{step.name} {step.ending} ({duration(step.seconds)})" for step in suite.steps)
        scores = [(s.method, percent(s.before), percent(s.now), points(s)) for s in suite.scores]
        blocks += [f"### {suite.name}", f"{suite.rows} rows, {suite.failed} failed; {steps}."]
        blocks += [_table(("method", "before", "tonight", "change"), scores)] if scores else []
    blocks += ["\n".join(f"- {note}" for note in verdict.notes)] if verdict.notes else []
    return "\n\n".join([*blocks, f"Code: {verdict.commit or 'unknown'}"]) + "\n"


def html(verdict: NightVerdict) -> str:
    """The verdict as a page without scripts, which may request nothing. All text is escaped."""
    environment = Environment(
        loader=PackageLoader("indexmem.nightly"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "seconds": seconds, "duration": duration, "p": p_value_text}
    style = files("indexmem.nightly").joinpath("templates", "nightly.css").read_text(encoding="utf-8")
    return environment.get_template("nightly.html.j2").render(
        verdict=verdict,
        explanation=explanation(verdict),
        tables=(("Worse", verdict.regressions), ("Better", verdict.improvements)),
        points=points,
        shown=SHOWN,
        style=Markup(style),
    )


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
    """Newest first; a night without a verdict is unfinished."""
    lines: list[tuple[str, ...]] = [COLUMNS_OF_NIGHTS]
    for night in nights.all()[:last]:
        verdict, spent = night.verdict(), duration(night.record().seconds)
        if verdict is None:
            lines.append((str(night.date), "unfinished", "", "", "", "", spent, "", str(night.folder)))
            continue
        counts = (
            sum(suite.rows for suite in verdict.suites),
            sum(suite.failed for suite in verdict.suites),
            len(verdict.regressions),
            len(verdict.improvements),
        )
        tail = (spent, verdict.commit[:12], str(night.page))
        lines.append((str(night.date), verdict.status, *map(str, counts), *tail))
    if len(lines) == 1:
        return f"no nights yet under {nights.folder}"
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS_OF_NIGHTS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def percent(share: float | None) -> str:
    """A mean score in percent."""
    return "-" if share is None else f"{100 * share:.1f}%"


def points(score: MethodScore) -> str:
    """By how many points it changed."""
    return "-" if score.before is None else f"{100 * (score.now - score.before):+.1f}"


def p_value_text(p_value: float) -> str:
    return "< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"


def seconds(value: float) -> str:
    """0.0123 -> '12.3 ms', 6.1 -> '6.1 s'."""
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _change_row(change: Change) -> Sequence[str]:
    interval = f"{100 * change.effect:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
    places = (change.suite, change.method, change.where, percent(change.before), percent(change.now))
    return (*places, interval, str(change.samples), p_value_text(change.p_value))


def _more(changes: Sequence[Change]) -> list[str]:
    return [f"and {len(changes) - SHOWN} more, in verdict.json"] if len(changes) > SHOWN else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
