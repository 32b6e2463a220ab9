"""A verdict as Markdown, for MLflow, terminals and mails, and as one HTML file; the last nights as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexmem.config.section import Section
from indexmem.files import write_whole
from indexmem.nightly.night import Night, Nights
from indexmem.nightly.significance import ENOUGH_NIGHTS
from indexmem.nightly.trend import Trend
from indexmem.nightly.verdict import Change, MethodScore, NightVerdict, SuiteOutcome
from indexmem.progress.status import duration

UNKNOWN_SPREAD = (
    f"Before there are {ENOUGH_NIGHTS} earlier nights, that does not hold for modules that every night trains anew: "
    "how far chance alone moves them is unknown."
)
SLOWER = "In prefills of the same samples, so that a loaded machine slows both sides. A warning only."
LOST = "Measured before, and so many samples less tonight. If that is meant, set compare.coverage_since={date}."
FLIPS = "At which budgets a sample was answered right, and is not any more, or the other way round."
MAX_ROWS = 50  # of a table; the rest is in verdict.json
CHANGE_COLUMNS = ("suite", "method", "where", "before", "tonight", "change (95% interval)", "samples", "p")
NIGHT_COLUMNS = ("night", "status", "rows", "failed", "lost", "worse", "better", "time", "commit", "page")
SCORE_COLUMNS = ("method", "nights", "before", "tonight", "change in points")


@dataclass(frozen=True)
class Block:
    """A part of the page: a title, a sentence, a table. What has neither sentence nor rows is left out."""

    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | Trend, ...], ...] = ()
    names: int = 0  # leading columns that hold names, not numbers
    link: str = ""  # what the title leads to, from the page's folder


def write_pages(night: Night, verdict: NightVerdict, before: Sequence[NightVerdict] = ()) -> None:
    """Write the night's two pages. `before`: verdicts of earlier nights, oldest first, for trends."""
    write_whole(night.note, markdown(verdict, before))
    write_whole(night.page, html(verdict, before))


def markdown(verdict: NightVerdict, before: Sequence[NightVerdict] = ()) -> str:
    """The verdict as Markdown."""
    parts = [f"## {verdict.nightly} {verdict.date}", f"**{verdict.headline}**", explanation(verdict)]
    for block in blocks(verdict, before):
        table = [block.columns, ["---"] * len(block.columns), *block.rows] if block.rows else []
        lines = ["| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in table]
        parts += filter(None, [f"### {block.title}", block.text, "\n".join(lines)])
    parts += ["\n".join(f"- {note}" for note in verdict.notes)] if verdict.notes else []
    return "\n\n".join([*parts, f"Code: {verdict.commit or 'unknown'}"]) + "\n"


def html(verdict: NightVerdict, before: Sequence[NightVerdict] = ()) -> str:
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
        verdict=verdict,
        explanation=explanation(verdict),
        blocks=blocks(verdict, before),
        before=[night.date for night in before[-7:]],
        style=Markup(style),
    )


def blocks(verdict: NightVerdict, before: Sequence[NightVerdict]) -> list[Block]:
    """What moved, what is not measured any more, what may be why, and each suite."""
    since = f"Since the last good night, {verdict.changed_since}."
    found = [
        _table("Worse", "", CHANGE_COLUMNS, map(_change_row, verdict.regressions), 3),
        _listed("Lost", LOST.format(date=verdict.date), verdict.lost, 3),
        _table("Better", "", CHANGE_COLUMNS, map(_change_row, verdict.improvements), 3),
        _listed("Changed", since, verdict.changed, 4),
        _listed("Samples that flipped", FLIPS, verdict.flips, 5),
        *(_listed(f"Training loss of {suite.name}", "", suite.losses, 1) for suite in verdict.suites),
        _listed("Slower", SLOWER, verdict.slowdowns, 3),
    ]
    return [block for block in found if block.rows] + [_suite(suite, [*before, verdict]) for suite in verdict.suites]


def _listed(title: str, text: str, found: Sequence[Section], names: int) -> Block:
    """A row for each, with a column for each of their fields."""
    columns = tuple(type(found[0]).model_fields) if found else ()
    return _table(title, text, columns, (tuple(_shown(value) for _, value in each) for each in found), names)


def _table(title: str, text: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], names: int) -> Block:
    every = tuple(rows)
    more = f" {len(every) - MAX_ROWS} more are in verdict.json." if len(every) > MAX_ROWS else ""
    return Block(title, text + more, columns, every[:MAX_ROWS], names)


def _suite(suite: SuiteOutcome, nights: Sequence[NightVerdict]) -> Block:
    steps = ", ".join(f"{step.name} {step.ending} ({duration(step.seconds)})" for step in suite.steps)
    rows = tuple(
        (s.method, Trend.of(suite.name, s.method, nights), _percent(s.before), _percent(s.now), _points(s))
        for s in suite.scores
    )
    text = f"{suite.rows} rows, {suite.failed} failed; {steps}."
    return Block(suite.name, text, SCORE_COLUMNS, rows, names=2, link=suite.report)


def explanation(verdict: NightVerdict) -> str:
    """What was compared with what, and what counts."""
    if not verdict.reference:
        return "Later nights will be compared with this one."
    nights = ", ".join(map(str, verdict.reference))
    said = (
        f"Compared on the same samples with {nights}; a cell that these lack, with older nights. A regression loses "
        f"at least {100 * verdict.minimum_effect:g} points, is lower than on each of these nights, and is significant "
        f"over the whole table, by the luck of samples and by the spread of the earlier nights: when nothing changed, "
        f"at most {100 * verdict.level:g}% of nights show one."
    )
    return said if len(verdict.reference) >= ENOUGH_NIGHTS else f"{said} {UNKNOWN_SPREAD}"


def nights_table(nights: Nights, last: int) -> str:
    """The last nights, newest first; a night without a verdict is unfinished."""
    lines: list[tuple[str, ...]] = [NIGHT_COLUMNS]
    for night in nights.all()[:last]:
        verdict, spent = night.verdict(), duration(night.record().seconds)
        if verdict is None:
            lines.append((str(night.date), "unfinished", *[""] * 5, spent, "", str(night.folder)))
            continue
        moved = (verdict.lost, verdict.regressions, verdict.improvements)
        counts = map(str, (verdict.rows, verdict.failed, *map(len, moved)))
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


def _shown(value: object) -> str:
    match value:
        case tuple():
            return ", ".join(value)
        case bool() | None:
            return {True: "yes", False: "no", None: "-"}[value]
        case float():
            return f"{value:.3g}"
    return str(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _points(score: MethodScore) -> str:
    return "-" if score.before is None else f"{100 * (score.now - score.before):+.1f}"
